//! See `broadleaf_fuzz::records`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| broadleaf_fuzz::records::run(data));
