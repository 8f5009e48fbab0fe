//! See `broadleaf_fuzz::mover`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| broadleaf_fuzz::mover::run(data));
