//! See `broadleaf_fuzz::machines::relay`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| broadleaf_fuzz::machines::relay::run(data));
