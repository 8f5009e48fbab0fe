//! The pages of a mapping: taken before they are needed, and looked at.

use std::ffi::c_void;
use std::ops::Range;
use std::os::fd::BorrowedFd;

use rustix::fs::{Mode, OFlags, SealFlags};
use rustix::io::Errno;
use rustix::mm::Advice;

use super::linux::{Region, allocate, has_room, lack_of_memory, page_bytes, refused};
use crate::ShmError;

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
