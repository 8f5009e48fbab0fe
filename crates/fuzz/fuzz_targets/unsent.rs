//! See `broadleaf_fuzz::machines::unsent`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| broadleaf_fuzz::machines::unsent::run(data));
