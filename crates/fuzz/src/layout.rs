//! Payloads of a value and its buffers taken apart and put together again, all inline.

use broadleaf_proto::layout::{Compound, Delivery, ValueHead, pack_offsets};

/// Tries one input.
pub fn run(data: &[u8]) {
    let Ok(compound) = Compound::decode(data) else {
        return;
    };
    let is_inline = |byte: &u8| Delivery::of(*byte).is_ok_and(|(is_inline, _)| is_inline);
    let all_inline = compound.buffers.iter().all(|(byte, _)| is_inline(byte));
    if let Ok(inlined) = compound.with_all_inline(&[]) {
        assert!(!all_inline || inlined == data);
    }
    if let Ok((head, rest)) = ValueHead::decode(compound.value) {
        let _ = pack_offsets(head.packed.iter().map(|(_, len)| *len));
        let mut again = Vec::new();
        head.encode(&mut again);
        again.extend_from_slice(rest);
        assert!(head == ValueHead::default() || again == compound.value);
    }
}
