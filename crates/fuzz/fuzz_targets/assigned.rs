//! See `broadleaf_fuzz::assigned`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| broadleaf_fuzz::assigned::run(data));
