//! See `broadleaf_fuzz::relay`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| broadleaf_fuzz::relay::run(data));
