//! The owner's segments: handed out by size, counted by reference, kept warm when free.

use std::collections::BTreeMap;

use broadleaf_proto::{SegmentId, SegmentRef};

use crate::background::drop_memory;
use crate::copy::copy;
use crate::size_class::{largest_fit_bytes, segment_bytes};
use crate::{Segment, ShmError, WritableMapping, memory_limit_bytes, platform};

/// Bounds of a [`Pool`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolConfig {
    /// Most bytes of segments, in use and warm.
    pub max_bytes: u64,
    /// Most segments; each holds one descriptor here, at the node and at each engine it goes to.
    pub max_segments: usize,
    /// Most bytes that [`Pool::trim`] leaves warm.
    pub max_warm_bytes: u64,
    /// Calls of [`Pool::trim`] that a free segment outlives without being used.
    pub idle_trims: u64,
    /// Others may map its segments to write: the pool of a host's node, where windows come in from other hosts.
    pub open: bool,
}

impl Default for PoolConfig {
    /// A quarter of the memory there is, half of it warm; half of the descriptors allowed.
    fn default() -> Self {
        let max_bytes = memory_limit_bytes() / 4;
        let max_segments = usize::try_from(platform::max_open_files() / 2).unwrap_or(usize::MAX);
        Self {
            max_bytes,
            max_segments,
            max_warm_bytes: max_bytes / 2,
            idle_trims: 10,
            open: false,
        }
    }
}

/// What a pool holds and has done.
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
    /// Regions of shared memory that this process has mapped, the pool's or not.
    pub mappings: u64,
}

#[derive(Debug)]
struct Memory {
    segment: Segment,
    mapping: WritableMapping,
}

#[derive(Debug)]
enum State {
    /// Being filled by the holder of its [`Lease`], who has its memory.
    Leased,
    /// Referenced this many times, at least once.
    Used(u64, Memory),
    /// Free since this call of `trim`.
    Warm(u64, Memory),
}

#[derive(Debug)]
struct Entry {
    size: u64,
    state: State,
    announced: bool,
    /// The pool's `copied_bytes` when it was last published.
    filled_at_bytes: u64,
}

/// A segment to fill: the only way to write to it. Filling, and taking memory for a new segment,
/// needs no access to the pool, so a large copy holds no lock. Give it back with [`Pool::publish`]
/// or [`Pool::cancel`].
#[derive(Debug)]
#[must_use = "a lease that is neither published nor cancelled occupies its pool"]
pub struct Lease {
    id: SegmentId,
    size: u64,
    len_bytes: u64,
    /// `None` for a new segment until it is filled.
    memory: Option<Memory>,
    /// Bytes the pool copied since the segment was last written.
    since_bytes: u64,
    copied: bool,
    open: bool,
}

impl Lease {
    /// The segment.
    pub fn id(&self) -> SegmentId {
        self.id
    }

    /// The segment's memory, once it was taken: for readers who know which part of it is filled.
    pub fn segment(&self) -> Option<&Segment> {
        self.memory.as_ref().map(|memory| &memory.segment)
    }

    /// Copies a buffer of the length asked for into the segment: the one copy a payload costs.
    ///
    /// # Errors
    /// [`ShmError::OutOfMemory`], [`ShmError::System`]: cancel the lease.
    /// [`ShmError::SizeMismatch`] for a buffer of another length.
    pub fn fill(&mut self, bytes: &[u8]) -> Result<(), ShmError> {
        if bytes.len() as u64 != self.len_bytes {
            return Err(ShmError::SizeMismatch {
                claimed_bytes: self.len_bytes,
                actual_bytes: bytes.len() as u64,
            });
        }
        match &mut self.memory {
            Some(memory) => copy(
                &mut memory.mapping.as_mut_slice()[..bytes.len()],
                bytes,
                self.since_bytes,
            ),
            None => self.memory = Some(Memory::create(self.size, bytes, self.open)?),
        }
        self.copied = true;
        Ok(())
    }

    /// The bytes asked for, to write in place. A reused segment still has its last content.
    ///
    /// # Errors
    /// [`ShmError::OutOfMemory`], [`ShmError::System`]: cancel the lease.
    pub fn as_mut_slice(&mut self) -> Result<&mut [u8], ShmError> {
        let memory = match self.memory.take() {
            Some(memory) => memory,
            None => Memory::create(self.size, &[], self.open)?,
        };
        let memory = self.memory.insert(memory);
        Ok(&mut memory.mapping.as_mut_slice()[..self.len_bytes as usize])
    }
}

impl Memory {
    fn create(size: u64, content: &[u8], open: bool) -> Result<Self, ShmError> {
        let (segment, mapping) = if open {
            Segment::create_unsealed(size, content)?
        } else {
            Segment::create(size, content)?
        };
        Ok(Self { segment, mapping })
    }
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
            retired: Vec::new(),
            counters: PoolCounters::default(),
        }
    }

    /// A segment of at least `len_bytes` to fill: a warm one if one fits, else a new one, for which
    /// warm ones of other sizes give way.
    ///
    /// # Errors
    /// [`ShmError::OverCap`], [`ShmError::TooManySegments`], [`ShmError::BadSize`],
    /// [`ShmError::Forked`].
    pub fn allocate(&mut self, len_bytes: u64) -> Result<Lease, ShmError> {
        if std::process::id() != self.process {
            return Err(ShmError::Forked);
        }
        let size = segment_bytes(len_bytes, platform::page_bytes())
            .filter(|_| len_bytes > 0)
            .ok_or(ShmError::BadSize(len_bytes))?;
        let fitting = self.warm.range(size..=largest_fit_bytes(size)).next();
        let last_freed = fitting.and_then(|(size, ids)| Some((*size, *ids.last()?)));
        let (size, id, memory) = match last_freed {
            Some((size, id)) => (size, id, Some(self.take_warm(id))),
            None => (size, self.make_room(size)?, None),
        };
        let since_bytes = self.counters.copied_bytes - self.leased(id).filled_at_bytes;
        Ok(Lease {
            id,
            size,
            len_bytes,
            memory,
            since_bytes,
            copied: false,
            open: self.config.open,
        })
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

    /// Enters a new segment, for which idle ones give way if they must.
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

    /// The segment that has been free longest, and since which call of `trim`.
    fn longest_idle(&self) -> Option<(u64, SegmentId)> {
        let free = self
            .entries
            .iter()
            .filter_map(|(id, entry)| match entry.state {
                State::Warm(since, _) => Some((since, *id)),
                _ => None,
            });
        free.min()
    }

    /// Unmaps and closes a free segment.
    fn retire(&mut self, id: SegmentId) {
        drop(self.take_warm(id));
        self.forget(id);
    }

    fn forget(&mut self, id: SegmentId) {
        let entry = self.entries.remove(&id);
        let entry = entry.expect("invariant: forgotten once");
        self.counters.bytes -= entry.size;
        if entry.announced {
            self.retired.push(id);
        }
    }

    /// Ends filling: the segment has one reference, and this names its bytes.
    ///
    /// # Panics
    /// When the lease was never filled, or is another pool's.
    pub fn publish(&mut self, lease: Lease) -> SegmentRef {
        let memory = lease
            .memory
            .expect("invariant: a published lease is filled");
        if lease.copied {
            self.counters.copies += 1;
            self.counters.copied_bytes += lease.len_bytes;
        }
        let copied_bytes = self.counters.copied_bytes;
        let entry = self.leased(lease.id);
        entry.filled_at_bytes = copied_bytes;
        entry.state = State::Used(1, memory);
        SegmentRef {
            segment: lease.id,
            offset_bytes: 0,
            len_bytes: lease.len_bytes,
        }
    }

    /// Gives a segment back, filled or not.
    ///
    /// # Panics
    /// When the lease is another pool's.
    pub fn cancel(&mut self, lease: Lease) {
        match lease.memory {
            Some(memory) => self.set_warm(lease.id, memory),
            None => self.forget(lease.id),
        }
    }

    fn leased(&mut self, id: SegmentId) -> &mut Entry {
        let entry = self.entries.get_mut(&id);
        entry.expect("invariant: a leased segment is not retired")
    }

    fn set_warm(&mut self, id: SegmentId, memory: Memory) {
        let since = self.trims;
        let entry = self.leased(id);
        entry.state = State::Warm(since, memory);
        let size = entry.size;
        self.warm.entry(size).or_default().push(id);
        self.counters.warm_bytes += size;
    }

    /// Copies bytes into a segment with one reference, all at once.
    ///
    /// # Errors
    /// As [`Pool::allocate`] and [`Lease::fill`].
    pub fn copy_in(&mut self, bytes: &[u8]) -> Result<SegmentRef, ShmError> {
        let mut lease = self.allocate(bytes.len() as u64)?;
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

    /// Gives up one reference. True when it was the last: the segment may be reused from now on.
    ///
    /// # Errors
    /// [`ShmError::NotReferenced`]; nothing changes.
    pub fn release(&mut self, id: SegmentId) -> Result<bool, ShmError> {
        let entry = self.entries.get_mut(&id);
        let entry = entry.ok_or(ShmError::NotReferenced(id))?;
        match std::mem::replace(&mut entry.state, State::Leased) {
            State::Used(1, memory) => {
                self.set_warm(id, memory);
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
            State::Used(_, memory) | State::Warm(_, memory) => Some(&memory.segment),
            State::Leased => None,
        }
    }

    /// Whether the segment's descriptor has still to be announced.
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

    /// Retires free segments that no recent call saw used, and the longest idle above the warm
    /// bound; call it now and then. Returns every announced segment retired since the last call, by
    /// `allocate` too: their mappers should close them.
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
        std::mem::take(&mut self.retired)
    }

    /// Retires all segments but these and those that are being filled: no reference will be given back any more.
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

    /// What the pool holds and has done.
    pub fn counters(&self) -> PoolCounters {
        PoolCounters {
            segments: self.entries.len() as u64,
            mappings: platform::live_regions(),
            ..self.counters
        }
    }
}
