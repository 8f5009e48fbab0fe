//! See `broadleaf_fuzz::control`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| broadleaf_fuzz::control::run(data));
