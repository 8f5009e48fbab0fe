//! Segments of shared allocations, and of windows, that one connection has exported to its peer.

use std::sync::Arc;

use broadleaf_proto::SegmentId;
use broadleaf_shm::AllocationSegment;
use rustc_hash::FxHashMap;

struct Entry {
    segment: Arc<AllocationSegment>,
    references: u64,
}

/// See the module.
#[derive(Default)]
pub struct Exported {
    by_id: FxHashMap<SegmentId, Entry>,
    /// Keyed by the address of the segment's owner, which is unique while the entry exists.
    ids: FxHashMap<usize, SegmentId>,
    /// Announced segments that were released for good but not reported yet.
    retired: Vec<SegmentId>,
}

impl Exported {
    /// Counts one more reference to a segment; returns its id, and whether the peer has yet to be told of it.
    pub fn lend(
        &mut self,
        segment: &Arc<AllocationSegment>,
        fresh_id: impl FnOnce() -> SegmentId,
    ) -> (SegmentId, bool) {
        let address = Arc::as_ptr(segment) as usize;
        if let Some(id) = self.ids.get(&address).copied()
            && let Some(entry) = self.by_id.get_mut(&id)
        {
            entry.references += 1;
            return (id, false);
        }
        let id = fresh_id();
        let entry = Entry {
            segment: Arc::clone(segment),
            references: 1,
        };
        self.by_id.insert(id, entry);
        self.ids.insert(address, id);
        (id, true)
    }

    /// Counts one more reference to an exported segment.
    pub fn add_reference(&mut self, id: SegmentId) -> bool {
        let entry = self.by_id.get_mut(&id);
        entry.map(|entry| entry.references += 1).is_some()
    }

    /// One reference was released; with the last one the segment is free for another array.
    pub fn release(&mut self, id: SegmentId) {
        let Some(entry) = self.by_id.get_mut(&id) else {
            return;
        };
        entry.references -= 1;
        if entry.references == 0 {
            self.ids.remove(&(Arc::as_ptr(&entry.segment) as usize));
            self.by_id.remove(&id);
            self.retired.push(id);
        }
    }

    /// Gives up all segments except these: nothing will be released any more.
    pub fn retain(&mut self, keep: impl Fn(&SegmentId) -> bool) {
        self.by_id.retain(|id, _| keep(id));
        self.ids.retain(|_, id| keep(id));
    }

    /// An exported segment.
    pub fn segment(&self, id: SegmentId) -> Option<Arc<AllocationSegment>> {
        self.by_id.get(&id).map(|entry| Arc::clone(&entry.segment))
    }

    /// No peer was ever told of these.
    pub fn forget_retired(&mut self, unannounced: &[SegmentId]) {
        self.retired.retain(|id| !unannounced.contains(id));
    }

    /// Segments that peers should close.
    pub fn take_retired(&mut self) -> Vec<SegmentId> {
        std::mem::take(&mut self.retired)
    }
}
