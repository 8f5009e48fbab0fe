//! Pickled payloads taken apart and put together again, all inline.
#![no_main]

use broadleaf_proto::layout::{INLINE, Pickled};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Ok(pickled) = Pickled::decode(data) else {
        return;
    };
    let all_inline = pickled.buffers.iter().all(|(place, _)| *place == INLINE);
    if let Ok(inlined) = pickled.with_all_inline(&[]) {
        assert!(!all_inline || inlined == data);
    }
});
