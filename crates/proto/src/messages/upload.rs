//! Arguments that a client on another host sends ahead of the record that names them.

use bytes::Bytes;

use crate::ids::SegmentId;
use crate::limits::CHUNK_BYTES;
use crate::records::task::check;
use crate::wire::{DecodeError, Reader};

/// A part of an upload, which follows the previous part; one per frame.
///
/// The record names the upload as a segment, by the number that the client gave it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UploadChunk {
    /// The client's number for the upload.
    pub upload: SegmentId,
    /// Length of the whole upload.
    pub len_bytes: u64,
    /// The bytes.
    pub bytes: Bytes,
}

impl UploadChunk {
    /// Maximum size of a part.
    pub const MAX_BYTES: usize = CHUNK_BYTES.1 as usize;
    /// Size of a frame's body before the bytes.
    const HEAD_BYTES: usize = 16;

    /// What precedes the bytes in a frame's body.
    pub fn head(upload: SegmentId, len_bytes: u64) -> [u8; Self::HEAD_BYTES] {
        let mut head = [0; Self::HEAD_BYTES];
        head[..8].copy_from_slice(&upload.0.to_le_bytes());
        head[8..].copy_from_slice(&len_bytes.to_le_bytes());
        head
    }

    /// Reads a frame's body.
    ///
    /// # Errors
    /// [`DecodeError`] if it is truncated or empty, or longer than a part may be.
    pub fn decode(body: Bytes) -> Result<Self, DecodeError> {
        let len = body.len().saturating_sub(Self::HEAD_BYTES);
        check(len, Self::MAX_BYTES)?;
        let mut r = Reader::new(body);
        let chunk = Self {
            upload: SegmentId(r.u64()?),
            len_bytes: r.u64()?,
            bytes: r.bytes(len)?,
        };
        if chunk.bytes.is_empty() {
            return Err(DecodeError::Malformed);
        }
        Ok(chunk)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn body(bytes: &[u8]) -> Bytes {
        let head = UploadChunk::head(SegmentId(7), 1 << 40);
        [&head, bytes].concat().into()
    }

    #[test]
    fn a_part_is_read_as_it_was_written() {
        let chunk = UploadChunk::decode(body(b"abc")).unwrap();
        assert_eq!((chunk.upload, chunk.len_bytes), (SegmentId(7), 1 << 40));
        assert_eq!(&chunk.bytes[..], b"abc");
    }

    #[test]
    fn no_part_is_empty_or_too_long() {
        assert_eq!(UploadChunk::decode(body(b"")), Err(DecodeError::Malformed));
        let long = body(&vec![0; UploadChunk::MAX_BYTES + 1]);
        assert!(matches!(
            UploadChunk::decode(long),
            Err(DecodeError::TooLong { .. })
        ));
        let short = body(b"abc").slice(..12);
        assert_eq!(UploadChunk::decode(short), Err(DecodeError::Truncated));
    }
}
