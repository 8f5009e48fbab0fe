//! Functions by content: each body is held once while a connected client, a live task or a stored
//! one names it.

use broadleaf_proto::ids::{EngineId, FunctionHash, FunctionId};
use broadleaf_proto::task::FunctionRecord;
use bytes::Bytes;
use indexmap::IndexMap;
use rustc_hash::FxBuildHasher;
use slab::Slab;

use crate::lists::NumberSet;

#[derive(Clone, Debug)]
struct Cached {
    hash: FunctionHash,
    name: Bytes,
    body: Bytes,
    references: u64,
    times: Times,
    unfinished: u64,
    /// Mean time of its recent tasks, but for those that were an engine's first of it; 0 while none has ended.
    recent_ns: u64,
    /// The same of those, which took longer: caches were cold, pages shared, modules not imported.
    first_ns: u64,
    /// The engine of the last one of those.
    tried_on: Option<EngineId>,
    /// The engines that were sent it. Some may have forgotten it since.
    taught: NumberSet,
}

impl Cached {
    fn typical_ns(&self) -> u64 {
        if self.recent_ns == 0 {
            self.first_ns
        } else {
            self.recent_ns
        }
    }
}

/// What a task costs its engine besides its own time, about.
const OVERHEAD_NS: u64 = 1_000;

/// A task counts as at most this many mean ones: an engine that had to wait for the processor says nothing about the
/// function. One that has become longer by itself is known after some ten tasks.
const MAX_GROWTH: u64 = 4;

/// The time that a function's tasks took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Times {
    /// Tasks that ended.
    pub tasks: u64,
    /// Tasks that raised an error.
    pub errors: u64,
    /// Total time.
    pub total_ns: u64,
    /// Duration of the longest one.
    pub max_ns: u64,
}

/// A function that tasks have called.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FunctionTimes {
    /// The start of its hash, by which events name it.
    pub tag: u32,
    /// Its name, as its first client gave it: UTF-8, if the client was honest.
    pub name: Bytes,
    /// Its tasks.
    pub times: Times,
    /// Tasks that have not ended.
    pub unfinished: u64,
}

/// See the module. Its slots are the function ids that engines see. A slot may be used again: its
/// new record then replaces the old one on every engine before a task names it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Functions {
    cache: Slab<Cached>,
    by_hash: IndexMap<FunctionHash, u32, FxBuildHasher>,
    bytes: u64,
    /// Slots that were freed while relays may have had their functions, since the driver last asked.
    freed: Vec<FunctionId>,
}

impl Functions {
    /// Takes a reference to a function and copies its body if it is new: the body itself shares
    /// memory with everything that was received with it.
    pub fn define(&mut self, hash: FunctionHash, name: &Bytes, body: &Bytes) -> u32 {
        if let Some(slot) = self.by_hash.get(&hash) {
            self.cache[*slot as usize].references += 1;
            return *slot;
        }
        self.bytes += body.len() as u64;
        let slot = self.cache.insert(Cached {
            hash,
            name: Bytes::copy_from_slice(name),
            body: Bytes::copy_from_slice(body),
            references: 1,
            times: Times::default(),
            unfinished: 0,
            recent_ns: 0,
            first_ns: 0,
            tried_on: None,
            taught: NumberSet::default(),
        }) as u32;
        self.by_hash.insert(hash, slot);
        slot
    }

    pub fn retain(&mut self, slot: u32) {
        self.cache[slot as usize].references += 1;
    }

    /// An engine is sent a function.
    pub fn note_taught(&mut self, slot: u32, engine: u32) {
        self.cache[slot as usize].taught.insert(engine);
    }

    /// Releases a reference; if it was the last, the slot is free, and these engines may know its function.
    pub fn release(&mut self, slot: u32) -> Option<NumberSet> {
        let cached = &mut self.cache[slot as usize];
        cached.references -= 1;
        if cached.references > 0 {
            return None;
        }
        let cached = self.cache.remove(slot as usize);
        self.by_hash.swap_remove(&cached.hash);
        self.bytes -= cached.body.len() as u64;
        Some(cached.taught)
    }

    /// Relays may have the function of a slot that is free now.
    pub fn note_freed(&mut self, slot: u32) {
        self.freed.push(FunctionId(slot));
    }

    /// What relays need not keep: functions that were freed since the last call.
    pub fn take_freed(&mut self) -> Vec<FunctionId> {
        core::mem::take(&mut self.freed)
    }

    /// The record to send to an engine.
    pub fn record(&self, slot: u32) -> FunctionRecord {
        let cached = &self.cache[slot as usize];
        FunctionRecord {
            function: FunctionId(slot),
            hash: cached.hash,
            name: Bytes::new(),
            body: cached.body.clone(),
        }
    }

    /// A task of this function was submitted.
    pub fn begin(&mut self, slot: u32) {
        self.cache[slot as usize].unfinished += 1;
    }

    /// A task of this function is no more.
    pub fn end(&mut self, slot: u32) {
        self.cache[slot as usize].unfinished -= 1;
    }

    /// A task of this function ran, on an engine for the first time or not.
    pub fn observe(
        &mut self,
        slot: u32,
        engine: EngineId,
        is_first: bool,
        task_ns: u64,
        is_error: bool,
    ) {
        let cached = &mut self.cache[slot as usize];
        let busy_ns = task_ns.saturating_add(OVERHEAD_NS);
        let mean_ns = if is_first {
            cached.tried_on = Some(engine);
            &mut cached.first_ns
        } else {
            &mut cached.recent_ns
        };
        *mean_ns = if *mean_ns == 0 {
            busy_ns
        } else {
            let counted_ns = busy_ns.min(mean_ns.saturating_mul(MAX_GROWTH));
            *mean_ns - *mean_ns / 8 + counted_ns / 8
        };
        let times = &mut cached.times;
        times.tasks += 1;
        times.errors += u64::from(is_error);
        times.total_ns = times.total_ns.saturating_add(task_ns);
        times.max_ns = times.max_ns.max(task_ns);
    }

    /// The engine on which a task of this function would tell how long they take: so far it is known only of first ones.
    pub fn tells_more(&self, slot: u32) -> Option<EngineId> {
        let cached = &self.cache[slot as usize];
        cached.tried_on.filter(|_| cached.recent_ns == 0)
    }

    /// How long a task of this function has kept an engine busy lately; 0 if none has ended.
    pub fn recent_ns(&self, slot: u32) -> u64 {
        self.cache.get(slot as usize).map_or(0, Cached::typical_ns)
    }

    /// The same, if that is known to be less than `limit_ns`; 0 if not.
    pub fn short_ns(&self, slot: u32, limit_ns: u64) -> u32 {
        let recent_ns = self.cache[slot as usize].typical_ns();
        let is_short = recent_ns < limit_ns;
        u32::try_from(recent_ns).map_or(0, |ns| if is_short { ns } else { 0 })
    }

    /// Its name; shares memory.
    pub fn name(&self, slot: u32) -> Bytes {
        self.cache
            .get(slot as usize)
            .map_or_else(Bytes::new, |c| c.name.clone())
    }

    /// The id by which events name it.
    pub fn tag(&self, slot: u32) -> u32 {
        self.cache
            .get(slot as usize)
            .map_or(0, |cached| cached.hash.tag())
    }

    /// How many of its tasks have not ended.
    pub fn unfinished(&self, slot: u32) -> u64 {
        self.cache.get(slot as usize).map_or(0, |c| c.unfinished)
    }

    /// All functions that tasks call or have called.
    pub fn called(&self) -> impl Iterator<Item = FunctionTimes> {
        let called = (self.cache.iter()).filter(|(_, c)| c.times.tasks + c.unfinished > 0);
        called.map(|(_, cached)| FunctionTimes {
            tag: cached.hash.tag(),
            name: cached.name.clone(),
            times: cached.times,
            unfinished: cached.unfinished,
        })
    }

    pub fn len(&self) -> usize {
        self.cache.len()
    }
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
    pub fn references(&self, slot: u32) -> u64 {
        self.cache.get(slot as usize).map_or(0, |c| c.references)
    }
    pub fn slots(&self) -> impl Iterator<Item = u32> {
        self.cache.iter().map(|(slot, _)| slot as u32)
    }
}
