//! See `broadleaf_fuzz::machines::mover`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| broadleaf_fuzz::machines::mover::run(data));
