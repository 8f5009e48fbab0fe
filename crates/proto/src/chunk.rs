//! Chunks of objects on their way between hosts.

use std::fmt;

use bytes::{BufMut, Bytes};
use serde::{Deserialize, Serialize};

use crate::ids::ObjectId;
use crate::limits::CHUNK_BYTES;
use crate::records::task::check;
use crate::wire::{DecodeError, Reader};

/// The secret from which the keys of all payload of a cluster are derived. It exists only in the
/// memory of the cluster's nodes.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PayloadSecret(pub [u8; 32]);

impl fmt::Debug for PayloadSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PayloadSecret").finish_non_exhaustive()
    }
}

/// A chunk of an object on a connection without encryption; one per frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chunk {
    /// The object.
    pub object: ObjectId,
    /// The pull that it answers.
    pub pull: u32,
    /// CRC-32C of the bytes, as computed by the object's origin.
    pub checksum: u32,
    /// Where they belong.
    pub offset_bytes: u64,
    /// The bytes.
    pub bytes: Bytes,
}

impl Chunk {
    /// Size of a chunk's frame before its content.
    pub const HEAD_BYTES: usize = 24;

    /// Appends everything before the content.
    pub fn encode_head(
        object: ObjectId,
        pull: u32,
        checksum: u32,
        offset_bytes: u64,
        out: &mut impl BufMut,
    ) {
        out.put_u64_le(object.0);
        out.put_u32_le(pull);
        out.put_u32_le(checksum);
        out.put_u64_le(offset_bytes);
    }

    /// Reads a frame's body.
    ///
    /// # Errors
    /// [`DecodeError`] if it is not a chunk, or is longer than a chunk may be.
    pub fn decode(body: Bytes) -> Result<Self, DecodeError> {
        let len = body.len().saturating_sub(Self::HEAD_BYTES);
        check(len, CHUNK_BYTES.1 as usize)?;
        let mut r = Reader::new(body);
        Ok(Self {
            object: ObjectId(r.u64()?),
            pull: r.u32()?,
            checksum: r.u32()?,
            offset_bytes: r.u64()?,
            bytes: r.bytes(len)?,
        })
    }
}

/// Describes a chunk of an object that was sealed once for all hosts, besides its ciphertext.
///
/// A host that forwards it changes the pull and passes on the rest unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SealedHead {
    /// The object.
    pub object: ObjectId,
    /// Where the bytes belong.
    pub offset_bytes: u64,
    /// The pull that it answers.
    pub pull: u32,
    /// Never the same twice under one object's key.
    pub nonce: [u8; 12],
    /// Proof that a node of the cluster sealed these bytes of this object.
    pub tag: [u8; 16],
}

impl SealedHead {
    /// Its size.
    const BYTES: usize = 48;

    /// What the tag proves besides the bytes: where they belong.
    pub fn position(&self) -> [u8; 16] {
        let mut position = [0; 16];
        position[..8].copy_from_slice(&self.object.0.to_le_bytes());
        position[8..].copy_from_slice(&self.offset_bytes.to_le_bytes());
        position
    }
}

/// A sealed chunk on an encrypted connection, where it travels between the TLS records: mark,
/// length, head, ciphertext.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    /// Describes the ciphertext.
    pub head: SealedHead,
    /// Its length.
    pub len_bytes: u32,
}

impl Block {
    /// First byte of a block. No TLS record begins with it (RFC 8446, appendix B.1).
    pub const MARK: u8 = 0xb1;
    /// Size of a block before its ciphertext.
    pub const HEADER_BYTES: usize = 5 + SealedHead::BYTES;

    /// The bytes before the ciphertext.
    pub fn encode_header(&self) -> [u8; Self::HEADER_BYTES] {
        let mut out = [0; Self::HEADER_BYTES];
        out[0] = Self::MARK;
        out[1..5].copy_from_slice(&self.len_bytes.to_le_bytes());
        out[5..21].copy_from_slice(&self.head.position());
        out[21..25].copy_from_slice(&self.head.pull.to_le_bytes());
        out[25..37].copy_from_slice(&self.head.nonce);
        out[37..].copy_from_slice(&self.head.tag);
        out
    }

    /// Reads a header after its mark.
    ///
    /// # Errors
    /// [`DecodeError::TooLong`] if the ciphertext is claimed to be longer than `limit_bytes`.
    pub fn decode_header(
        header: &[u8; Self::HEADER_BYTES],
        limit_bytes: usize,
    ) -> Result<Self, DecodeError> {
        let (mut length, mut object, mut offset, mut pull) = ([0; 4], [0; 8], [0; 8], [0; 4]);
        let (mut nonce, mut tag) = ([0; 12], [0; 16]);
        length.copy_from_slice(&header[1..5]);
        object.copy_from_slice(&header[5..13]);
        offset.copy_from_slice(&header[13..21]);
        pull.copy_from_slice(&header[21..25]);
        nonce.copy_from_slice(&header[25..37]);
        tag.copy_from_slice(&header[37..]);
        let len_bytes = u32::from_le_bytes(length);
        check(len_bytes as usize, limit_bytes)?;
        Ok(Self {
            head: SealedHead {
                object: ObjectId(u64::from_le_bytes(object)),
                offset_bytes: u64::from_le_bytes(offset),
                pull: u32::from_le_bytes(pull),
                nonce,
                tag,
            },
            len_bytes,
        })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // a test fails by panicking
mod tests {
    use super::*;

    #[test]
    fn claimed_lengths_are_limited() {
        let body = vec![0; Chunk::HEAD_BYTES + CHUNK_BYTES.1 as usize + 1];
        assert!(matches!(
            Chunk::decode(body.into()),
            Err(DecodeError::TooLong { .. })
        ));
        assert!(Chunk::decode(Bytes::from_static(&[0; 23])).is_err());
    }

    #[test]
    fn a_block_is_read_as_it_was_written() {
        let block = Block {
            head: SealedHead {
                object: ObjectId(1 << 50 | 3),
                offset_bytes: 1 << 33,
                pull: 7,
                nonce: [5; 12],
                tag: [6; 16],
            },
            len_bytes: 1 << 20,
        };
        let header = block.encode_header();
        assert_eq!(header[0], Block::MARK);
        assert_eq!(Block::decode_header(&header, 1 << 20), Ok(block));
        assert!(matches!(
            Block::decode_header(&header, (1 << 20) - 1),
            Err(DecodeError::TooLong { .. })
        ));
    }

    #[test]
    fn a_secret_does_not_show_itself() {
        assert_eq!(
            format!("{:?}", PayloadSecret([77; 32])),
            "PayloadSecret { .. }"
        );
    }
}
