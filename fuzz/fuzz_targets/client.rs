//! See `broadleaf_fuzz::client`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| broadleaf_fuzz::client::run(data));
