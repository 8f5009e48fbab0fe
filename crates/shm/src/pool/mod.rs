//! The owner's segments: handed out by size, counted by reference, kept warm when free.

mod lease;
mod slab;

use std::collections::BTreeMap;
use std::sync::Arc;

use broadleaf_proto::{SegmentId, SegmentRef};

use self::lease::{Holds, Memory};
pub use self::lease::{Lease, Reading};
pub use self::slab::{MessageSlab, SLAB_BUFFER_BYTES, slab_range_bytes};
use crate::memory::{drop_memory, may_keep};
use crate::{Segment, ShmError, memory_limit_bytes, platform};

/// Default time that a free segment is kept for the next buffer of its size, in seconds.
pub const WARM_SECONDS: u64 = 5;

/// Limits of a [`Pool`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolConfig {
    /// Maximum size of segments, in use and warm.
    pub max_bytes: u64,
    /// Maximum number of segments; each takes one descriptor here, at the node and at each engine it goes to.
    pub max_segments: usize,
    /// Maximum size that [`Pool::trim`] leaves warm.
    pub max_warm_bytes: u64,
    /// Number of [`Pool::trim`] calls that a free segment survives without being used; with one call per second, its
    /// seconds.
    pub idle_trims: u64,
    /// Others may map its segments for writing: used for the pool of a host's node, where windows arrive from other
    /// hosts.
    pub open: bool,
}

impl Default for PoolConfig {
    /// A quarter of the available memory, half of it warm; half of the allowed descriptors.
    fn default() -> Self {
        let max_bytes = memory_limit_bytes() / 4;
        let max_segments = usize::try_from(platform::max_open_files() / 2).unwrap_or(usize::MAX);
        Self {
            max_bytes,
            max_segments,
            max_warm_bytes: max_bytes / 2,
            idle_trims: WARM_SECONDS,
            open: false,
        }
    }
}

/// What a pool holds, and what it has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolCounters {
    /// Segments, in use and warm.
    pub segments: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Bytes of the free ones among them.
    pub warm_bytes: u64,
    /// Segments ever created.
    pub created: u64,
    /// Buffers copied into segments.
    pub copies: u64,
    /// Their bytes.
    pub copied_bytes: u64,
    /// Regions of shared memory that this process has mapped, whether or not they belong to the pool.
    pub mappings: u64,
}

#[derive(Debug)]
enum State {
    /// The holder of its [`Lease`], who has its memory, is filling it.
    Leased,
    /// Referenced this many times, at least once; a lease of a range counts.
    Used(u64, Arc<Memory>),
    /// Free since this `trim` call.
    Warm(u64, Memory),
}

#[derive(Debug)]
struct Entry {
    size: u64,
    state: State,
    announced: bool,
    /// It may hold more than one buffer.
    is_slab: bool,
    /// Where the next buffer may begin.
    filled_bytes: u64,
    /// The pool's `copied_bytes` when it was last published.
    filled_at_bytes: u64,
}

/// The segments that one process owns.
#[derive(Debug)]
pub struct Pool {
    token: u32,
    config: PoolConfig,
    process: u32,
    next: u32,
    trims: u64,
    entries: BTreeMap<SegmentId, Entry>,
    /// Free segments by size, last freed last.
    warm: BTreeMap<u64, Vec<SegmentId>>,
    /// The slab whose next range is handed out next.
    filling: Option<SegmentId>,
    /// Slabs in use.
    slabs: u64,
    /// Announced segments that are gone, not yet reported.
    retired: Vec<SegmentId>,
    counters: PoolCounters,
}

impl Pool {
    /// An empty pool; `token` is the high half of its segments' ids, unique on this host.
    pub fn new(token: u32, config: PoolConfig) -> Self {
        Self {
            token,
            config,
            process: std::process::id(),
            next: 0,
            trims: 0,
            entries: BTreeMap::new(),
            warm: BTreeMap::new(),
            filling: None,
            slabs: 0,
            retired: Vec::new(),
            counters: PoolCounters::default(),
        }
    }

    fn check_process(&self) -> Result<(), ShmError> {
        if std::process::id() == self.process {
            Ok(())
        } else {
            Err(ShmError::Forked)
        }
    }

    /// A segment of at least `len_bytes` to fill: a warm one if one fits, or else a new one, for which warm ones of
    /// other sizes are closed.
    ///
    /// # Errors
    /// [`ShmError::OverCap`], [`ShmError::TooManySegments`], [`ShmError::BadSize`],
    /// [`ShmError::Forked`].
    pub fn allocate(&mut self, len_bytes: u64) -> Result<Lease, ShmError> {
        self.check_process()?;
        let size = segment_bytes(len_bytes, platform::page_bytes())
            .filter(|_| len_bytes > 0)
            .ok_or(ShmError::BadSize(len_bytes))?;
        let fitting = self.warm.range(size..=largest_fit_bytes(size)).next();
        let last_freed = fitting.and_then(|(size, ids)| Some((*size, *ids.last()?)));
        let (size, id, memory) = match last_freed {
            Some((size, id)) => (size, id, Holds::Whole(self.take_warm(id))),
            None => (size, self.make_room(size)?, Holds::Nothing),
        };
        Ok(self.lease(id, size, len_bytes, memory))
    }

    fn lease(&mut self, id: SegmentId, size: u64, len_bytes: u64, memory: Holds) -> Lease {
        let since_bytes = self.counters.copied_bytes - self.leased(id).filled_at_bytes;
        Lease {
            id,
            size,
            len_bytes,
            memory,
            since_bytes,
            copied: false,
            is_slab: false,
            open: self.config.open,
        }
    }

    fn take_warm(&mut self, id: SegmentId) -> Memory {
        let entry = self.entries.get_mut(&id);
        let entry = entry.expect("invariant: `warm` names entries");
        let size = entry.size;
        let State::Warm(_, memory) = std::mem::replace(&mut entry.state, State::Leased) else {
            unreachable!("invariant: `warm` names free entries")
        };
        self.forget_warm(id, size);
        memory
    }

    fn forget_warm(&mut self, id: SegmentId, size: u64) {
        let ids = self.warm.get_mut(&size);
        let ids = ids.expect("invariant: a free entry is listed under its size");
        ids.retain(|other| *other != id);
        if ids.is_empty() {
            self.warm.remove(&size);
        }
        self.counters.warm_bytes -= size;
    }

    /// Verifies that this many bytes would fit once everything in use has been released.
    ///
    /// # Errors
    /// [`ShmError::OverCap`].
    pub fn check_cap(&self, len_bytes: u64) -> Result<(), ShmError> {
        if len_bytes <= self.config.max_bytes {
            return Ok(());
        }
        Err(ShmError::OverCap {
            requested_bytes: len_bytes,
            used_bytes: self.counters.bytes - self.counters.warm_bytes,
            cap_bytes: self.config.max_bytes,
        })
    }

    fn make_room(&mut self, size: u64) -> Result<SegmentId, ShmError> {
        let used_bytes = self.counters.bytes - self.counters.warm_bytes;
        if size > self.config.max_bytes.saturating_sub(used_bytes) {
            return Err(ShmError::OverCap {
                requested_bytes: size,
                used_bytes,
                cap_bytes: self.config.max_bytes,
            });
        }
        while self.counters.bytes + size > self.config.max_bytes
            || self.entries.len() >= self.config.max_segments
        {
            let Some((_, id)) = self.longest_idle() else {
                return Err(ShmError::TooManySegments {
                    cap: self.config.max_segments,
                });
            };
            self.retire(id);
        }
        let id = self.fresh_id();
        self.counters.bytes += size;
        self.counters.created += 1;
        let entry = Entry {
            size,
            state: State::Leased,
            announced: false,
            is_slab: false,
            filled_bytes: 0,
            filled_at_bytes: self.counters.copied_bytes,
        };
        self.entries.insert(id, entry);
        Ok(id)
    }

    /// An id that names none of its segments, now or later.
    pub fn fresh_id(&mut self) -> SegmentId {
        loop {
            let id = SegmentId(u64::from(self.token) << 32 | u64::from(self.next));
            self.next = self.next.wrapping_add(1);
            if !self.entries.contains_key(&id) {
                return id;
            }
        }
    }

    /// Unmaps and closes a free segment.
    fn retire(&mut self, id: SegmentId) {
        drop(self.take_warm(id));
        self.forget(id);
    }

    fn forget(&mut self, id: SegmentId) {
        self.end_slab(id);
        let entry = self.entries.remove(&id);
        let entry = entry.expect("invariant: forgotten once");
        self.counters.bytes -= entry.size;
        if entry.announced {
            self.retired.push(id);
        }
    }

    /// Finishes filling: the bytes have one reference, and the result names them.
    ///
    /// # Panics
    /// If the lease was never filled, or belongs to another pool.
    pub fn publish(&mut self, lease: Lease) -> SegmentRef {
        if lease.copied {
            self.counters.copies += 1;
            self.counters.copied_bytes += lease.len_bytes;
        }
        let copied_bytes = self.counters.copied_bytes;
        let entry = self.leased(lease.id);
        entry.filled_at_bytes = copied_bytes;
        let offset_bytes = match lease.memory {
            Holds::Nothing => panic!("invariant: a published lease is filled"),
            Holds::Part(_, offset_bytes) => offset_bytes,
            Holds::Whole(memory) => {
                assert!(
                    memory.is_whole(),
                    "invariant: a published segment has all its pages"
                );
                entry.filled_bytes = lease
                    .len_bytes
                    .next_multiple_of(platform::page_bytes())
                    .min(entry.size);
                entry.state = State::Used(1, Arc::new(memory));
                if lease.is_slab {
                    self.begin_slab(lease.id);
                }
                0
            }
        };
        SegmentRef {
            segment: lease.id,
            offset_bytes,
            len_bytes: lease.len_bytes,
        }
    }

    /// Gives memory back, filled or not.
    ///
    /// # Panics
    /// If the lease belongs to another pool.
    pub fn cancel(&mut self, lease: Lease) {
        match lease.memory {
            Holds::Whole(memory) if memory.is_whole() => self.set_warm(lease.id, memory),
            Holds::Whole(memory) => {
                self.forget(lease.id);
                drop_memory(memory, lease.size);
            }
            Holds::Nothing => self.forget(lease.id),
            Holds::Part(memory, _) => {
                drop(memory);
                let released = self.release(lease.id);
                released.expect("invariant: the lease of a range has a reference");
            }
        }
    }

    fn leased(&mut self, id: SegmentId) -> &mut Entry {
        let entry = self.entries.get_mut(&id);
        entry.expect("invariant: a leased segment is not retired")
    }

    fn set_warm(&mut self, id: SegmentId, memory: Memory) {
        let since = self.trims;
        self.end_slab(id);
        let size = self.leased(id).size;
        // Small ones are not worth checking.
        if size >= SLAB_BUFFER_BYTES && !may_keep(self.counters.warm_bytes + size) {
            self.forget(id);
            return drop_memory(memory, size);
        }
        let entry = self.leased(id);
        entry.state = State::Warm(since, memory);
        let size = entry.size;
        self.warm.entry(size).or_default().push(id);
        self.counters.warm_bytes += size;
    }

    /// Allocates, fills and publishes in one step: copies bytes into a segment, which they may share with others, with
    /// one reference.
    ///
    /// # Errors
    /// As [`Pool::allocate_shared`] and [`Lease::fill`].
    pub fn copy_in(&mut self, bytes: &[u8]) -> Result<SegmentRef, ShmError> {
        let mut lease = self.allocate_shared(bytes.len() as u64, &mut MessageSlab::default())?;
        match lease.fill(bytes) {
            Ok(()) => Ok(self.publish(lease)),
            Err(error) => {
                self.cancel(lease);
                Err(error)
            }
        }
    }

    /// Takes `n` more references to a segment that has one.
    ///
    /// # Errors
    /// [`ShmError::NotReferenced`].
    pub fn add_reference(&mut self, id: SegmentId, n: u64) -> Result<(), ShmError> {
        match self.entries.get_mut(&id).map(|entry| &mut entry.state) {
            Some(State::Used(count, _)) => {
                *count += n;
                Ok(())
            }
            _ => Err(ShmError::NotReferenced(id)),
        }
    }

    /// Takes one more reference to the segment of a range, and returns its bytes for reading. Slabs
    /// are excluded: a freed range of one may be written to while other ranges are in use.
    ///
    /// # Errors
    /// [`ShmError::NotReferenced`]; nothing changes.
    pub fn read(&mut self, range: &SegmentRef) -> Result<Reading, ShmError> {
        let unknown = || ShmError::NotReferenced(range.segment);
        let entry = self.entries.get_mut(&range.segment);
        let entry = entry.ok_or_else(unknown)?;
        let end = range.offset_bytes.checked_add(range.len_bytes);
        let fits = |end: &u64| *end <= entry.size && !entry.is_slab;
        let end = end.filter(fits).ok_or_else(unknown)?;
        let State::Used(count, memory) = &mut entry.state else {
            return Err(unknown());
        };
        *count += 1;
        Ok(Reading {
            memory: Arc::clone(memory),
            start: range.offset_bytes as usize,
            end: end as usize,
        })
    }

    /// Releases one reference. True if it was the last: the segment may be reused from now on.
    ///
    /// # Errors
    /// [`ShmError::NotReferenced`]; nothing changes.
    pub fn release(&mut self, id: SegmentId) -> Result<bool, ShmError> {
        let entry = self.entries.get_mut(&id);
        let entry = entry.ok_or(ShmError::NotReferenced(id))?;
        match std::mem::replace(&mut entry.state, State::Leased) {
            State::Used(1, memory) => {
                match Arc::into_inner(memory) {
                    Some(memory) => self.set_warm(id, memory),
                    // Somebody without a reference still reads it, so it must not be written to again.
                    None => self.forget(id),
                }
                Ok(true)
            }
            State::Used(count, memory) => {
                entry.state = State::Used(count - 1, memory);
                Ok(false)
            }
            other => {
                entry.state = other;
                Err(ShmError::NotReferenced(id))
            }
        }
    }

    /// The segment, for its descriptor and size; `None` while it is being filled and once retired.
    pub fn segment(&self, id: SegmentId) -> Option<&Segment> {
        match &self.entries.get(&id)?.state {
            State::Used(_, memory) => Some(&memory.segment),
            State::Warm(_, memory) => Some(&memory.segment),
            State::Leased => None,
        }
    }

    /// Whether the segment's descriptor has yet to be announced.
    pub fn is_new(&self, id: SegmentId) -> bool {
        self.entries.get(&id).is_some_and(|entry| !entry.announced)
    }

    /// The segment's descriptor has been sent.
    pub fn mark_announced(&mut self, id: SegmentId) {
        if let Some(entry) = self.entries.get_mut(&id) {
            entry.announced = true;
        }
    }

    /// The segment's descriptor was not sent after all.
    pub fn unmark_announced(&mut self, id: SegmentId) {
        if let Some(entry) = self.entries.get_mut(&id) {
            entry.announced = false;
        }
    }

    /// What the pool holds, and what it has done.
    pub fn counters(&self) -> PoolCounters {
        PoolCounters {
            segments: self.entries.len() as u64,
            mappings: platform::live_regions(),
            ..self.counters
        }
    }
}

// Returning free segments to the system.

impl Pool {
    /// The segment that has been free longest, and since which call of `trim`.
    pub(super) fn longest_idle(&self) -> Option<(u64, SegmentId)> {
        let free = self
            .entries
            .iter()
            .filter_map(|(id, entry)| match entry.state {
                State::Warm(since, _) => Some((since, *id)),
                _ => None,
            });
        free.min()
    }

    /// Whether a call of [`Pool::trim`] has, or will have, something to do.
    pub fn needs_trim(&self) -> bool {
        self.counters.warm_bytes > 0 || !self.retired.is_empty()
    }

    /// Retires all free segments because memory is short; returns whether there were any. The next [`Pool::trim`] says
    /// which.
    pub fn give_up_warm(&mut self) -> bool {
        let any = self.counters.warm_bytes > 0;
        while let Some((_, id)) = self.longest_idle() {
            self.retire(id);
        }
        any
    }

    /// Retires free segments that no recent call saw in use, and the longest idle ones above the warm limit; call it
    /// regularly. Returns every announced segment retired since the last call, even by `allocate`: processes that map
    /// them should close them.
    pub fn trim(&mut self) -> Vec<SegmentId> {
        self.trims += 1;
        let mut idle = Vec::new();
        let bytes_before = self.counters.bytes;
        while let Some((since, id)) = self.longest_idle() {
            let expired = self.trims - since > self.config.idle_trims;
            if !expired && self.counters.warm_bytes <= self.config.max_warm_bytes {
                break;
            }
            idle.push(self.take_warm(id));
            self.forget(id);
        }
        drop_memory(idle, bytes_before - self.counters.bytes);
        self.take_retired()
    }

    /// Every announced segment retired since the last call: processes that map them should close them, and until then
    /// their memory is not free.
    pub fn take_retired(&mut self) -> Vec<SegmentId> {
        std::mem::take(&mut self.retired)
    }

    /// Whether [`Pool::take_retired`] would return any.
    pub fn has_retired(&self) -> bool {
        !self.retired.is_empty()
    }

    /// Retires all segments except those to keep and those being filled: no reference will be released any more.
    pub fn retain(&mut self, keep: impl Fn(&SegmentId) -> bool) {
        let unwanted: Vec<_> = self
            .entries
            .iter()
            .filter(|(id, entry)| !keep(id) && !matches!(entry.state, State::Leased))
            .map(|(id, entry)| (*id, matches!(entry.state, State::Warm(..))))
            .collect();
        for (id, is_warm) in unwanted {
            if is_warm {
                self.retire(id);
            } else {
                self.forget(id);
            }
        }
    }
}

// Size classes of segments, so that a freed one fits the next buffer of similar size.

/// Smallest segment.
pub(crate) const MIN_SEGMENT_BYTES: u64 = 64 * 1024;
/// Above this a segment is as large as its first buffer, rounded to a page.
pub(crate) const MAX_CLASS_BYTES: u64 = 64 * 1024 * 1024;

/// Size of the segment for a buffer of `len_bytes`: a power of two, or one, two or three quarters more, so that at most a
/// fifth is not used; whole pages above [`MAX_CLASS_BYTES`]. `None` when that overflows.
pub(crate) fn segment_bytes(len_bytes: u64, page_bytes: u64) -> Option<u64> {
    if len_bytes > MAX_CLASS_BYTES {
        return len_bytes.checked_next_multiple_of(page_bytes);
    }
    let needed_bytes = len_bytes.max(MIN_SEGMENT_BYTES);
    let quarter = (needed_bytes.next_power_of_two() / 2 / 4).max(MIN_SEGMENT_BYTES / 4);
    needed_bytes
        .checked_next_multiple_of(quarter)?
        .checked_next_multiple_of(page_bytes)
}

/// Largest warm segment to use for one of `segment_bytes`: a little waste is better than a cold segment.
pub(crate) fn largest_fit_bytes(segment_bytes: u64) -> u64 {
    segment_bytes.saturating_add(segment_bytes / 4)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_are_powers_and_their_quarters() {
        let class = |n| segment_bytes(n, 4096);
        assert_eq!(class(1), Some(65_536));
        assert_eq!(class(65_536), Some(65_536));
        assert_eq!(class(65_537), Some(81_920));
        assert_eq!(class(81_921), Some(98_304));
        assert_eq!(class(98_305), Some(114_688));
        assert_eq!(class(4_000_000), Some(4 << 20));
        assert_eq!(class((32 << 20) + 1), Some(40 << 20));
        assert_eq!(class((3 << 20) - 1), Some(3 << 20));
        assert_eq!(class(MAX_CLASS_BYTES), Some(MAX_CLASS_BYTES));
        assert_eq!(class(MAX_CLASS_BYTES + 1), Some(MAX_CLASS_BYTES + 4096));
        assert_eq!(class(u64::MAX), None);
    }
}
