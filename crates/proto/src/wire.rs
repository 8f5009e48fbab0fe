//! Reads little-endian records from a received frame without copying.

use std::fmt;
use std::marker::PhantomData;

use bytes::{Buf, Bytes};
use serde::de::{Deserialize, Deserializer, Error, SeqAccess, Visitor};

/// Why bytes were refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// A frame kind that this version does not know.
    #[error("unknown frame kind {0}")]
    UnknownKind(u8),
    /// A status byte that this version does not know.
    #[error("unknown task status {0}")]
    UnknownStatus(u8),
    /// The header's reserved byte is not zero.
    #[error("reserved header byte is not zero")]
    ReservedNotZero,
    /// A claimed length is above its limit.
    #[error("length {claimed} is above the limit of {limit}")]
    TooLong {
        /// What the peer claimed.
        claimed: u64,
        /// The maximum that it may claim.
        limit: u64,
    },
    /// The body ends inside a record.
    #[error("frame ends inside a record")]
    Truncated,
    /// A message or record that does not decode.
    #[error("malformed message")]
    Malformed,
}

/// A cursor over one frame's body.
#[derive(Debug)]
pub struct Reader(Bytes);

impl Reader {
    /// Starts at the body's first byte.
    pub fn new(body: Bytes) -> Self {
        Self(body)
    }
    /// Whether every byte was read.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
    /// The next `n` bytes, sharing the frame's memory.
    ///
    /// # Errors
    /// [`DecodeError::Truncated`] if fewer are left.
    pub fn bytes(&mut self, n: usize) -> Result<Bytes, DecodeError> {
        if self.0.len() < n {
            return Err(DecodeError::Truncated);
        }
        Ok(self.0.split_to(n))
    }
    /// # Errors
    /// [`DecodeError::Truncated`] at the end of the body.
    pub fn u8(&mut self) -> Result<u8, DecodeError> {
        self.0.try_get_u8().map_err(|_| DecodeError::Truncated)
    }
    /// # Errors
    /// [`DecodeError::Truncated`] at the end of the body.
    pub fn u16(&mut self) -> Result<u16, DecodeError> {
        self.0.try_get_u16_le().map_err(|_| DecodeError::Truncated)
    }
    /// # Errors
    /// [`DecodeError::Truncated`] at the end of the body.
    pub fn u32(&mut self) -> Result<u32, DecodeError> {
        self.0.try_get_u32_le().map_err(|_| DecodeError::Truncated)
    }
    /// # Errors
    /// [`DecodeError::Truncated`] at the end of the body.
    pub fn u64(&mut self) -> Result<u64, DecodeError> {
        self.0.try_get_u64_le().map_err(|_| DecodeError::Truncated)
    }
}

/// Reads a list of at most `MAX` elements, for `deserialize_with`: longer ones are refused before
/// memory is allocated.
///
/// # Errors
/// The deserializer's, and one for a list that is too long.
pub fn at_most<'de, D: Deserializer<'de>, T: Deserialize<'de>, const MAX: usize>(
    deserializer: D,
) -> Result<Vec<T>, D::Error> {
    struct List<T, const MAX: usize>(PhantomData<T>);

    impl<'de, T: Deserialize<'de>, const MAX: usize> Visitor<'de> for List<T, MAX> {
        type Value = Vec<T>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "at most {MAX} elements")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<Vec<T>, A::Error> {
            let mut list = Vec::new();
            while let Some(element) = elements.next_element()? {
                if list.len() >= MAX {
                    return Err(A::Error::custom("too many elements"));
                }
                list.push(element);
            }
            Ok(list)
        }
    }

    deserializer.deserialize_seq(List::<T, MAX>(PhantomData))
}
