//! The heads of an engine's error record: one for each kind of error that it tells of. They are for those who count
//! errors and cannot read the rest, which is a pickle.

use bytes::{Buf, BufMut, Bytes};

use crate::limits::{MAX_ERROR_KINDS, MAX_ERROR_TEXT_BYTES};

/// What a head begins with. No pickle and no encoded value does.
const MARK: [u8; 4] = *b"BLer";

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ErrorHead {
    /// Equal for errors of one type that were raised in one place.
    pub kind: u64,
    /// How many items of a chunk raised it; 1 for a task that is no chunk.
    pub n_items: u32,
    /// JSON that describes one error of this kind. Empty if the engine has described the kind before.
    pub text: Bytes,
}

impl ErrorHead {
    /// The heads of a record, at most `MAX_ERROR_KINDS`. Their texts share the record's memory.
    pub fn all(record: &Bytes) -> impl Iterator<Item = Self> {
        let mut left = record.clone();
        core::iter::from_fn(move || Self::take(&mut left)).take(MAX_ERROR_KINDS)
    }

    /// Takes a head off the front, if there is one.
    fn take(record: &mut Bytes) -> Option<Self> {
        let mut left = record.clone();
        let mut mark = [0; MARK.len()];
        left.try_copy_to_slice(&mut mark).ok()?;
        if mark != MARK {
            return None;
        }
        let kind = left.try_get_u64_le().ok()?;
        let n_items = left.try_get_u32_le().ok()?;
        let len = left.try_get_u32_le().ok()? as usize;
        if len > MAX_ERROR_TEXT_BYTES || len > left.len() {
            return None;
        }
        let text = left.split_to(len);
        *record = left;
        Some(Self {
            kind,
            n_items,
            text,
        })
    }

    /// Appends the head.
    pub fn encode(&self, out: &mut impl BufMut) {
        out.put_slice(&MARK);
        out.put_u64_le(self.kind);
        out.put_u32_le(self.n_items);
        out.put_u32_le(self.text.len() as u32);
        out.put_slice(&self.text);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(n_heads: u64) -> (Vec<ErrorHead>, Vec<u8>) {
        let heads: Vec<_> = (0..n_heads)
            .map(|kind| ErrorHead {
                kind,
                n_items: 3,
                text: Bytes::from_static(if kind == 0 { &b""[..] } else { b"{}" }),
            })
            .collect();
        let mut bytes = Vec::new();
        for head in &heads {
            head.encode(&mut bytes);
        }
        bytes.extend_from_slice(b"\x80\x05 a pickle");
        (heads, bytes)
    }

    fn heads(bytes: Vec<u8>) -> Vec<ErrorHead> {
        ErrorHead::all(&bytes.into()).collect()
    }

    #[test]
    fn they_come_back() {
        for n in 0..4 {
            let (known, bytes) = record(n);
            assert_eq!(heads(bytes), known);
        }
    }

    #[test]
    fn no_more_are_read_than_there_may_be() {
        let (known, bytes) = record(100);
        assert_eq!(heads(bytes), known[..MAX_ERROR_KINDS]);
    }

    #[test]
    fn what_has_none_has_none() {
        let (known, bytes) = record(2);
        for len in 0..MARK.len() + 16 {
            assert_eq!(heads(bytes[..len].to_vec()), []);
        }
        assert_eq!(
            heads(bytes[..bytes.len() - 13].to_vec()),
            known[..1],
            "the second is cut"
        );
    }

    #[test]
    fn a_text_that_is_too_long_is_no_head() {
        let mut bytes = Vec::new();
        bytes.extend_from_slice(&MARK);
        bytes.put_u64_le(1);
        bytes.put_u32_le(1);
        bytes.put_u32_le(MAX_ERROR_TEXT_BYTES as u32 + 1);
        bytes.resize(bytes.len() + MAX_ERROR_TEXT_BYTES + 1, b' ');
        assert_eq!(heads(bytes), []);
    }
}
