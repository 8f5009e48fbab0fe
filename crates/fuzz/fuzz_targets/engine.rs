//! See `broadleaf_fuzz::machines::engine`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| broadleaf_fuzz::machines::engine::run(data));
