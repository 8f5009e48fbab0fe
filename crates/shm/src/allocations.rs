//! Memory in which an array is allocated, so that sending the array copies nothing.
//!
//! Its creator writes to the segment itself until the array is first sent. From then on the creator has a private view,
//! like everybody else, and its writes stay its own. Sending it again after such writes moves it to a new segment.

use std::mem::ManuallyDrop;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::copy::copy;
use crate::memory::{drop_memory, may_keep};
use crate::platform::{self, Access, Region};
use crate::pool::largest_fit_bytes;
use crate::{Segment, ShmError};

/// The memory of an open segment.
#[derive(Debug)]
struct Memory {
    segment: Segment,
    /// Its creator's view, made when bytes are copied there for the second time, and kept while it is warm.
    window: Option<Region>,
}

impl Memory {
    fn window(&mut self) -> Result<&Region, ShmError> {
        let region = if let Some(region) = self.window.take() {
            region
        } else {
            let segment = &self.segment;
            let region = Region::map(segment.fd(), Access::SharedWrite, 0, segment.len())?;
            platform::populate(&region, 0)?;
            region
        };
        Ok(self.window.insert(region))
    }
}

/// Free segments, warm for the next array, each with the number of [`trim_allocations`] calls it has survived.
struct Warm {
    process: u32,
    /// Open connections. Without one nothing will be sent soon, and nobody trims.
    connections: u64,
    /// Number of [`trim_allocations`] calls that a free segment survives, as the last connection requested.
    keep_trims: u64,
    segments: Vec<(Memory, u64)>,
}

static WARM: Mutex<Warm> = Mutex::new(Warm {
    process: 0,
    connections: 0,
    keep_trims: 0,
    segments: Vec::new(),
});

fn warm() -> MutexGuard<'static, Warm> {
    let mut warm = WARM.lock().unwrap_or_else(PoisonError::into_inner);
    let process = std::process::id();
    if warm.process != process {
        // Segments inherited by a fork are also free in the parent.
        warm.segments.clear();
        warm.connections = 0;
        warm.process = process;
    }
    warm
}

/// An open segment; it becomes free for another array when its last holder releases it.
#[derive(Debug)]
pub struct AllocationSegment {
    /// Taken out when this value is dropped.
    memory: ManuallyDrop<Memory>,
    process: u32,
    /// Whether it held another array before.
    is_warm: bool,
}

impl AllocationSegment {
    /// A segment of at least `len_bytes` with undefined content.
    ///
    /// # Errors
    /// [`ShmError::BadSize`], [`ShmError::OutOfMemory`] or [`ShmError::System`].
    pub fn new(len_bytes: u64) -> Result<Self, ShmError> {
        let page_bytes = platform::page_bytes();
        let rounded = len_bytes.checked_next_multiple_of(page_bytes);
        let min_bytes = rounded.ok_or(ShmError::BadSize(len_bytes))?;
        let max_bytes = largest_fit_bytes(min_bytes);
        let mut free = warm();
        let fitting = free
            .segments
            .iter()
            .rposition(|(memory, _)| (min_bytes..=max_bytes).contains(&memory.segment.len()));
        let warm = fitting.map(|index| free.segments.remove(index).0);
        let is_warm = warm.is_some();
        let memory = match warm {
            Some(memory) => memory,
            None => Memory {
                segment: Segment::create_open(len_bytes)?,
                window: None,
            },
        };
        Ok(Self {
            memory: ManuallyDrop::new(memory),
            process: free.process,
            is_warm,
        })
    }

    /// The segment.
    pub fn segment(&self) -> &Segment {
        &self.memory.segment
    }

    /// Writes `content` to the start of the segment, which nobody else may have yet.
    ///
    /// # Errors
    /// [`ShmError::SizeMismatch`] if `content` does not fit; [`ShmError::OutOfMemory`], [`ShmError::System`].
    pub fn write(&mut self, content: &[u8]) -> Result<(), ShmError> {
        let segment = self.segment();
        if content.len() as u64 > segment.len() {
            return Err(ShmError::SizeMismatch {
                claimed_bytes: content.len() as u64,
                actual_bytes: segment.len(),
            });
        }
        if !self.is_warm {
            // Written as a file, so that new pages need no zeroing and no page table entry.
            return platform::write_all(segment.fd(), content);
        }
        let region = self.memory.window()?;
        // SAFETY: mapped and writable for as long as `region`, which borrows `self`; nobody else has the segment.
        let bytes = unsafe { std::slice::from_raw_parts_mut(region.as_ptr(), content.len()) };
        copy(bytes, content, u64::MAX);
        Ok(())
    }
}

impl Drop for AllocationSegment {
    fn drop(&mut self) {
        // SAFETY: taken once, by the drop of its owner.
        let memory = unsafe { ManuallyDrop::take(&mut self.memory) };
        let mut free = warm();
        let held: u64 = free
            .segments
            .iter()
            .map(|(memory, _)| memory.segment.len())
            .sum();
        let wanted = self.process == free.process && free.connections > 0;
        let len_bytes = memory.segment.len();
        if wanted && may_keep(held + len_bytes) {
            free.segments.push((memory, 0));
        } else {
            drop(free);
            drop_memory(memory, len_bytes);
        }
    }
}

/// Closes segments that have been unused for a while; call it regularly.
pub fn trim_allocations() {
    let mut free = warm();
    let keep_trims = free.keep_trims;
    let idle: Vec<_> = free
        .segments
        .extract_if(.., |(_, trims)| {
            *trims += 1;
            *trims > keep_trims
        })
        .collect();
    drop(free);
    let bytes = idle.iter().map(|(memory, _)| memory.segment.len()).sum();
    drop_memory(idle, bytes);
}

/// Closes all segments without an array because memory is short; returns whether there were any.
pub fn give_up_allocations() -> bool {
    !std::mem::take(&mut warm().segments).is_empty()
}

/// Whether a call of [`trim_allocations`] has, or will have, something to do. Takes no system call: engines ask before
/// they sleep.
pub fn allocations_need_trim() -> bool {
    let warm = WARM.lock().unwrap_or_else(PoisonError::into_inner);
    !warm.segments.is_empty()
}

/// A connection of this process begins: freed segments stay warm for the next array for about `warm_s` seconds.
pub fn on_connected(warm_s: u64) {
    let mut warm = warm();
    warm.connections += 1;
    warm.keep_trims = warm_s;
}

/// A connection for which [`on_connected`] was called has ended; the last one closes every free segment.
pub fn on_disconnected() {
    let mut warm = warm();
    warm.connections = warm.connections.saturating_sub(1);
    if warm.connections == 0 {
        warm.segments.clear();
    }
}

/// How a [`SharedAllocation`] maps its segment for its creator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shown {
    /// Writes go to the segment, which nobody else has seen.
    Unsent,
    /// Writes go to the segment, which others see and may write to as well.
    Window,
    /// Writes stay private.
    Sent,
}

/// The memory of one array. Its address never changes.
#[derive(Debug)]
pub struct SharedAllocation {
    region: Region,
    len_bytes: usize,
    shown: Mutex<(Shown, Arc<AllocationSegment>)>,
}

impl SharedAllocation {
    /// Memory for `len_bytes` with undefined content; zero on request.
    ///
    /// # Errors
    /// As [`AllocationSegment::new`].
    pub fn new(len_bytes: u64, zeroed: bool) -> Result<Self, ShmError> {
        let created = AllocationSegment::new(len_bytes)?;
        let segment = created.segment();
        let region = Region::map(segment.fd(), Access::SharedWrite, 0, segment.len())?;
        platform::populate(&region, 0)?;
        let memory = Self {
            region,
            len_bytes: len_bytes as usize,
            shown: Mutex::new((Shown::Unsent, Arc::new(created))),
        };
        if zeroed {
            // SAFETY: mapped and writable for as long as `memory`, which nobody else has yet.
            unsafe { memory.as_mut_ptr().write_bytes(0, memory.len_bytes) };
        }
        Ok(memory)
    }

    /// Address of the first byte. The caller must synchronise writes there.
    pub fn as_mut_ptr(&self) -> *mut u8 {
        self.region.as_ptr()
    }

    /// The requested size.
    #[expect(clippy::len_without_is_empty, reason = "memory is never empty")]
    pub fn len(&self) -> usize {
        self.len_bytes
    }

    fn shown(&self) -> MutexGuard<'_, (Shown, Arc<AllocationSegment>)> {
        self.shown.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A segment that holds the current bytes and that this memory will not write to any more. The flag says whether
    /// all of them had to be copied, because some were written since the last time.
    ///
    /// # Errors
    /// [`ShmError::OutOfMemory`] or [`ShmError::System`]; the memory is as before.
    pub fn publish(&self) -> Result<(Arc<AllocationSegment>, bool), ShmError> {
        let mut shown = self.shown();
        match shown.0 {
            Shown::Unsent => {
                self.show(&shown.1, Access::Private)?;
                shown.0 = Shown::Sent;
                Ok((Arc::clone(&shown.1), false))
            }
            Shown::Sent if platform::is_untouched(&self.region, 0, self.len_bytes) => {
                Ok((Arc::clone(&shown.1), false))
            }
            Shown::Sent => {
                let fresh = self.copy()?;
                self.show(&fresh, Access::Private)?;
                shown.1 = Arc::clone(&fresh);
                Ok((fresh, true))
            }
            Shown::Window => Ok((self.copy()?, true)),
        }
    }

    /// A window: a segment to which this memory and everybody who maps it write. The flag says
    /// whether the bytes had to be copied, because their first segment was already sent as a
    /// private one.
    ///
    /// # Errors
    /// [`ShmError::OutOfMemory`] or [`ShmError::System`]; the memory is as before.
    pub fn open_window(&self) -> Result<(Arc<AllocationSegment>, bool), ShmError> {
        let mut shown = self.shown();
        let copied = shown.0 == Shown::Sent;
        if copied {
            let fresh = self.copy()?;
            self.show(&fresh, Access::SharedWrite)?;
            shown.1 = fresh;
        }
        shown.0 = Shown::Window;
        Ok((Arc::clone(&shown.1), copied))
    }

    /// Maps a segment over the current mapping, which a background thread unmaps.
    fn show(&self, created: &AllocationSegment, access: Access) -> Result<(), ShmError> {
        let before = self.region.replace(created.segment().fd(), access, 0)?;
        drop_memory(before, self.region.len() as u64);
        Ok(())
    }

    /// A segment of the same size with the current bytes.
    fn copy(&self) -> Result<Arc<AllocationSegment>, ShmError> {
        let mut created = AllocationSegment::new(self.region.len() as u64)?;
        // SAFETY: mapped and readable for as long as `self`; only Python code that runs beside the one that sends
        // the array could write meanwhile, and would see some of its writes sent.
        let bytes = unsafe { std::slice::from_raw_parts(self.as_mut_ptr(), self.len_bytes) };
        created.write(bytes)?;
        Ok(Arc::new(created))
    }
}
