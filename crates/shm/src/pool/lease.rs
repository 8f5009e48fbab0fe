//! Memory of a pool in use: being filled, or being read.

use std::sync::Arc;

use broadleaf_proto::SegmentId;

use crate::copy::copy;
use crate::{Segment, ShmError, WritableMapping, platform};

#[derive(Debug)]
pub(crate) struct Memory {
    pub segment: Segment,
    pub mapping: WritableMapping,
    /// How far it has pages; nothing is written or read beyond.
    has_bytes: u64,
}

/// Bytes whose pages are taken at a time while a segment is written in order: a few milliseconds of new memory.
const PAGES_STEP_BYTES: u64 = 8 * 1024 * 1024;

/// The memory that a lease writes to.
#[derive(Debug)]
pub(crate) enum Holds {
    /// A new segment, made when it is filled.
    Nothing,
    /// All of a segment.
    Whole(Memory),
    /// A range of a segment, from this byte on, that belongs to nobody else.
    Part(Arc<Memory>, u64),
}

/// Memory to fill: the only way to write to it. Filling a segment, or taking memory for a new one, needs no access to
/// the pool, so a large copy holds no lock. Give it back with [`crate::Pool::publish`] or [`crate::Pool::cancel`].
#[derive(Debug)]
#[must_use = "a lease that is neither published nor cancelled occupies its pool"]
pub struct Lease {
    pub(crate) id: SegmentId,
    pub(crate) size: u64,
    pub(crate) len_bytes: u64,
    pub(crate) memory: Holds,
    /// Number of bytes that the pool copied since the segment was last written.
    pub(crate) since_bytes: u64,
    pub(crate) copied: bool,
    /// What is left of the segment is for other buffers.
    pub(crate) is_slab: bool,
    pub(crate) open: bool,
}

impl Lease {
    /// The segment.
    pub fn id(&self) -> SegmentId {
        self.id
    }

    /// The segment's memory, once it has been taken: for readers who know which part of it is filled.
    pub fn segment(&self) -> Option<&Segment> {
        match &self.memory {
            Holds::Nothing => None,
            Holds::Whole(memory) => Some(&memory.segment),
            Holds::Part(memory, _) => Some(&memory.segment),
        }
    }

    /// Copies a buffer of the requested length into the segment: the only copy that a payload costs.
    ///
    /// # Errors
    /// [`ShmError::OutOfMemory`], [`ShmError::DescriptorsShort`], [`ShmError::System`]: cancel the lease.
    /// [`ShmError::SizeMismatch`] for a buffer of another length.
    pub fn fill(&mut self, bytes: &[u8]) -> Result<(), ShmError> {
        if bytes.len() as u64 != self.len_bytes {
            return Err(ShmError::SizeMismatch {
                claimed_bytes: self.len_bytes,
                actual_bytes: bytes.len() as u64,
            });
        }
        if matches!(self.memory, Holds::Nothing) {
            self.memory = Holds::Whole(Memory::create(self.size, bytes, self.open)?);
        } else {
            let since_bytes = self.since_bytes;
            copy(self.as_mut_slice()?, bytes, since_bytes);
        }
        self.copied = true;
        Ok(())
    }

    /// The requested bytes, to write in place. A reused segment still has its last content.
    ///
    /// # Errors
    /// [`ShmError::OutOfMemory`], [`ShmError::DescriptorsShort`], [`ShmError::System`]: cancel the lease.
    pub fn as_mut_slice(&mut self) -> Result<&mut [u8], ShmError> {
        match &mut self.memory {
            Holds::Nothing => {
                self.memory = Holds::Whole(Memory::create(self.size, &[], self.open)?);
            }
            Holds::Whole(memory) => memory.take_pages(self.size)?,
            Holds::Part(..) => {}
        }
        let (mapping, start) = match &mut self.memory {
            Holds::Nothing => unreachable!("invariant: made above"),
            Holds::Whole(memory) => {
                return Ok(&mut memory.mapping.as_mut_slice()[..self.len_bytes as usize]);
            }
            Holds::Part(memory, offset_bytes) => (&memory.mapping, *offset_bytes as usize),
        };
        let part = mapping.part(start, self.len_bytes as usize);
        // SAFETY: a part of a mapping that lives as long as `self`, whose pool gives no byte of it to another lease
        // before this one, and every reference to the segment, is given up; `&mut self` excludes other borrows.
        Ok(unsafe { std::slice::from_raw_parts_mut(part, self.len_bytes as usize) })
    }
}

impl Lease {
    /// The first `len_bytes` of the requested bytes, to write in place: for bytes that are written in order, over some
    /// time. A new segment has memory so far, and a little further.
    ///
    /// # Errors
    /// As [`Lease::as_mut_slice`].
    ///
    /// # Panics
    /// When fewer bytes were requested.
    pub fn as_mut_slice_to(&mut self, len_bytes: usize) -> Result<&mut [u8], ShmError> {
        if matches!(self.memory, Holds::Nothing) && self.size > PAGES_STEP_BYTES {
            self.memory = Holds::Whole(Memory::create_empty(self.size, self.open)?);
        }
        if len_bytes == self.len_bytes as usize || !matches!(self.memory, Holds::Whole(_)) {
            return Ok(&mut self.as_mut_slice()?[..len_bytes]);
        }
        let Holds::Whole(memory) = &mut self.memory else {
            unreachable!("invariant: looked at above")
        };
        memory.take_pages(len_bytes as u64)?;
        Ok(&mut memory.mapping.as_mut_slice()[..len_bytes])
    }
}

impl Memory {
    /// Whether it has all its pages.
    pub(crate) fn is_whole(&self) -> bool {
        self.has_bytes == self.segment.len()
    }

    fn take_pages(&mut self, to_bytes: u64) -> Result<(), ShmError> {
        if to_bytes <= self.has_bytes {
            return Ok(());
        }
        let to_bytes = to_bytes
            .next_multiple_of(PAGES_STEP_BYTES)
            .min(self.segment.len());
        self.mapping
            .take_pages(&self.segment, self.has_bytes, to_bytes)?;
        self.has_bytes = to_bytes;
        Ok(())
    }

    fn create_empty(size: u64, open: bool) -> Result<Self, ShmError> {
        let (segment, mapping) = Segment::create_empty(size)?;
        if !open {
            platform::seal_contents(segment.fd())?;
        }
        Self::new(segment, mapping, 0)
    }

    fn create(size: u64, content: &[u8], open: bool) -> Result<Self, ShmError> {
        let (segment, mapping) = if open {
            Segment::create_unsealed(size, content)?
        } else {
            Segment::create(size, content)?
        };
        let has_bytes = segment.len();
        Self::new(segment, mapping, has_bytes)
    }

    fn new(segment: Segment, mapping: WritableMapping, has_bytes: u64) -> Result<Self, ShmError> {
        // The last descriptors are reserved for essential uses.
        if platform::is_among_last_descriptors(segment.fd()) {
            return Err(ShmError::DescriptorsShort);
        }
        Ok(Self {
            segment,
            mapping,
            has_bytes,
        })
    }
}

/// The bytes of a referenced range, readable without the pool. Drop it before releasing that reference.
#[derive(Debug)]
pub struct Reading {
    pub(crate) memory: Arc<Memory>,
    pub(crate) start: usize,
    pub(crate) end: usize,
}

impl Reading {
    /// Whether the range holds these bytes.
    pub fn equals(&self, bytes: &[u8]) -> bool {
        self.memory.mapping.as_slice()[self.start..self.end] == *bytes
    }
}
