//! See `broadleaf_fuzz::engine`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| broadleaf_fuzz::engine::run(data));
