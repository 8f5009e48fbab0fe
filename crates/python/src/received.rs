//! What this process received in shared segments and still has mapped, found by its address: bytes that nobody
//! wrote to are sent on by naming their segment.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use broadleaf_proto::task::{LeaseGuard, SegmentRef};
use broadleaf_shm::Mapping;

use crate::payload::lock;

/// A smaller part of a segment than one in this many is copied, so that it does not keep the whole alive.
const LEAST_SHARE: u64 = 4;

/// A mapped range of a received segment. Fields are dropped in order: the segment is given back unmapped.
pub struct Received {
    /// The bytes.
    pub mapping: Mapping,
    place: SegmentRef,
    segment_bytes: u64,
    lease: LeaseGuard,
}

/// The received ranges of one connection by their first address.
#[derive(Default)]
pub struct ReceivedTable {
    by_start: Mutex<BTreeMap<usize, Arc<Received>>>,
}

impl ReceivedTable {
    /// Enters a mapping of `place`, a range of a segment of `segment_bytes` that `lease` holds.
    pub fn enter(
        &self,
        mapping: Mapping,
        place: SegmentRef,
        segment_bytes: u64,
        lease: LeaseGuard,
    ) -> Arc<Received> {
        let start = mapping.as_mut_ptr() as usize;
        let received = Arc::new(Received {
            mapping,
            place,
            segment_bytes,
            lease,
        });
        lock(&self.by_start).insert(start, Arc::clone(&received));
        received
    }

    /// Takes a range out; called while the caller still has it, so no other is mapped at its address.
    pub fn remove(&self, received: &Received) {
        let start = received.mapping.as_mut_ptr() as usize;
        let entry = lock(&self.by_start).remove(&start);
        drop(entry);
    }

    /// Where in a segment these bytes of this process already lie, unchanged, and what keeps that segment.
    pub fn find(&self, start: usize, len_bytes: usize) -> Option<(SegmentRef, LeaseGuard)> {
        let (first, received) = {
            let by_start = lock(&self.by_start);
            let (first, received) = by_start.range(..=start).next_back()?;
            (*first, Arc::clone(received))
        };
        let offset = start - first;
        let inside = offset.checked_add(len_bytes)? <= received.mapping.len();
        let worth_it = len_bytes as u64 >= received.segment_bytes / LEAST_SHARE;
        if !inside || !worth_it || !received.mapping.is_untouched(offset, len_bytes) {
            return None;
        }
        let place = SegmentRef {
            segment: received.place.segment,
            offset_bytes: received.place.offset_bytes + offset as u64,
            len_bytes: len_bytes as u64,
        };
        Some((place, received.lease.clone()))
    }
}
