//! See `broadleaf_fuzz::layout`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| broadleaf_fuzz::layout::run(data));
