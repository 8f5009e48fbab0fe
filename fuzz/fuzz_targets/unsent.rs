//! See `broadleaf_fuzz::unsent`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| broadleaf_fuzz::unsent::run(data));
