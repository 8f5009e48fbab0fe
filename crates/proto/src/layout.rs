//! The byte layout of a payload. Clients and engines write and read it; a relay needs it only to
//! pass a payload that lies in shared segments to a peer on another host.
//!
//! ```text
//! (empty)                                no arguments, or None
//! 1, compact encoding                    small values
//! 2, n u32, n x (delivery u8, length u64), length of value u32, value, inline buffers in order
//! ```
//!
//! A value that has buffers is a pickle, whose first byte is 0x80, or again a 1 and a compact
//! encoding. [`ValueHead`] describes what may come before it.

use crate::wire::DecodeError;

/// First byte of a payload in the compact encoding.
pub const PLAIN: u8 = 1;
/// First byte of a payload of a value and its buffers.
pub const COMPOUND: u8 = 2;
/// A buffer that follows the value.
pub const INLINE: u8 = 0;
/// A buffer that lies in the payload's next segment; its reader gets a writable view of its own.
pub const IN_SEGMENT: u8 = 1;
/// The same, but readers cannot write.
pub const IN_SEGMENT_READONLY: u8 = 2;
/// The same, but all readers of this host see what any of them writes.
pub const IN_SEGMENT_SHARED: u8 = 3;
/// A buffer that follows the value and that readers cannot write.
pub const INLINE_READONLY: u8 = 4;
/// A buffer that follows the value, on its way to a host that puts it into a segment shared by its
/// readers.
pub const INLINE_SHARED: u8 = 5;
/// Size of one entry of the table of buffers.
pub const ENTRY_BYTES: usize = 9;

/// What the readers of a payload's buffers may do with them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Delivery {
    /// Each has an ordinary writable buffer of its own.
    #[default]
    Private,
    /// Nobody can write.
    Readonly,
    /// All readers of a host share one buffer, and see what any of them writes.
    Shared,
}

impl Delivery {
    /// The code for a buffer that travels inline.
    pub fn inline(self) -> u8 {
        match self {
            Self::Private => INLINE,
            Self::Readonly => INLINE_READONLY,
            Self::Shared => INLINE_SHARED,
        }
    }

    /// The code for a buffer in a segment.
    pub fn in_segment(self) -> u8 {
        match self {
            Self::Private => IN_SEGMENT,
            Self::Readonly => IN_SEGMENT_READONLY,
            Self::Shared => IN_SEGMENT_SHARED,
        }
    }

    /// Where a buffer is, and how it is delivered.
    ///
    /// # Errors
    /// [`DecodeError::Malformed`] for a byte that is not such a code.
    pub fn of(byte: u8) -> Result<(bool, Self), DecodeError> {
        Ok(match byte {
            INLINE => (true, Self::Private),
            INLINE_READONLY => (true, Self::Readonly),
            INLINE_SHARED => (true, Self::Shared),
            IN_SEGMENT => (false, Self::Private),
            IN_SEGMENT_READONLY => (false, Self::Readonly),
            IN_SEGMENT_SHARED => (false, Self::Shared),
            _ => return Err(DecodeError::Malformed),
        })
    }
}

/// A payload of a value and its buffers, taken apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Compound<'a> {
    /// Location and length of each buffer.
    pub buffers: Vec<(u8, u64)>,
    /// The value without them.
    pub value: &'a [u8],
    /// The inline buffers, one after the other.
    pub inline: &'a [u8],
}

impl<'a> Compound<'a> {
    /// Takes a payload apart.
    ///
    /// # Errors
    /// [`DecodeError`] if the bytes are not one, or inline buffers are missing.
    pub fn decode(bytes: &'a [u8]) -> Result<Self, DecodeError> {
        let mut rest = bytes;
        let mut take = |n: usize| rest.split_off(..n).ok_or(DecodeError::Truncated);
        if take(1)? != [COMPOUND] {
            return Err(DecodeError::Malformed);
        }
        let n = u32_of(take(4)?);
        let table = take(n.checked_mul(ENTRY_BYTES).ok_or(DecodeError::Truncated)?)?;
        let buffers = table
            .chunks_exact(ENTRY_BYTES)
            .map(|entry| (entry[0], u64_of(&entry[1..])))
            .collect::<Vec<_>>();
        let value_len = u32_of(take(4)?);
        let value = take(value_len)?;
        let mut inline_bytes = 0_u64;
        for (delivery, len) in &buffers {
            if Delivery::of(*delivery)?.0 {
                let sum = inline_bytes.checked_add(*len);
                inline_bytes = sum.ok_or(DecodeError::Truncated)?;
            }
        }
        if inline_bytes == rest.len() as u64 {
            Ok(Self {
                buffers,
                value,
                inline: rest,
            })
        } else {
            Err(DecodeError::Truncated)
        }
    }

    /// The payload's bytes with some buffers in segments, as `ranges` says, and `inline`, in order,
    /// after the value.
    pub fn with_ranges(
        &self,
        ranges: &[Option<crate::records::task::SegmentRef>],
        inline: &[&[u8]],
    ) -> Vec<u8> {
        let mut out = vec![COMPOUND];
        out.extend_from_slice(&(self.buffers.len() as u32).to_le_bytes());
        for ((before, len), range) in self.buffers.iter().zip(ranges) {
            let delivery = Delivery::of(*before).map(|(_, delivery)| delivery);
            let delivery = delivery.unwrap_or_default();
            out.push(match range {
                Some(_) => delivery.in_segment(),
                None => delivery.inline(),
            });
            out.extend_from_slice(&len.to_le_bytes());
        }
        out.extend_from_slice(&(self.value.len() as u32).to_le_bytes());
        out.extend_from_slice(self.value);
        for bytes in inline {
            out.extend_from_slice(bytes);
        }
        out
    }

    /// The payload with every buffer inline; `segments` are the bytes of those that were not, in order.
    ///
    /// # Errors
    /// [`DecodeError::Malformed`] if they do not match the table.
    pub fn with_all_inline(&self, segments: &[&[u8]]) -> Result<Vec<u8>, DecodeError> {
        // The actual content counts, not what the table claims.
        let in_segments: usize = segments.iter().map(|bytes| bytes.len()).sum();
        let table = (self.buffers.len() + 1) * ENTRY_BYTES;
        let total = table + self.value.len() + self.inline.len() + in_segments;
        let mut segments = segments.iter();
        let mut inline = self.inline;
        let mut out = Vec::with_capacity(total);
        out.push(COMPOUND);
        out.extend_from_slice(&(self.buffers.len() as u32).to_le_bytes());
        for (delivery, len) in &self.buffers {
            out.push(Delivery::of(*delivery)?.1.inline());
            out.extend_from_slice(&len.to_le_bytes());
        }
        out.extend_from_slice(&(self.value.len() as u32).to_le_bytes());
        out.extend_from_slice(self.value);
        for (delivery, len) in &self.buffers {
            let bytes = if Delivery::of(*delivery)?.0 {
                inline
                    .split_off(..*len as usize)
                    .ok_or(DecodeError::Malformed)?
            } else {
                segments
                    .next()
                    .filter(|s| s.len() as u64 == *len)
                    .ok_or(DecodeError::Malformed)?
            };
            out.extend_from_slice(bytes);
        }
        Ok(out)
    }
}

/// Starts a [`ValueHead`]. No value begins with this byte.
const HEAD: u8 = 2;

/// Precedes a value whose buffers are not all its own, or not all separate:
///
/// ```text
/// 2, n captured u32, value out of band u8, n packed u32, n packed x (index u32, length u64)
/// ```
///
/// The table of buffers then holds, in this order: the separate buffers, the pack, the value.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ValueHead {
    /// This many of the first buffers do not belong to the value: the function of the call captured
    /// them.
    pub n_captured: usize,
    /// The value is the last buffer, and nothing follows here.
    pub is_out_of_band: bool,
    /// Index and length of each buffer in the pack, ascending.
    pub packed: Vec<(u32, u64)>,
}

impl ValueHead {
    /// Appends it, unless it is empty.
    pub fn encode(&self, out: &mut Vec<u8>) {
        if *self == Self::default() {
            return;
        }
        out.push(HEAD);
        out.extend_from_slice(&(self.n_captured as u32).to_le_bytes());
        out.push(u8::from(self.is_out_of_band));
        out.extend_from_slice(&(self.packed.len() as u32).to_le_bytes());
        for (index, len) in &self.packed {
            out.extend_from_slice(&index.to_le_bytes());
            out.extend_from_slice(&len.to_le_bytes());
        }
    }

    /// Removes it from the front of a compound's value; the rest is the value, or nothing if that
    /// is the last buffer.
    ///
    /// # Errors
    /// [`DecodeError`] if it is truncated, or its indices are out of order.
    pub fn decode(value: &[u8]) -> Result<(Self, &[u8]), DecodeError> {
        let Some((&HEAD, mut rest)) = value.split_first() else {
            return Ok((Self::default(), value));
        };
        let mut take = |n: usize| rest.split_off(..n).ok_or(DecodeError::Truncated);
        let n_captured = u32_of(take(4)?);
        let is_out_of_band = match take(1)? {
            [0] => false,
            [1] => true,
            _ => return Err(DecodeError::Malformed),
        };
        let n_packed = u32_of(take(4)?);
        let entries = n_packed.checked_mul(PACKED_BYTES);
        let entries = take(entries.ok_or(DecodeError::Truncated)?)?;
        let packed: Vec<(u32, u64)> = entries
            .chunks_exact(PACKED_BYTES)
            .map(|entry| (u32_of(&entry[..4]) as u32, u64_of(&entry[4..])))
            .collect();
        if !packed.is_sorted_by(|a, b| a.0 < b.0) {
            return Err(DecodeError::Malformed);
        }
        let head = Self {
            n_captured,
            is_out_of_band,
            packed,
        };
        Ok((head, rest))
    }
}

/// Size of one entry of a pack.
const PACKED_BYTES: usize = 12;
/// Buffers in a pack start at multiples of this, as arrays do in memory.
const PACK_ALIGNMENT: u64 = 64;

/// Where the buffers of a pack start, given their lengths, and the pack's length.
///
/// # Errors
/// [`DecodeError::Malformed`] if the sum of the lengths overflows.
pub fn pack_offsets(lengths: impl Iterator<Item = u64>) -> Result<(Vec<u64>, u64), DecodeError> {
    let mut end = 0_u64;
    let mut offsets = Vec::with_capacity(lengths.size_hint().0);
    for len in lengths {
        let start = end.checked_next_multiple_of(PACK_ALIGNMENT);
        let start = start.ok_or(DecodeError::Malformed)?;
        offsets.push(start);
        end = start.checked_add(len).ok_or(DecodeError::Malformed)?;
    }
    Ok((offsets, end))
}

fn u32_of(bytes: &[u8]) -> usize {
    bytes.iter().rev().fold(0, |n, b| n << 8 | usize::from(*b))
}

fn u64_of(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |n, b| n << 8 | u64::from(*b))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn payload(buffers: &[(u8, u64)], value: &[u8], inline: &[u8]) -> Vec<u8> {
        let mut out = vec![COMPOUND];
        out.extend((buffers.len() as u32).to_le_bytes());
        for (delivery, len) in buffers {
            out.push(*delivery);
            out.extend(len.to_le_bytes());
        }
        out.extend((value.len() as u32).to_le_bytes());
        out.extend(value);
        out.extend(inline);
        out
    }

    #[test]
    fn segments_move_inline_in_their_order() {
        let bytes = payload(&[(INLINE, 2), (IN_SEGMENT, 3), (INLINE, 1)], b"p", b"abz");
        let inlined = Compound::decode(&bytes)
            .unwrap()
            .with_all_inline(&[b"XYZ"])
            .unwrap();
        assert_eq!(
            inlined,
            payload(&[(INLINE, 2), (INLINE, 3), (INLINE, 1)], b"p", b"abXYZz")
        );
    }

    #[test]
    fn no_memory_is_taken_for_what_a_table_claims() {
        let claims = [(IN_SEGMENT, u64::MAX / 2), (IN_SEGMENT, 1 << 40)];
        let bytes = payload(&claims, b"p", b"");
        let compound = Compound::decode(&bytes).unwrap();
        assert_eq!(compound.with_all_inline(&[]), Err(DecodeError::Malformed));
        assert_eq!(
            compound.with_all_inline(&[b"a", b"b"]),
            Err(DecodeError::Malformed)
        );
    }

    #[test]
    fn a_head_that_says_nothing_takes_no_bytes() {
        let mut bytes = Vec::new();
        ValueHead::default().encode(&mut bytes);
        assert!(bytes.is_empty());
        assert_eq!(
            ValueHead::decode(b"\x80pickle"),
            Ok((ValueHead::default(), &b"\x80pickle"[..]))
        );
    }

    #[test]
    fn a_head_comes_back_and_is_refused_in_part() {
        let head = ValueHead {
            n_captured: 3,
            is_out_of_band: true,
            packed: vec![(0, 5), (7, 1 << 40)],
        };
        let mut bytes = Vec::new();
        head.encode(&mut bytes);
        for end in 1..bytes.len() {
            assert!(ValueHead::decode(&bytes[..end]).is_err(), "{end}");
        }
        bytes.extend_from_slice(b"rest");
        assert_eq!(ValueHead::decode(&bytes), Ok((head, &b"rest"[..])));
        let mut twice = Vec::new();
        let packed = vec![(1, 5), (1, 6)];
        let same_index = ValueHead {
            packed,
            ..ValueHead::default()
        };
        same_index.encode(&mut twice);
        assert_eq!(ValueHead::decode(&twice), Err(DecodeError::Malformed));
    }

    #[test]
    fn buffers_in_a_pack_are_aligned() {
        let packed = pack_offsets([1, 64, 65, 0].into_iter());
        assert_eq!(packed, Ok((vec![0, 64, 128, 256], 256)));
        assert!(pack_offsets([u64::MAX, 1].into_iter()).is_err());
    }

    #[test]
    fn what_is_not_all_there_is_refused() {
        let bytes = payload(&[(INLINE, 2)], b"p", b"ab");
        for end in 0..bytes.len() {
            assert!(Compound::decode(&bytes[..end]).is_err(), "{end}");
        }
        let mut unknown_delivery = bytes.clone();
        unknown_delivery[5] = 7;
        assert_eq!(
            Compound::decode(&unknown_delivery),
            Err(DecodeError::Malformed)
        );
        let segment = payload(&[(IN_SEGMENT, 3)], b"p", b"");
        assert!(
            Compound::decode(&segment)
                .unwrap()
                .with_all_inline(&[b"four"])
                .is_err()
        );
    }
}
