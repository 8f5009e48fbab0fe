//! The operating system's part: memfd, seals and mmap, the pages of a mapping, and descriptors.

use std::ffi::c_void;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{FallocateFlags, MemfdFlags, Mode, OFlags, SealFlags};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, MremapFlags, ProtFlags};
use rustix::process::{Resource, Rlimit};

use crate::ShmError;

/// Seals without which a mapping could raise SIGBUS behind the reader's back.
const SIZE_SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW);

/// Unit of a file's `st_blocks`.
const BLOCK_BYTES: u64 = 512;

/// An interrupted allocation is undone as a whole, so large ones advance in steps.
const ALLOCATION_STEP_BYTES: u64 = 64 * 1024 * 1024;

/// Page tables move as a whole between addresses that differ by a multiple of this.
const PAGE_TABLE_BYTES: usize = 2 * 1024 * 1024;

/// Unmapping less takes no longer than moving it.
const ASIDE_FROM_BYTES: usize = 1024 * 1024;

/// Bytes unmapped by one call.
const UNMAP_STEP_BYTES: usize = 8 * 1024 * 1024;

/// After this many bytes of new segments the next one is checked against the available memory.
const ASK_FROM_BYTES: u64 = 16 * 1024 * 1024;

/// Size of segments made since the last check.
static UNASKED_BYTES: AtomicU64 = AtomicU64::new(0);

static LIVE_REGIONS: AtomicU64 = AtomicU64::new(0);

/// Number of regions that this process has mapped.
pub(crate) fn live_regions() -> u64 {
    LIVE_REGIONS.load(Ordering::Relaxed)
}

/// Size of a page in bytes.
pub(crate) fn page_bytes() -> u64 {
    rustix::param::page_size() as u64
}

/// Largest file that this process may create; exceeding it raises a signal, so check first.
fn max_file_bytes() -> u64 {
    rustix::process::getrlimit(Resource::Fsize)
        .current
        .unwrap_or(u64::MAX)
}

pub(super) fn refused(action: &'static str, requested_bytes: u64, errno: Errno) -> ShmError {
    match errno {
        Errno::NOMEM | Errno::NOSPC | Errno::FBIG | Errno::DQUOT | Errno::FAULT => {
            ShmError::OutOfMemory { requested_bytes }
        }
        _ => system(action, errno),
    }
}

fn system(action: &'static str, errno: Errno) -> ShmError {
    match errno {
        Errno::MFILE | Errno::NFILE => ShmError::DescriptorsShort,
        errno => ShmError::System {
            action,
            source: errno.into(),
        },
    }
}

/// A memory file of `len_bytes` that starts with `content`, else zero; its size is sealed and its
/// pages exist, so that a lack of memory is an error here and not SIGBUS later.
pub(crate) fn create(len_bytes: u64, content: &[u8]) -> Result<OwnedFd, ShmError> {
    debug_assert!(content.len() as u64 <= len_bytes);
    memory_of(len_bytes, |fd| fill(fd, len_bytes, content))
}

/// As [`create`], but without pages: [`take_pages`] gives it some before they are written to.
pub(crate) fn create_empty(len_bytes: u64) -> Result<OwnedFd, ShmError> {
    memory_of(len_bytes, |fd| {
        rustix::fs::ftruncate(fd, len_bytes).map_err(|e| refused("ftruncate", len_bytes, e))
    })
}

/// A memory file that `make` gives its size, which is then sealed.
fn memory_of(
    len_bytes: u64,
    make: impl FnOnce(BorrowedFd<'_>) -> Result<(), ShmError>,
) -> Result<OwnedFd, ShmError> {
    // Taking the pages of a large segment without checking could kill this process or another one: the kernel kills
    // rather than refuses. The pool limits small ones, and checking would cost more than making them, so that is done
    // once for many.
    let unasked_bytes = UNASKED_BYTES.fetch_add(len_bytes, Ordering::Relaxed) + len_bytes;
    let asks = unasked_bytes >= ASK_FROM_BYTES;
    if asks {
        UNASKED_BYTES.store(0, Ordering::Relaxed);
    }
    let refused_early = asks && !has_room(len_bytes);
    if refused_early || len_bytes > max_file_bytes() {
        return Err(ShmError::OutOfMemory {
            requested_bytes: len_bytes,
        });
    }
    let (fd, can_be_sealed) = memory_file()?;
    make(fd.as_fd()).map_err(|error| lack_of_memory(error, can_be_sealed))?;
    if can_be_sealed {
        rustix::fs::fcntl_add_seals(&fd, SIZE_SEALS).map_err(|e| system("seal size", e))?;
    }
    Ok(fd)
}

/// Which memory is short: a file that cannot be sealed lies in `/dev/shm`, which may be smaller than the host's memory.
pub(super) fn lack_of_memory(error: ShmError, can_be_sealed: bool) -> ShmError {
    match error {
        ShmError::OutOfMemory { requested_bytes } if !can_be_sealed => {
            ShmError::DevShmFull { requested_bytes }
        }
        error => error,
    }
}

/// Gives an empty memory file its content and all its pages.
fn fill(fd: BorrowedFd<'_>, len_bytes: u64, content: &[u8]) -> Result<(), ShmError> {
    // Written rather than copied to a mapping: then pages need no zeroing and cause no faults.
    write_all(fd, content)?;
    allocate(fd, content.len() as u64, len_bytes)
}

/// Gives a memory file its pages between two offsets.
pub(super) fn allocate(fd: BorrowedFd<'_>, from_bytes: u64, to_bytes: u64) -> Result<(), ShmError> {
    let mut done = from_bytes;
    while done < to_bytes {
        let step = (to_bytes - done).min(ALLOCATION_STEP_BYTES);
        match rustix::fs::fallocate(fd, FallocateFlags::empty(), done, step) {
            Ok(()) => done += step,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(refused("fallocate", to_bytes, errno)),
        }
    }
    Ok(())
}

/// An empty file of memory, and whether it can be sealed. If the container forbids `memfd_create`,
/// it is a nameless file in `/dev/shm`: that may be as large as the container allows, and holders
/// could shrink it, but they are processes of one user, and none of ours does.
fn memory_file() -> Result<(OwnedFd, bool), ShmError> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    // Hosts may demand that memory files cannot be executed; kernels before 6.3 do not know the flag.
    let made = match rustix::fs::memfd_create(c"broadleaf", flags | MemfdFlags::NOEXEC_SEAL) {
        Err(Errno::INVAL) => rustix::fs::memfd_create(c"broadleaf", flags),
        made => made,
    };
    match made {
        Ok(fd) => Ok((fd, true)),
        Err(Errno::PERM | Errno::ACCESS | Errno::NOSYS) => {
            let flags = OFlags::TMPFILE | OFlags::EXCL | OFlags::RDWR | OFlags::CLOEXEC;
            rustix::fs::open(c"/dev/shm", flags, Mode::RUSR | Mode::WUSR)
                .map(|fd| (fd, false))
                .map_err(|e| {
                    system(
                        "no shared memory: neither memfd_create nor files in /dev/shm are permitted",
                        e,
                    )
                })
        }
        Err(errno) => Err(system("memfd_create", errno)),
    }
}

/// Forbids new writable shared mappings and `write`; existing mappings stay writable. Final.
pub(crate) fn seal_contents(fd: BorrowedFd<'_>) -> Result<(), ShmError> {
    match rustix::fs::fcntl_add_seals(fd, SealFlags::FUTURE_WRITE | SealFlags::SEAL) {
        // Kernels before 5.1 do not know it. It guards against mistakes; safety rests on the size.
        // Files of `/dev/shm` cannot be sealed either.
        Ok(()) | Err(Errno::INVAL | Errno::PERM) => Ok(()),
        Err(errno) => Err(system("seal contents", errno)),
    }
}

/// Size of a memory file, refused unless it can never change, or it is one of [`memory_file`] that cannot be sealed:
/// without a name, on an in-memory file system, with all of its pages.
pub(crate) fn sealed_size(fd: BorrowedFd<'_>) -> Result<u64, ShmError> {
    let seals = rustix::fs::fcntl_get_seals(fd).map_err(|_| ShmError::NotSealed)?;
    let stat = rustix::fs::fstat(fd).map_err(|e| system("fstat", e))?;
    let size = u64::try_from(stat.st_size).map_err(|_| ShmError::NotSealed)?;
    let whole = u64::try_from(stat.st_blocks).is_ok_and(|n| n.saturating_mul(BLOCK_BYTES) >= size);
    // Only such file systems have seals at all.
    let unsealable = seals == SealFlags::SEAL && stat.st_nlink == 0 && whole;
    if seals.contains(SIZE_SEALS) || unsealable {
        Ok(size)
    } else {
        Err(ShmError::NotSealed)
    }
}

/// What a mapping allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    /// Reads and writes the one shared copy.
    SharedWrite,
    /// Reads the shared copy; writes go to private pages.
    Private,
    /// Reads the shared copy.
    SharedRead,
}

/// Mapped memory; unmapped on drop.
#[derive(Debug)]
pub(crate) struct Region {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: a region is plain memory owned by this value alone; nothing in it is tied to a thread.
unsafe impl Send for Region {}
// SAFETY: through `&Region` one gets the address only; whoever dereferences it answers for races.
unsafe impl Sync for Region {}

fn protection(access: Access) -> (ProtFlags, MapFlags) {
    // No MAP_POPULATE and no lock: on a private map either copies every page.
    let (prot, flags) = match access {
        Access::SharedWrite => (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED),
        Access::Private => (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE),
        Access::SharedRead => (ProtFlags::READ, MapFlags::SHARED),
    };
    // NORESERVE: a private map counts only the pages it comes to write.
    (prot, flags | MapFlags::NORESERVE)
}

impl Region {
    /// Maps a range that the caller has checked to lie inside the sealed size.
    pub(crate) fn map(
        fd: BorrowedFd<'_>,
        access: Access,
        offset_bytes: u64,
        len_bytes: u64,
    ) -> Result<Self, ShmError> {
        let len = usize::try_from(len_bytes).map_err(|_| ShmError::BadSize(len_bytes))?;
        let (prot, flags) = protection(access);
        // SAFETY: the kernel picks an unused range, so no memory of ours is replaced.
        let start = unsafe { rustix::mm::mmap(null_mut(), len, prot, flags, fd, offset_bytes) }
            .map_err(|e| refused("mmap", len_bytes, e))?;
        let start = NonNull::new(start.cast::<u8>()).ok_or(ShmError::OutOfMemory {
            requested_bytes: len_bytes,
        })?;
        LIVE_REGIONS.fetch_add(1, Ordering::Relaxed);
        Ok(Self { start, len })
    }

    /// Private memory of this process, all zero.
    pub(crate) fn anonymous(len_bytes: u64) -> Result<Self, ShmError> {
        let len = usize::try_from(len_bytes).map_err(|_| ShmError::BadSize(len_bytes))?;
        let (prot, flags) = protection(Access::Private);
        // SAFETY: the kernel picks an unused range, so no memory of ours is replaced.
        let start = unsafe { rustix::mm::mmap_anonymous(null_mut(), len, prot, flags) }
            .map_err(|e| refused("mmap", len_bytes, e))?;
        let start = NonNull::new(start.cast::<u8>()).ok_or(ShmError::OutOfMemory {
            requested_bytes: len_bytes,
        })?;
        LIVE_REGIONS.fetch_add(1, Ordering::Relaxed);
        Ok(Self { start, len })
    }

    /// Maps another range of memory of the same length here: same addresses, different pages, and no unmapped gap in
    /// between that other threads could hit. The previous mapping is returned at a new address if it is large, because
    /// unmapping takes 60 to 200 ns per page and can wait.
    pub(crate) fn replace(
        &self,
        fd: BorrowedFd<'_>,
        access: Access,
        offset_bytes: u64,
    ) -> Result<Option<Self>, ShmError> {
        let aside = self.move_pages_aside();
        let shown = self.map_over(fd, access, offset_bytes);
        match (shown, aside) {
            (Err(error), Some(aside)) => {
                // Private writes are in the pages that were moved.
                move_pages(aside.as_ptr(), self.as_ptr(), self.len)
                    .map_err(|e| system("mremap back", e))?;
                Err(error)
            }
            (shown, aside) => shown.map(|()| aside),
        }
    }

    /// Moves the pages mapped here to another address; here the file's pages are mapped again as they are used. `None`
    /// if that does not pay off or the kernel (before 5.13) cannot do it.
    fn move_pages_aside(&self) -> Option<Self> {
        if self.len < ASIDE_FROM_BYTES {
            return None;
        }
        let aside = Self::reserve_congruent(self.as_ptr() as usize, self.len)?;
        move_pages(self.as_ptr(), aside.as_ptr(), self.len).ok()?;
        Some(aside)
    }

    /// Addresses without memory, at a distance from `to` over which page tables move as a whole.
    fn reserve_congruent(to: usize, len: usize) -> Option<Self> {
        let reserved_len = len.checked_add(PAGE_TABLE_BYTES)?;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: the kernel picks an unused range, so no memory of ours is replaced.
        let start = unsafe {
            rustix::mm::mmap_anonymous(null_mut(), reserved_len, ProtFlags::empty(), flags)
        };
        let start = start.ok()?.cast::<u8>();
        let lead = to.wrapping_sub(start as usize) % PAGE_TABLE_BYTES;
        for (offset, len) in [(0, lead), (lead + len, PAGE_TABLE_BYTES - lead)] {
            // SAFETY: inside the range just mapped, outside of the part that is kept; nothing is in it. For zero bytes
            // it is refused, which does no harm.
            let _ = unsafe { rustix::mm::munmap(start.wrapping_add(offset).cast(), len) };
        }
        let start = NonNull::new(start.wrapping_add(lead))?;
        LIVE_REGIONS.fetch_add(1, Ordering::Relaxed);
        Some(Self { start, len })
    }

    fn map_over(
        &self,
        fd: BorrowedFd<'_>,
        access: Access,
        offset_bytes: u64,
    ) -> Result<(), ShmError> {
        let (prot, flags) = protection(access);
        let start = self.start.as_ptr().cast::<c_void>();
        // SAFETY: the range was mapped by `map` and belongs to this value; what is there is meant to be replaced.
        unsafe {
            rustix::mm::mmap(
                start,
                self.len,
                prot,
                flags | MapFlags::FIXED,
                fd,
                offset_bytes,
            )
        }
        .map(drop)
        .map_err(|e| refused("mmap", self.len as u64, e))
    }

    pub(crate) fn as_ptr(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // In steps, so that other threads can map in between.
        for offset in (0..self.len).step_by(UNMAP_STEP_BYTES) {
            let len = (self.len - offset).min(UNMAP_STEP_BYTES);
            // SAFETY: the range was mapped by this module and is unmapped here only; borrows of it have ended.
            let unmapped =
                unsafe { rustix::mm::munmap(self.as_ptr().wrapping_add(offset).cast(), len) };
            debug_assert!(unmapped.is_ok(), "munmap: {unmapped:?}");
        }
        LIVE_REGIONS.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Moves the pages mapped in one range to another, in place of what is mapped there. The first range stays mapped to
/// its file, without pages.
fn move_pages(from: *mut u8, to: *mut u8, len: usize) -> Result<(), Errno> {
    let flags = MremapFlags::MAYMOVE | MremapFlags::DONTUNMAP;
    // SAFETY: both ranges belong to regions of the caller, who wants the second replaced; the first stays readable.
    unsafe { rustix::mm::mremap_fixed(from.cast(), len, len, flags, to.cast()) }.map(drop)
}

/// Writes bytes over the start of a memory file.
pub(crate) fn write_all(fd: BorrowedFd<'_>, content: &[u8]) -> Result<(), ShmError> {
    let mut done = 0;
    while done < content.len() {
        match rustix::io::pwrite(fd, &content[done..], done as u64) {
            Ok(0) => return Err(refused("write", content.len() as u64, Errno::NOSPC)),
            Ok(written) => done += written,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(refused("write", content.len() as u64, errno)),
        }
    }
    Ok(())
}

/// Fills `into` with the bytes of a memory file from an offset on.
pub(crate) fn read_exact(
    fd: BorrowedFd<'_>,
    offset_bytes: u64,
    into: &mut [u8],
) -> Result<(), ShmError> {
    let mut done = 0;
    while done < into.len() {
        match rustix::io::pread(fd, &mut into[done..], offset_bytes + done as u64) {
            Ok(0) => return Err(system("read", Errno::IO)),
            Ok(read) => done += read,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(system("read", errno)),
        }
    }
    Ok(())
}

/// See [`crate::memory_limit_bytes`].
pub(crate) fn memory_limit_bytes() -> u64 {
    crate::memory::limit_bytes(&read)
}

/// See [`crate::memory::Room`].
pub(crate) fn memory_room() -> crate::memory::Room {
    crate::memory::room(&read)
}

/// Whether this many bytes of new memory leave some for others.
pub(crate) fn has_room(bytes: u64) -> bool {
    bytes <= memory_room().left_bytes / 16 * 15
}

/// See [`crate::memory::Strain`].
pub(crate) fn memory_strain() -> crate::memory::Strain {
    crate::memory::strain(&read)
}

fn read(path: &str) -> Option<String> {
    std::fs::read_to_string(path).ok()
}

// The pages of a mapping: taken before they are needed, and looked at.

/// Number of bytes whose page table entries one call makes: a few milliseconds of new memory.
const POPULATE_STEP_BYTES: usize = 8 * 1024 * 1024;

/// Bits of an entry of `/proc/self/pagemap`: in memory, swapped out, a page of a file.
const PAGE_PRESENT: u64 = 1 << 63;
const PAGE_SWAPPED: u64 = 1 << 62;
const PAGE_OF_FILE: u64 = 1 << 61;

/// Entries read at a time: those of 16 MiB in pages of 4 KiB.
const PAGEMAP_ENTRIES: usize = 4096;

/// Gives a memory file and its writable mapping the pages between two offsets.
pub(crate) fn take_pages(
    fd: BorrowedFd<'_>,
    region: &Region,
    from_bytes: u64,
    to_bytes: u64,
) -> Result<(), ShmError> {
    // Others may have taken the memory that there was when the file was made.
    if !has_room(to_bytes - from_bytes) {
        return Err(ShmError::OutOfMemory {
            requested_bytes: region.len() as u64,
        });
    }
    allocate(fd, from_bytes, to_bytes).map_err(|error| {
        let seals = rustix::fs::fcntl_get_seals(fd).unwrap_or(SealFlags::empty());
        lack_of_memory(error, seals.contains(SealFlags::GROW))
    })?;
    let range = from_bytes as usize..to_bytes as usize;
    populate_range(region, range, Advice::LinuxPopulateWrite)
}

/// Makes the page table entries of the first `written` bytes of a shared writable region, or of all of it if `written`
/// is 0. This is cheaper than one fault per page.
///
/// Reading suffices for pages with content: entries of shared memory are writable either way, and
/// read faults take neighbours along.
pub(crate) fn populate(region: &Region, written: usize) -> Result<(), ShmError> {
    let (len, advice) = match written {
        0 => (region.len(), Advice::LinuxPopulateWrite),
        _ => (written.min(region.len()), Advice::LinuxPopulateRead),
    };
    populate_range(region, 0..len, advice)
}

fn populate_range(region: &Region, range: Range<usize>, advice: Advice) -> Result<(), ShmError> {
    debug_assert!(range.end <= region.len());
    // In steps: each call locks the process's memory map, and other threads may want to map.
    for start in range.clone().step_by(POPULATE_STEP_BYTES) {
        let step = (range.end - start).min(POPULATE_STEP_BYTES);
        let at = region.as_ptr().wrapping_add(start).cast::<c_void>();
        // SAFETY: populating changes no byte of the mapped range, which `at` and `step` stay inside.
        match unsafe { rustix::mm::madvise(at, step, advice) } {
            Ok(()) => {}
            // Kernels before 5.14 do not know it; then the first writes fault, as usual.
            Err(Errno::INVAL) => return Ok(()),
            Err(errno) => return Err(refused("populate", region.len() as u64, errno)),
        }
    }
    Ok(())
}

/// Whether a private region still maps its file's pages in this range. A write gives the process a page of its own,
/// which belongs to no file: it is present without the file's mark, or swapped out. A page that is neither was never
/// written. `false` if the kernel does not say.
pub(crate) fn is_untouched(region: &Region, offset: usize, len: usize) -> bool {
    // Opened again each time: a descriptor belongs to the process that opened it, even after a fork.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let Ok(pagemap) = rustix::fs::open(c"/proc/self/pagemap", flags, Mode::empty()) else {
        return false;
    };
    let start = region.as_ptr() as usize + offset;
    let page = page_bytes() as usize;
    let (mut next, end) = (start / page, (start + len).div_ceil(page));
    let mut entries = vec![0; (end - next).min(PAGEMAP_ENTRIES) * size_of::<u64>()];
    while next < end {
        let wanted = ((end - next) * size_of::<u64>()).min(entries.len());
        let at = (next * size_of::<u64>()) as u64;
        let read = match rustix::io::pread(&pagemap, &mut entries[..wanted], at) {
            Ok(read) if read >= size_of::<u64>() => read / size_of::<u64>(),
            Err(Errno::INTR) => continue,
            _ => return false,
        };
        let (whole, _) = entries.as_chunks::<{ size_of::<u64>() }>();
        let own = whole[..read].iter().any(|entry| {
            let entry = u64::from_ne_bytes(*entry);
            entry & (PAGE_PRESENT | PAGE_SWAPPED) != 0 && entry & PAGE_OF_FILE == 0
        });
        if own {
            return false;
        }
        next += read;
    }
    true
}

// How many descriptors the process may have, and whether they are running short.

/// The limit is raised no further: some programs close every descriptor that they might have when they start.
const MAX_DESCRIPTORS: u64 = 65_536;
/// Descriptors that segments leave to others: one part in this many of the limit, and at most `MAX_RESERVED`.
const RESERVED_SHARE: u64 = 4;
const MAX_RESERVED: u64 = 256;

/// Number of descriptors this process may hold.
pub(crate) fn max_open_files() -> u64 {
    rustix::process::getrlimit(Resource::Nofile)
        .current
        .unwrap_or(u64::MAX)
}

/// Raises the process's soft limit of descriptors to the hard one, or to 65,536 if that is lower; processes that it
/// starts inherit it. For Broadleaf's own programs; a limit that cannot be raised stays unchanged.
pub fn raise_descriptor_limit() {
    let limit = rustix::process::getrlimit(Resource::Nofile);
    let wanted = limit.maximum.unwrap_or(u64::MAX).min(MAX_DESCRIPTORS);
    if limit.current.is_some_and(|current| current < wanted) {
        let raised = Rlimit {
            current: Some(wanted),
            ..limit
        };
        // Refused only if something supervises such calls; then the number stays unchanged.
        let _ = rustix::process::setrlimit(Resource::Nofile, raised);
    }
}

/// Whether a new descriptor is one of the last: each has the lowest free number.
pub(crate) fn is_among_last_descriptors(fd: BorrowedFd<'_>) -> bool {
    let limit = max_open_files();
    let reserved = (limit / RESERVED_SHARE).min(MAX_RESERVED);
    u64::try_from(fd.as_raw_fd()).is_ok_and(|number| number >= limit - reserved)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEN_BYTES: u64 = 3 << 20;

    fn private(byte: u8) -> (OwnedFd, Region) {
        let fd = create(LEN_BYTES, &[byte]).expect("3 MiB of memory");
        let region = Region::map(fd.as_fd(), Access::Private, 0, LEN_BYTES).expect("a mapping");
        (fd, region)
    }

    fn first(region: &Region) -> u8 {
        // SAFETY: mapped and readable for as long as `region`.
        unsafe { region.as_ptr().read() }
    }

    #[test]
    fn what_was_shown_before_is_kept_aside_with_what_was_written() {
        let (_fd, region) = private(1);
        // SAFETY: mapped, writable and private to this test.
        unsafe { region.as_ptr().write(2) };
        let (other, _region) = private(3);
        let aside = region
            .replace(other.as_fd(), Access::Private, 0)
            .expect("same length");
        assert_eq!(first(&region), 3);
        assert_eq!(aside.map(|aside| first(&aside)), Some(2));
    }

    #[test]
    fn what_cannot_be_shown_leaves_everything_as_it_was() {
        let (_fd, region) = private(1);
        // SAFETY: mapped, writable and private to this test.
        unsafe { region.as_ptr().write(2) };
        let (socket, _other) = std::os::unix::net::UnixStream::pair().expect("sockets");
        assert!(region.replace(socket.as_fd(), Access::Private, 0).is_err());
        assert_eq!(first(&region), 2);
    }
}
