//! See `broadleaf_fuzz::tls`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| broadleaf_fuzz::tls::run(data));
