//! Functions by content: each body is kept once while a connected client, a live task or a kept one names it.

use broadleaf_proto::ids::{FunctionHash, FunctionId};
use broadleaf_proto::task::FunctionRecord;
use bytes::Bytes;
use indexmap::IndexMap;
use rustc_hash::FxBuildHasher;
use slab::Slab;

#[derive(Debug)]
struct Cached {
    hash: FunctionHash,
    body: Bytes,
    references: u64,
}

/// See the module. Its slots are the function ids towards engines; a slot may be used again, its new
/// record then replaces the old one on every engine before a task names it.
#[derive(Debug, Default)]
pub(crate) struct Functions {
    cache: Slab<Cached>,
    by_hash: IndexMap<FunctionHash, u32, FxBuildHasher>,
    bytes: u64,
}

impl Functions {
    /// Takes a reference on a function, keeping a copy of its body if it is new: the body itself shares the memory of all
    /// that was received with it.
    pub fn define(&mut self, hash: FunctionHash, body: &Bytes) -> u32 {
        if let Some(slot) = self.by_hash.get(&hash) {
            self.cache[*slot as usize].references += 1;
            return *slot;
        }
        self.bytes += body.len() as u64;
        let slot = self.cache.insert(Cached {
            hash,
            body: Bytes::copy_from_slice(body),
            references: 1,
        }) as u32;
        self.by_hash.insert(hash, slot);
        slot
    }

    pub fn retain(&mut self, slot: u32) {
        self.cache[slot as usize].references += 1;
    }

    /// Gives a reference up; true when it was the last and the slot is free.
    pub fn release(&mut self, slot: u32) -> bool {
        let cached = &mut self.cache[slot as usize];
        cached.references -= 1;
        if cached.references > 0 {
            return false;
        }
        let cached = self.cache.remove(slot as usize);
        self.by_hash.swap_remove(&cached.hash);
        self.bytes -= cached.body.len() as u64;
        true
    }

    /// The record to send to an engine.
    pub fn record(&self, slot: u32) -> FunctionRecord {
        let cached = &self.cache[slot as usize];
        FunctionRecord {
            function: FunctionId(slot),
            hash: cached.hash,
            body: cached.body.clone(),
        }
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
