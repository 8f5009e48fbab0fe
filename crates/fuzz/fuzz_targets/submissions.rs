//! See `broadleaf_fuzz::machines::submissions`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| broadleaf_fuzz::machines::submissions::run(data));
