//! The shared allocations of this process, found by their address.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use broadleaf_shm::SharedAllocation;

use crate::payload::lock;

/// A part of an array smaller than one in this many is copied, so that it does not keep the whole alive.
const MIN_SHARE_DIVISOR: usize = 4;

static BY_START: Mutex<BTreeMap<usize, Arc<SharedAllocation>>> = Mutex::new(BTreeMap::new());

/// Registers the memory of an array.
pub fn enter(memory: &Arc<SharedAllocation>) {
    lock(&BY_START).insert(memory.as_mut_ptr() as usize, Arc::clone(memory));
}

/// Removes it; called while the caller still has it, so nothing else is mapped at its address.
pub fn remove(memory: &SharedAllocation) {
    let entry = lock(&BY_START).remove(&(memory.as_mut_ptr() as usize));
    drop(entry);
}

/// The memory that contains these bytes of this process, and their offset.
pub fn find(start: usize, len_bytes: usize) -> Option<(Arc<SharedAllocation>, usize)> {
    let by_start = lock(&BY_START);
    let (first, memory) = by_start.range(..=start).next_back()?;
    let offset = start - first;
    let inside = offset.checked_add(len_bytes)? <= memory.len();
    let worth_it = len_bytes >= memory.len() / MIN_SHARE_DIVISOR;
    (inside && worth_it).then(|| (Arc::clone(memory), offset))
}
