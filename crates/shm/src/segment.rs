//! One piece of shared memory, and the ways to map it.

use std::ops::Deref;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use crate::ShmError;
use crate::platform::{self, Access, Region};

/// Shared memory whose size never changes and whose pages exist, so reading it never raises SIGBUS.
#[derive(Debug)]
pub struct Segment {
    fd: OwnedFd,
    len_bytes: u64,
}

impl Segment {
    /// New memory of at least `len_bytes`, rounded up to whole pages, that starts with `content` and is otherwise zero;
    /// and the only mapping that may ever write to it. Others can map it to read, or privately. `content` is copied
    /// once, faster than through the mapping.
    ///
    /// # Errors
    /// [`ShmError::BadSize`], [`ShmError::OutOfMemory`] or [`ShmError::System`].
    pub fn create(len_bytes: u64, content: &[u8]) -> Result<(Self, WritableMapping), ShmError> {
        let (segment, mapping) = Self::create_unsealed(len_bytes, content)?;
        platform::seal_contents(segment.fd())?;
        Ok((segment, mapping))
    }

    /// As [`Segment::create`], but open: others may also map it for writing.
    ///
    /// # Errors
    /// As [`Segment::create`].
    pub fn create_unsealed(
        len_bytes: u64,
        content: &[u8],
    ) -> Result<(Self, WritableMapping), ShmError> {
        let rounded = len_bytes.checked_next_multiple_of(platform::page_bytes());
        let fits = |n: &u64| *n >= content.len() as u64 && *n > 0 && i64::try_from(*n).is_ok();
        let len_bytes = rounded.filter(fits).ok_or(ShmError::BadSize(len_bytes))?;
        let fd = platform::create(len_bytes, content)?;
        let region = Region::map(fd.as_fd(), Access::SharedWrite, 0, len_bytes)?;
        // Pages with content take the cheaper way, and by now all pages have some.
        let written = if content.is_empty() { 0 } else { region.len() };
        platform::populate(&region, written)?;
        Ok((Self { fd, len_bytes }, WritableMapping { region }))
    }

    /// As [`Segment::create_unsealed`], but without pages: [`WritableMapping::take_pages`] takes some before they are
    /// written to. Nobody else may have the segment before it has all.
    ///
    /// # Errors
    /// As [`Segment::create`].
    pub(crate) fn create_empty(len_bytes: u64) -> Result<(Self, WritableMapping), ShmError> {
        let rounded = len_bytes.checked_next_multiple_of(platform::page_bytes());
        let fits = |n: &u64| *n > 0 && i64::try_from(*n).is_ok();
        let len_bytes = rounded.filter(fits).ok_or(ShmError::BadSize(len_bytes))?;
        let fd = platform::create_empty(len_bytes)?;
        let region = Region::map(fd.as_fd(), Access::SharedWrite, 0, len_bytes)?;
        Ok((Self { fd, len_bytes }, WritableMapping { region }))
    }

    /// New zeroed memory of at least `len_bytes`, rounded up to whole pages, that others may also map for writing: the
    /// memory of shared allocations and windows.
    ///
    /// # Errors
    /// As [`Segment::create`].
    pub fn create_open(len_bytes: u64) -> Result<Self, ShmError> {
        let rounded = len_bytes.checked_next_multiple_of(platform::page_bytes());
        let fits = |n: &u64| *n > 0 && i64::try_from(*n).is_ok();
        let len_bytes = rounded.filter(fits).ok_or(ShmError::BadSize(len_bytes))?;
        let fd = platform::create(len_bytes, &[])?;
        Ok(Self { fd, len_bytes })
    }

    /// A segment received from its owner, who says it has `claimed_len_bytes`.
    ///
    /// # Errors
    /// [`ShmError::NotSealed`] or [`ShmError::SizeMismatch`] if the descriptor could fault.
    pub fn from_fd(fd: OwnedFd, claimed_len_bytes: u64) -> Result<Self, ShmError> {
        let actual_bytes = platform::sealed_size(fd.as_fd())?;
        if actual_bytes < claimed_len_bytes {
            return Err(ShmError::SizeMismatch {
                claimed_bytes: claimed_len_bytes,
                actual_bytes,
            });
        }
        Ok(Self {
            fd,
            len_bytes: claimed_len_bytes,
        })
    }

    /// The descriptor, to be passed on.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Gives up everything but the descriptor.
    pub fn into_fd(self) -> OwnedFd {
        self.fd
    }

    /// Size in bytes.
    #[expect(clippy::len_without_is_empty, reason = "a segment is never empty")]
    pub fn len(&self) -> u64 {
        self.len_bytes
    }

    /// Copies a range of it. Up to some megabytes that takes a third of the time of mapping it, copying from there, and
    /// unmapping it.
    ///
    /// # Errors
    /// [`ShmError::BadRange`], [`ShmError::System`].
    pub fn read(&self, offset_bytes: u64, into: &mut [u8]) -> Result<(), ShmError> {
        self.check_range(offset_bytes, into.len() as u64)?;
        platform::read_exact(self.fd(), offset_bytes, into)
    }

    /// An ordinary writable view of a range: writes are private, page by page.
    ///
    /// # Errors
    /// [`ShmError::BadRange`], [`ShmError::OutOfMemory`].
    pub fn map_private(&self, offset_bytes: u64, len_bytes: u64) -> Result<Mapping, ShmError> {
        self.map(Access::Private, offset_bytes, len_bytes)
    }

    /// A view of a range that cannot be written.
    ///
    /// # Errors
    /// As [`Segment::map_private`].
    pub fn map_readonly(&self, offset_bytes: u64, len_bytes: u64) -> Result<Mapping, ShmError> {
        self.map(Access::SharedRead, offset_bytes, len_bytes)
    }

    /// A view of a range of an open segment; everybody sees its writes.
    ///
    /// # Errors
    /// As [`Segment::map_private`], and [`ShmError::System`] when the segment is not open.
    pub fn map_shared(&self, offset_bytes: u64, len_bytes: u64) -> Result<Mapping, ShmError> {
        self.map(Access::SharedWrite, offset_bytes, len_bytes)
    }

    fn check_range(&self, offset_bytes: u64, len_bytes: u64) -> Result<(), ShmError> {
        let end = offset_bytes.checked_add(len_bytes);
        let fits = end.is_some_and(|end| end <= self.len_bytes);
        if !fits || len_bytes == 0 {
            return Err(ShmError::BadRange {
                offset_bytes,
                len_bytes,
                segment_bytes: self.len_bytes,
            });
        }
        Ok(())
    }

    fn map(&self, access: Access, offset_bytes: u64, len_bytes: u64) -> Result<Mapping, ShmError> {
        self.check_range(offset_bytes, len_bytes)?;
        // Whole pages are mapped; the part of the first page before the range is not visible.
        let lead_bytes = offset_bytes % platform::page_bytes();
        let region = Region::map(
            self.fd.as_fd(),
            access,
            offset_bytes - lead_bytes,
            len_bytes + lead_bytes,
        )?;
        Ok(Mapping {
            region,
            lead_bytes: lead_bytes as usize,
            access,
        })
    }
}

/// A view of a segment's range; unmapped on drop. It outlives the [`Segment`] it came from.
#[derive(Debug)]
pub struct Mapping {
    region: Region,
    /// Bytes of the first page that are not part of the view.
    lead_bytes: usize,
    access: Access,
}

impl Mapping {
    /// Address of the first byte. Writing there is allowed only if [`Mapping::is_writable`], and the caller must
    /// synchronise it.
    pub fn as_mut_ptr(&self) -> *mut u8 {
        self.region.as_ptr().wrapping_add(self.lead_bytes)
    }

    /// Whether it may be written.
    pub fn is_writable(&self) -> bool {
        self.access != Access::SharedRead
    }

    /// Whether writes stay in this process.
    pub fn is_private(&self) -> bool {
        self.access == Access::Private
    }

    /// Maps a range of a segment, of this view's length, over this view: the addresses stay, and the bytes become the
    /// segment's, privately. Earlier writes are lost. Returns the previous mapping if it is large: unmapping it, by
    /// dropping it, takes time.
    ///
    /// # Errors
    /// [`ShmError::BadRange`] if the range is not of this length, if either does not start on a page, or if this view
    /// is not private; [`ShmError::OutOfMemory`] or [`ShmError::System`].
    pub fn replace(
        &self,
        segment: &Segment,
        offset_bytes: u64,
        len_bytes: u64,
    ) -> Result<Option<Self>, ShmError> {
        segment.check_range(offset_bytes, len_bytes)?;
        let aligned = self.lead_bytes == 0 && offset_bytes.is_multiple_of(platform::page_bytes());
        if !aligned || len_bytes != self.region.len() as u64 || !self.is_private() {
            return Err(ShmError::BadRange {
                offset_bytes,
                len_bytes,
                segment_bytes: segment.len_bytes,
            });
        }
        let before = self
            .region
            .replace(segment.fd.as_fd(), Access::Private, offset_bytes)?;
        Ok(before.map(|region| Self {
            region,
            lead_bytes: 0,
            access: self.access,
        }))
    }

    /// The same view, read-only.
    pub(crate) fn into_readonly(mut self) -> Self {
        self.access = Access::SharedRead;
        self
    }

    /// A range of the view.
    ///
    /// # Errors
    /// [`ShmError::BadRange`].
    fn range(&self, offset_bytes: u64, len_bytes: u64) -> Result<&[u8], ShmError> {
        let end = offset_bytes.checked_add(len_bytes);
        let range = end.and_then(|end| self.get(offset_bytes as usize..end as usize));
        range
            .filter(|bytes| !bytes.is_empty())
            .ok_or(ShmError::BadRange {
                offset_bytes,
                len_bytes,
                segment_bytes: self.len() as u64,
            })
    }

    /// A copy of a range of the view in private memory.
    ///
    /// # Errors
    /// [`ShmError::BadRange`], [`ShmError::OutOfMemory`].
    pub(crate) fn copy(&self, offset_bytes: u64, len_bytes: u64) -> Result<Self, ShmError> {
        let bytes = self.range(offset_bytes, len_bytes)?;
        let mut copy = Self {
            region: Region::anonymous(len_bytes)?,
            lead_bytes: 0,
            access: Access::Private,
        };
        if let Some(memory) = copy.as_mut_slice() {
            memory.copy_from_slice(bytes);
        }
        Ok(copy)
    }

    /// The bytes, writable; `None` unless writes stay in this process.
    pub fn as_mut_slice(&mut self) -> Option<&mut [u8]> {
        let (start, len) = (self.as_mut_ptr(), self.region.len() - self.lead_bytes);
        // SAFETY: mapped, writable and private to this process; `&mut self` excludes other borrows.
        self.is_private()
            .then(|| unsafe { std::slice::from_raw_parts_mut(start, len) })
    }

    /// Whether this part of the view is known to be unchanged: no page of it was ever written through this mapping. The
    /// kernel's page table tells; if it cannot be read, the answer is no.
    ///
    /// # Panics
    /// When the part leaves the view.
    pub fn is_untouched(&self, offset_bytes: usize, len_bytes: usize) -> bool {
        let end = offset_bytes.checked_add(len_bytes);
        assert!(
            end.is_some_and(|end| end <= self.len()),
            "invariant: the part lies in the view"
        );
        match self.access {
            Access::SharedRead => true,
            // Anybody may have written, and may continue to.
            Access::SharedWrite => false,
            Access::Private => {
                platform::is_untouched(&self.region, self.lead_bytes + offset_bytes, len_bytes)
            }
        }
    }
}

impl Deref for Mapping {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: mapped and readable for as long as `self`, of sealed size. The owner writes a
        // segment before it is announced for a payload and again only when every holder has released
        // it, so the bytes do not change while a holder's mapping lives.
        unsafe {
            std::slice::from_raw_parts(self.as_mut_ptr(), self.region.len() - self.lead_bytes)
        }
    }
}

/// The owner's writable view of a whole segment, kept mapped so that it stays warm.
#[derive(Debug)]
pub struct WritableMapping {
    region: Region,
}

impl WritableMapping {
    /// Takes the pages between two offsets of a segment that was made without pages.
    ///
    /// # Errors
    /// [`ShmError::OutOfMemory`] or [`ShmError::System`].
    pub(crate) fn take_pages(
        &self,
        segment: &Segment,
        from_bytes: u64,
        to_bytes: u64,
    ) -> Result<(), ShmError> {
        platform::take_pages(segment.fd(), &self.region, from_bytes, to_bytes)
    }

    /// The segment's bytes.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: mapped and writable for as long as `self`; there is one such mapping per segment
        // (contents are sealed against others) and `&mut self` excludes other borrows.
        unsafe { std::slice::from_raw_parts_mut(self.region.as_ptr(), self.region.len()) }
    }

    /// Where a part of the segment begins. Only the owner of the part may write there.
    ///
    /// # Panics
    /// When the part leaves the segment.
    pub(crate) fn part(&self, start: usize, len: usize) -> *mut u8 {
        let end = start.checked_add(len);
        assert!(
            end.is_some_and(|end| end <= self.region.len()),
            "invariant: the part lies in the segment"
        );
        self.region.as_ptr().wrapping_add(start)
    }

    /// The segment's bytes for reading; not for a segment in which a part is being written.
    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: as above; shared borrows exclude the exclusive one.
        unsafe { std::slice::from_raw_parts(self.region.as_ptr(), self.region.len()) }
    }
}

// A segment of another process, as held by a process that was told of it.

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
