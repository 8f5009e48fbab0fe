//! See `broadleaf_fuzz::submissions`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| broadleaf_fuzz::submissions::run(data));
