//! The owner's segments: handed out by size, counted by reference, kept warm when free.

use std::collections::BTreeMap;

use broadleaf_proto::{SegmentId, SegmentRef};

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
enum State {
    /// Being filled by the holder of its [`Lease`], who has its mapping.
    Leased,
    /// Referenced this many times, at least once.
    Used(u64, WritableMapping),
    /// Free since this call of `trim`.
    Warm(u64, WritableMapping),
}

#[derive(Debug)]
struct Entry {
    segment: Segment,
    state: State,
    announced: bool,
}

/// A segment being filled: the only way to write to it. Give it back with [`Pool::publish`] or
/// [`Pool::cancel`]; filling needs no access to the pool, so a large copy holds no lock.
#[derive(Debug)]
#[must_use = "a lease that is neither published nor cancelled occupies its pool"]
pub struct Lease {
    id: SegmentId,
    len_bytes: u64,
    mapping: WritableMapping,
}

impl Lease {
    /// The segment.
    pub fn id(&self) -> SegmentId {
        self.id
    }

    /// The bytes asked for. A reused segment still has its last content.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        &mut self.mapping.as_mut_slice()[..self.len_bytes as usize]
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
    /// [`ShmError::OverCap`], [`ShmError::TooManySegments`], [`ShmError::OutOfMemory`],
    /// [`ShmError::BadSize`], [`ShmError::Forked`].
    pub fn allocate(&mut self, len_bytes: u64) -> Result<Lease, ShmError> {
        if std::process::id() != self.process {
            return Err(ShmError::Forked);
        }
        let size = segment_bytes(len_bytes, platform::page_bytes())
            .filter(|_| len_bytes > 0)
            .ok_or(ShmError::BadSize(len_bytes))?;
        let fitting = self.warm.range(size..=largest_fit_bytes(size)).next();
        let (id, mapping) = match fitting.and_then(|(_, ids)| ids.last().copied()) {
            Some(id) => (id, self.take_warm(id)),
            None => self.create(size)?,
        };
        Ok(Lease {
            id,
            len_bytes,
            mapping,
        })
    }

    fn take_warm(&mut self, id: SegmentId) -> WritableMapping {
        let entry = self.entries.get_mut(&id);
        let entry = entry.expect("invariant: `warm` names entries");
        let size = entry.segment.len();
        let State::Warm(_, mapping) = std::mem::replace(&mut entry.state, State::Leased) else {
            unreachable!("invariant: `warm` names free entries")
        };
        self.forget_warm(id, size);
        mapping
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

    fn create(&mut self, size: u64) -> Result<(SegmentId, WritableMapping), ShmError> {
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
            let Some(id) = self.longest_idle() else {
                return Err(ShmError::TooManySegments {
                    cap: self.config.max_segments,
                });
            };
            self.retire(id);
        }
        let (segment, mapping) = Segment::create(size)?;
        let id = self.fresh_id();
        self.counters.bytes += size;
        self.counters.created += 1;
        let entry = Entry {
            segment,
            state: State::Leased,
            announced: false,
        };
        self.entries.insert(id, entry);
        Ok((id, mapping))
    }

    fn fresh_id(&mut self) -> SegmentId {
        loop {
            let id = SegmentId(u64::from(self.token) << 32 | u64::from(self.next));
            self.next = self.next.wrapping_add(1);
            if !self.entries.contains_key(&id) {
                return id;
            }
        }
    }

    fn longest_idle(&self) -> Option<SegmentId> {
        let free = self
            .entries
            .iter()
            .filter_map(|(id, entry)| match entry.state {
                State::Warm(since, _) => Some((since, *id)),
                _ => None,
            });
        free.min().map(|(_, id)| id)
    }

    /// Unmaps and closes a free segment.
    fn retire(&mut self, id: SegmentId) {
        let Some(entry) = self.entries.remove(&id) else {
            return;
        };
        let size = entry.segment.len();
        self.forget_warm(id, size);
        self.counters.bytes -= size;
        if entry.announced {
            self.retired.push(id);
        }
    }

    /// Ends filling: the segment has one reference, and this names its bytes.
    ///
    /// # Panics
    /// When the lease is another pool's.
    pub fn publish(&mut self, lease: Lease) -> SegmentRef {
        let Lease {
            id,
            len_bytes,
            mapping,
        } = lease;
        let entry = self.entries.get_mut(&id);
        let entry = entry.expect("invariant: a leased segment is not retired");
        entry.state = State::Used(1, mapping);
        SegmentRef {
            segment: id,
            offset_bytes: 0,
            len_bytes,
        }
    }

    /// Gives a segment back unfilled.
    ///
    /// # Panics
    /// When the lease is another pool's.
    pub fn cancel(&mut self, lease: Lease) {
        let id = self.publish(lease).segment;
        self.release(id)
            .expect("invariant: a published segment has a reference");
    }

    /// Copies bytes into a segment with one reference: the one copy a payload costs.
    ///
    /// # Errors
    /// As [`Pool::allocate`].
    pub fn copy_in(&mut self, bytes: &[u8]) -> Result<SegmentRef, ShmError> {
        let mut lease = self.allocate(bytes.len() as u64)?;
        lease.as_mut_slice().copy_from_slice(bytes);
        self.count_copy(bytes.len() as u64);
        Ok(self.publish(lease))
    }

    /// Counts a copy that the holder of a [`Lease`] made.
    pub fn count_copy(&mut self, copied_bytes: u64) {
        self.counters.copies += 1;
        self.counters.copied_bytes += copied_bytes;
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
            State::Used(1, mapping) => {
                entry.state = State::Warm(self.trims, mapping);
                let size = entry.segment.len();
                self.warm.entry(size).or_default().push(id);
                self.counters.warm_bytes += size;
                Ok(true)
            }
            State::Used(count, mapping) => {
                entry.state = State::Used(count - 1, mapping);
                Ok(false)
            }
            other => {
                entry.state = other;
                Err(ShmError::NotReferenced(id))
            }
        }
    }

    /// The segment, for its descriptor and size; `None` once it is retired.
    pub fn segment(&self, id: SegmentId) -> Option<&Segment> {
        self.entries.get(&id).map(|entry| &entry.segment)
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

    /// Retires free segments that no recent call saw used, and the longest idle above the warm
    /// bound; call it now and then. Returns every announced segment retired since the last call, by
    /// `allocate` too: their mappers should close them.
    pub fn trim(&mut self) -> Vec<SegmentId> {
        self.trims += 1;
        while let Some(id) = self.longest_idle() {
            let State::Warm(since, _) = self.entries[&id].state else {
                unreachable!("invariant: idle entries are free")
            };
            let expired = self.trims - since > self.config.idle_trims;
            if !expired && self.counters.warm_bytes <= self.config.max_warm_bytes {
                break;
            }
            self.retire(id);
        }
        std::mem::take(&mut self.retired)
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
