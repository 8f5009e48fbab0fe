//! Pieces of objects on their way between hosts.

use std::fmt;

use bytes::{BufMut, Bytes};
use serde::{Deserialize, Serialize};

use crate::ids::ObjectId;
use crate::limits::CHUNK_BYTES;
use crate::task::check;
use crate::wire::{DecodeError, Reader};

/// What the keys of all payload of a cluster are made of. Only the memory of its nodes holds it.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PayloadSecret(pub [u8; 32]);

impl fmt::Debug for PayloadSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PayloadSecret").finish_non_exhaustive()
    }
}

/// A piece of an object on a connection without encryption; one to a frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chunk {
    /// The object.
    pub object: ObjectId,
    /// The pull that it answers.
    pub pull: u32,
    /// CRC-32C of the bytes, as made by the object's origin.
    pub checksum: u32,
    /// Where they belong.
    pub offset_bytes: u64,
    /// The bytes.
    pub bytes: Bytes,
}

impl Chunk {
    /// Bytes of a chunk's frame before its content.
    pub const HEAD_BYTES: usize = 24;

    /// Appends what comes before the content.
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

    /// Takes a frame's body.
    ///
    /// # Errors
    /// [`DecodeError`] when it is no chunk, or one longer than any may be.
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

/// What comes before the ciphertext of a piece of an object that was sealed once for all hosts; one to a block.
///
/// Hops change the pull and pass on the rest as it is.
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
    pub const BYTES: usize = 48;

    /// What the tag proves beside the bytes: where they belong.
    pub fn place(&self) -> [u8; 16] {
        let mut place = [0; 16];
        place[..8].copy_from_slice(&self.object.0.to_le_bytes());
        place[8..].copy_from_slice(&self.offset_bytes.to_le_bytes());
        place
    }

    /// Its bytes.
    pub fn encode(&self) -> [u8; Self::BYTES] {
        let mut out = [0; Self::BYTES];
        out[..16].copy_from_slice(&self.place());
        out[16..20].copy_from_slice(&self.pull.to_le_bytes());
        out[20..32].copy_from_slice(&self.nonce);
        out[32..].copy_from_slice(&self.tag);
        out
    }

    /// Cuts a block into head and ciphertext.
    ///
    /// # Errors
    /// [`DecodeError`] when it is shorter than a head, or longer than any block may be.
    pub fn split(block: &mut [u8]) -> Result<(Self, &mut [u8]), DecodeError> {
        check(
            block.len().saturating_sub(Self::BYTES),
            CHUNK_BYTES.1 as usize,
        )?;
        let (head, ciphertext) = block
            .split_first_chunk_mut::<{ Self::BYTES }>()
            .ok_or(DecodeError::Malformed)?;
        let (mut object, mut offset, mut pull) = ([0; 8], [0; 8], [0; 4]);
        let (mut nonce, mut tag) = ([0; 12], [0; 16]);
        object.copy_from_slice(&head[..8]);
        offset.copy_from_slice(&head[8..16]);
        pull.copy_from_slice(&head[16..20]);
        nonce.copy_from_slice(&head[20..32]);
        tag.copy_from_slice(&head[32..]);
        let head = Self {
            object: ObjectId(u64::from_le_bytes(object)),
            offset_bytes: u64::from_le_bytes(offset),
            pull: u32::from_le_bytes(pull),
            nonce,
            tag,
        };
        Ok((head, ciphertext))
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
        let mut block = vec![0; SealedHead::BYTES + CHUNK_BYTES.1 as usize + 1];
        assert!(matches!(
            SealedHead::split(&mut block),
            Err(DecodeError::TooLong { .. })
        ));
        assert!(SealedHead::split(&mut block[..SealedHead::BYTES - 1]).is_err());
    }

    #[test]
    fn a_sealed_head_is_read_as_it_was_written() {
        let head = SealedHead {
            object: ObjectId(1 << 50 | 3),
            offset_bytes: 1 << 33,
            pull: 7,
            nonce: [5; 12],
            tag: [6; 16],
        };
        let mut block = head.encode().to_vec();
        block.extend_from_slice(b"ciphertext");
        let (read, ciphertext) = SealedHead::split(&mut block).unwrap();
        assert_eq!(read, head);
        assert_eq!(ciphertext, b"ciphertext");
    }

    #[test]
    fn a_secret_does_not_show_itself() {
        assert_eq!(
            format!("{:?}", PayloadSecret([77; 32])),
            "PayloadSecret { .. }"
        );
    }
}
