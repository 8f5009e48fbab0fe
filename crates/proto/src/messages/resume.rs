//! Links that outlive their connection.
//!
//! Each side of such a link counts the bytes of frames that it has received since the welcome, and keeps what it has sent
//! until the other side says that it has it. When a connection breaks, the side that dialled dials again and names the
//! link by its [`SessionKey`]. The listener answers how much it has received and reads nothing more from the old
//! connection; then the dialler says the same of itself. Each continues at the first byte that the other one lacks, so
//! every frame arrives once, in order.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::wire::DecodeError;

/// Names a link to the listener, and proves that the dialler is the one that opened it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct SessionKey(pub [u8; 16]);

impl fmt::Debug for SessionKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SessionKey").finish_non_exhaustive()
    }
}

/// How many bytes of the link its sender has received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received(pub u64);

impl Received {
    /// The body of its frame.
    pub fn encode(self) -> [u8; 8] {
        self.0.to_le_bytes()
    }

    /// Reads the body of a frame.
    ///
    /// # Errors
    /// [`DecodeError::Malformed`] if that is not a number.
    pub fn decode(body: &[u8]) -> Result<Self, DecodeError> {
        let bytes = body.try_into().map_err(|_| DecodeError::Malformed)?;
        Ok(Self(u64::from_le_bytes(bytes)))
    }
}
