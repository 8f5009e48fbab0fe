//! Ranges that this process received in shared segments and still has mapped, found by their address: bytes that nobody
//! wrote to are sent on by naming their segment.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use broadleaf_proto::SegmentId;
use broadleaf_proto::task::{LeaseGuard, SegmentRef};
use broadleaf_shm::{Announced, Mapping, SLAB_BUFFER_BYTES};

use crate::payload::lock;

/// A part of a segment smaller than one in this many is copied, so that it does not keep the whole alive.
const MIN_SHARE_DIVISOR: u64 = 4;
/// Unmapping a smaller range is cheap; a range of which every page was read takes 60 ns per page.
const MIN_RETIRED_BYTES: usize = 1 << 20;

/// A mapped range of a received segment. Fields are dropped in order: the segment is unmapped before it is released.
pub struct Received {
    /// The bytes.
    pub mapping: Mapping,
    source: Mutex<Source>,
}

/// The location of received bytes.
#[derive(Clone)]
struct Source {
    range: SegmentRef,
    segment_bytes: u64,
    /// `None` for a dropped range that is still mapped: nobody can see its bytes any more.
    lease: Option<LeaseGuard>,
}

impl Source {
    /// Bytes that were sent together. The rest of a slab stays for other reasons.
    fn whole_bytes(&self) -> u64 {
        if self.range.len_bytes < SLAB_BUFFER_BYTES {
            self.range.len_bytes
        } else {
            self.segment_bytes
        }
    }
}

/// The received ranges of one connection by their first address.
#[derive(Default)]
pub struct ReceivedTable {
    by_start: Mutex<BTreeMap<usize, Arc<Received>>>,
    /// Dropped ranges that are still mapped; `None` if dropped ranges are unmapped at once.
    retired: Mutex<Option<Retired>>,
}

/// Unused ranges, to be unmapped with their last reference.
#[derive(Default)]
pub struct Retired {
    dropped: Vec<Arc<Received>>,
    /// Earlier mappings at addresses where other bytes are mapped now.
    replaced: Vec<Mapping>,
}

impl ReceivedTable {
    /// Registers the mapping of a range. Its segment has `segment_bytes`, and `lease` holds it.
    pub fn enter(
        &self,
        mapping: Mapping,
        range: SegmentRef,
        segment_bytes: u64,
        lease: LeaseGuard,
    ) -> Arc<Received> {
        let start = mapping.as_mut_ptr() as usize;
        let received = Arc::new(Received {
            mapping,
            source: Mutex::new(Source {
                range,
                segment_bytes,
                lease: Some(lease),
            }),
        });
        lock(&self.by_start).insert(start, Arc::clone(&received));
        received
    }

    /// Removes a range; called while the caller still has it, so nothing else is mapped at its address.
    pub fn remove(&self, received: &Received) {
        let start = received.mapping.as_mut_ptr() as usize;
        let entry = lock(&self.by_start).remove(&start);
        if let Some(entry) = entry
            && let Some(retired) = lock(&self.retired).as_mut()
            && entry.mapping.len() >= MIN_RETIRED_BYTES
        {
            lock(&entry.source).lease = None;
            retired.dropped.push(entry);
        }
    }

    /// From here on large ranges that are dropped or replaced are released, but stay mapped until
    /// [`Self::take_retired`].
    pub fn retire(&self) {
        lock(&self.retired).get_or_insert_default();
    }

    /// Whether ranges were dropped or replaced since [`Self::retire`]; if not, they are unmapped at once again from now
    /// on.
    pub fn has_retired(&self) -> bool {
        let mut retired = lock(&self.retired);
        let none = |retired: &Retired| retired.dropped.is_empty() && retired.replaced.is_empty();
        if retired.as_ref().is_some_and(none) {
            *retired = None;
        }
        retired.is_some()
    }

    /// What was dropped or replaced since [`Self::retire`].
    pub fn take_retired(&self) -> Retired {
        lock(&self.retired).take().unwrap_or_default()
    }

    /// Where in a segment these bytes of this process already are, unchanged, and what keeps that segment.
    pub fn find(&self, start: usize, len_bytes: usize) -> Option<(SegmentRef, LeaseGuard)> {
        let (first, received) = {
            let by_start = lock(&self.by_start);
            let (first, received) = by_start.range(..=start).next_back()?;
            (*first, Arc::clone(received))
        };
        let offset = start - first;
        let inside = offset.checked_add(len_bytes)? <= received.mapping.len();
        let source = lock(&received.source).clone();
        let worth_it = len_bytes as u64 >= source.whole_bytes() / MIN_SHARE_DIVISOR;
        if !inside || !worth_it || !received.mapping.is_untouched(offset, len_bytes) {
            return None;
        }
        let range = SegmentRef {
            segment: source.range.segment,
            offset_bytes: source.range.offset_bytes + offset as u64,
            len_bytes: len_bytes as u64,
        };
        Some((range, source.lease?))
    }

    /// The range mapped at exactly this address, if there is one.
    fn exactly(&self, start: usize, len_bytes: usize) -> Option<Arc<Received>> {
        let received = lock(&self.by_start).get(&start).map(Arc::clone)?;
        (received.mapping.len() == len_bytes).then_some(received)
    }

    /// Maps the bytes received at `source` also at `destination`, again privately, without copying them. Both are
    /// addresses of whole received ranges of `len_bytes`. Returns `false` and does nothing if they are not, or if the
    /// source was written to.
    pub fn replace(
        &self,
        (destination, source, len_bytes): (usize, usize, usize),
        segment_of: impl FnOnce(SegmentId) -> Option<Arc<Announced>>,
    ) -> bool {
        let (Some(to), Some(from)) = (
            self.exactly(destination, len_bytes),
            self.exactly(source, len_bytes),
        ) else {
            return false;
        };
        let source = lock(&from.source).clone();
        let announced = segment_of(source.range.segment);
        let Some(segment) = announced.as_deref().and_then(Announced::segment) else {
            return false;
        };
        if !from.mapping.is_untouched(0, len_bytes) {
            return false;
        }
        let offset_bytes = source.range.offset_bytes;
        let Ok(before) = to.mapping.replace(segment, offset_bytes, len_bytes as u64) else {
            return false;
        };
        if let Some(retired) = lock(&self.retired).as_mut() {
            retired.replaced.extend(before);
        }
        // The previous segment is released here.
        *lock(&to.source) = source;
        true
    }
}
