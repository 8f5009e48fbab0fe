//! See `broadleaf_fuzz::compact`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| broadleaf_fuzz::compact::run(data));
