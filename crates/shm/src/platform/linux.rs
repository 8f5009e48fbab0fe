//! Linux: memfd, seals and mmap.

use std::ffi::c_void;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags};
use rustix::process::Resource;

use crate::ShmError;

/// Seals without which a mapping could raise SIGBUS behind the reader's back.
const SIZE_SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW);

/// An interrupted allocation is undone as a whole, so large ones advance in steps.
const ALLOCATION_STEP_BYTES: u64 = 64 * 1024 * 1024;

/// Bytes whose page table entries are made by one call: a few milliseconds of new memory.
const POPULATE_STEP_BYTES: usize = 8 * 1024 * 1024;

/// Size from which a segment is checked against the memory available.
const ASK_FROM_BYTES: u64 = 16 * 1024 * 1024;

static LIVE_REGIONS: AtomicU64 = AtomicU64::new(0);

/// Regions mapped by this process now.
pub(crate) fn live_regions() -> u64 {
    LIVE_REGIONS.load(Ordering::Relaxed)
}

/// Bytes of a page.
pub(crate) fn page_bytes() -> u64 {
    rustix::param::page_size() as u64
}

/// Largest file this process may make; going over it raises a signal, so ask first.
fn max_file_bytes() -> u64 {
    rustix::process::getrlimit(Resource::Fsize)
        .current
        .unwrap_or(u64::MAX)
}

/// Descriptors this process may hold.
pub(crate) fn max_open_files() -> u64 {
    rustix::process::getrlimit(Resource::Nofile)
        .current
        .unwrap_or(u64::MAX)
}

fn refused(action: &'static str, requested_bytes: u64, errno: Errno) -> ShmError {
    match errno {
        Errno::NOMEM | Errno::NOSPC | Errno::FBIG | Errno::DQUOT | Errno::FAULT => {
            ShmError::OutOfMemory { requested_bytes }
        }
        _ => system(action, errno),
    }
}

fn system(action: &'static str, errno: Errno) -> ShmError {
    ShmError::System {
        action,
        source: errno.into(),
    }
}

/// A memory file of `len_bytes` that starts with `content`, else zero; its size is sealed and its
/// pages exist, so that a lack of memory is an error here and not SIGBUS later.
pub(crate) fn create(len_bytes: u64, content: &[u8]) -> Result<OwnedFd, ShmError> {
    debug_assert!(content.len() as u64 <= len_bytes);
    // Taking the pages of a large segment without asking could end the process, or another one:
    // the kernel would rather kill than refuse. Small ones are bounded by the pool, and asking
    // would cost more than making them.
    let refused_early = len_bytes >= ASK_FROM_BYTES && len_bytes > available_bytes() / 16 * 15;
    if refused_early || len_bytes > max_file_bytes() {
        return Err(ShmError::OutOfMemory {
            requested_bytes: len_bytes,
        });
    }
    let fd = rustix::fs::memfd_create(
        c"broadleaf",
        MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING,
    )
    .map_err(|e| system("memfd_create", e))?;
    // Written rather than copied to a mapping: pages need no zeroing and no fault of their own.
    let mut done = 0;
    while done < content.len() {
        match rustix::io::pwrite(&fd, &content[done..], done as u64) {
            Ok(0) => return Err(refused("write", len_bytes, Errno::NOSPC)),
            Ok(written) => done += written,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(refused("write", len_bytes, errno)),
        }
    }
    let mut done = done as u64;
    while done < len_bytes {
        let step = (len_bytes - done).min(ALLOCATION_STEP_BYTES);
        match rustix::fs::fallocate(&fd, FallocateFlags::empty(), done, step) {
            Ok(()) => done += step,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(refused("fallocate", len_bytes, errno)),
        }
    }
    rustix::fs::fcntl_add_seals(&fd, SIZE_SEALS).map_err(|e| system("seal size", e))?;
    Ok(fd)
}

/// Forbids new writable shared mappings and `write`; mappings that exist keep writing. Final.
pub(crate) fn seal_contents(fd: BorrowedFd<'_>) -> Result<(), ShmError> {
    match rustix::fs::fcntl_add_seals(fd, SealFlags::FUTURE_WRITE | SealFlags::SEAL) {
        // Kernels before 5.1 do not know it. It guards against mistakes; safety rests on the size.
        Ok(()) | Err(Errno::INVAL) => Ok(()),
        Err(errno) => Err(system("seal contents", errno)),
    }
}

/// Size of a memory file, refused unless it can never change.
pub(crate) fn sealed_size(fd: BorrowedFd<'_>) -> Result<u64, ShmError> {
    let seals = rustix::fs::fcntl_get_seals(fd).map_err(|_| ShmError::NotSealed)?;
    if !seals.contains(SIZE_SEALS) {
        return Err(ShmError::NotSealed);
    }
    let stat = rustix::fs::fstat(fd).map_err(|e| system("fstat", e))?;
    u64::try_from(stat.st_size).map_err(|_| ShmError::NotSealed)
}

/// What a mapping may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    /// Reads and writes the one shared copy.
    SharedWrite,
    /// Reads the shared copy; writes go to pages of its own.
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

impl Region {
    /// Maps a range that the caller has checked to lie inside the sealed size.
    pub(crate) fn map(
        fd: BorrowedFd<'_>,
        access: Access,
        offset_bytes: u64,
        len_bytes: u64,
    ) -> Result<Self, ShmError> {
        let len = usize::try_from(len_bytes).map_err(|_| ShmError::BadSize(len_bytes))?;
        // No MAP_POPULATE and no lock: on a private map either copies every page.
        let (prot, flags) = match access {
            Access::SharedWrite => (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED),
            Access::Private => (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE),
            Access::SharedRead => (ProtFlags::READ, MapFlags::SHARED),
        };
        // NORESERVE: a private map counts only the pages it comes to write.
        let flags = flags | MapFlags::NORESERVE;
        // SAFETY: the kernel picks an unused range, so no memory of ours is replaced.
        let start = unsafe { rustix::mm::mmap(null_mut(), len, prot, flags, fd, offset_bytes) }
            .map_err(|e| refused("mmap", len_bytes, e))?;
        let start = NonNull::new(start.cast::<u8>()).ok_or(ShmError::OutOfMemory {
            requested_bytes: len_bytes,
        })?;
        LIVE_REGIONS.fetch_add(1, Ordering::Relaxed);
        Ok(Self { start, len })
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
        // SAFETY: the range was mapped by `map` and is unmapped here only; borrows of it have ended.
        let unmapped =
            unsafe { rustix::mm::munmap(self.start.as_ptr().cast::<c_void>(), self.len) };
        debug_assert!(unmapped.is_ok(), "munmap: {unmapped:?}");
        LIVE_REGIONS.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Makes the page table entries of the first `written` bytes of a shared writable region, which is
/// cheaper than a fault a page; of all of it when `written` is 0.
///
/// Reading suffices for pages with content: entries of shared memory are writable either way, and
/// read faults take neighbours along.
pub(crate) fn populate(region: &Region, written: usize) -> Result<(), ShmError> {
    let (len, advice) = match written {
        0 => (region.len(), Advice::LinuxPopulateWrite),
        _ => (written.min(region.len()), Advice::LinuxPopulateRead),
    };
    // In steps: a call holds the process's memory map for its time, and other threads may want to map.
    for start in (0..len).step_by(POPULATE_STEP_BYTES) {
        let step = (len - start).min(POPULATE_STEP_BYTES);
        let at = region.as_ptr().wrapping_add(start).cast::<c_void>();
        // SAFETY: populating changes no byte of the mapped range, which `at` and `step` stay inside.
        match unsafe { rustix::mm::madvise(at, step, advice) } {
            Ok(()) => {}
            // Kernels before 5.14 do not know it; then the first writes fault, as ever.
            Err(Errno::INVAL) => return Ok(()),
            Err(errno) => return Err(refused("populate", region.len() as u64, errno)),
        }
    }
    Ok(())
}

/// See [`crate::memory_limit_bytes`].
pub(crate) fn memory_limit_bytes() -> u64 {
    crate::memory::limit_bytes(&read)
}

fn available_bytes() -> u64 {
    crate::memory::available_bytes(&read)
}

fn read(path: &str) -> Option<String> {
    std::fs::read_to_string(path).ok()
}
