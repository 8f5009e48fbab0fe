//! See `broadleaf_fuzz::machines::client`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| broadleaf_fuzz::machines::client::run(data));
