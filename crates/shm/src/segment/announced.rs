//! A segment of another process, as held by a process that was told of it.

use std::os::fd::{BorrowedFd, OwnedFd};

use crate::{Mapping, Segment, ShmError, platform};

/// Larger segments keep their descriptor in any case: there cannot be many, and copying them is expensive.
const MAX_COPIED_BYTES: u64 = 16 * 1024 * 1024;

/// A segment by its descriptor or, if descriptors are short, by a view of its bytes, which are then copied for everyone
/// who wants them.
#[derive(Debug)]
pub enum Announced {
    /// Can be mapped, and passed on.
    Open(Segment),
    /// Can be copied from.
    Mapped(Mapping),
}

impl Announced {
    /// A segment received from its owner, who says it has `claimed_len_bytes`.
    ///
    /// # Errors
    /// As [`Segment::from_fd`]; as [`Segment::map_readonly`] if descriptors are short.
    pub fn new(fd: OwnedFd, claimed_len_bytes: u64) -> Result<Self, ShmError> {
        let segment = Segment::from_fd(fd, claimed_len_bytes)?;
        let copied = segment.len() <= MAX_COPIED_BYTES;
        if copied && platform::is_among_last_descriptors(segment.fd()) {
            return segment.map_readonly(0, segment.len()).map(Self::Mapped);
        }
        Ok(Self::Open(segment))
    }

    /// The segment, if its descriptor exists.
    pub fn segment(&self) -> Option<&Segment> {
        match self {
            Self::Open(segment) => Some(segment),
            Self::Mapped(_) => None,
        }
    }

    /// Its descriptor, if there is one.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.segment().map(Segment::fd)
    }

    /// Gives up everything but the descriptor.
    pub fn into_fd(self) -> Option<OwnedFd> {
        match self {
            Self::Open(segment) => Some(segment.into_fd()),
            Self::Mapped(_) => None,
        }
    }

    /// Size in bytes.
    #[expect(clippy::len_without_is_empty, reason = "a segment is never empty")]
    pub fn len(&self) -> u64 {
        match self {
            Self::Open(segment) => segment.len(),
            Self::Mapped(mapping) => mapping.len() as u64,
        }
    }

    /// As [`Segment::read`].
    ///
    /// # Errors
    /// As [`Segment::read`].
    pub fn read(&self, offset_bytes: u64, into: &mut [u8]) -> Result<(), ShmError> {
        match self {
            Self::Open(segment) => segment.read(offset_bytes, into),
            Self::Mapped(mapping) => {
                into.copy_from_slice(mapping.range(offset_bytes, into.len() as u64)?);
                Ok(())
            }
        }
    }

    /// As [`Segment::map_private`].
    ///
    /// # Errors
    /// As [`Segment::map_private`].
    pub fn map_private(&self, offset_bytes: u64, len_bytes: u64) -> Result<Mapping, ShmError> {
        match self {
            Self::Open(segment) => segment.map_private(offset_bytes, len_bytes),
            Self::Mapped(mapping) => mapping.copy(offset_bytes, len_bytes),
        }
    }

    /// As [`Segment::map_readonly`].
    ///
    /// # Errors
    /// As [`Segment::map_readonly`].
    pub fn map_readonly(&self, offset_bytes: u64, len_bytes: u64) -> Result<Mapping, ShmError> {
        match self {
            Self::Open(segment) => segment.map_readonly(offset_bytes, len_bytes),
            Self::Mapped(mapping) => mapping
                .copy(offset_bytes, len_bytes)
                .map(Mapping::into_readonly),
        }
    }

    /// As [`Segment::map_shared`].
    ///
    /// # Errors
    /// As [`Segment::map_shared`]; [`ShmError::DescriptorsShort`] if there is only a view.
    pub fn map_shared(&self, offset_bytes: u64, len_bytes: u64) -> Result<Mapping, ShmError> {
        let segment = self.segment().ok_or(ShmError::DescriptorsShort)?;
        segment.map_shared(offset_bytes, len_bytes)
    }
}
