//! Who on this host still uses which segment.

use std::collections::BTreeMap;

use broadleaf_proto::SegmentId;

/// The node's table: how many references each holder has to each segment. All its lists are in ascending order,
/// whatever the order of the calls.
#[derive(Debug, Default)]
pub struct LeaseTable {
    by_holder: BTreeMap<u32, BTreeMap<SegmentId, u64>>,
    /// Holders of each segment, so that the last one is known without a search.
    holders: BTreeMap<SegmentId, u64>,
}

impl LeaseTable {
    /// No leases.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds one reference of `holder` to the segment.
    pub fn add(&mut self, holder: u32, id: SegmentId) {
        let held = self.by_holder.entry(holder).or_default().entry(id);
        let count = held.or_insert_with(|| {
            *self.holders.entry(id).or_insert(0) += 1;
            0
        });
        *count += 1;
    }

    /// Releases one reference of `holder`. True if it was the last one of all holders: the owner may be told. If the
    /// holder has no reference, nothing changes and the result is false.
    pub fn release(&mut self, holder: u32, id: SegmentId) -> bool {
        let Some(held) = self.by_holder.get_mut(&holder) else {
            return false;
        };
        let Some(count) = held.get_mut(&id) else {
            return false;
        };
        *count -= 1;
        if *count > 0 {
            return false;
        }
        held.remove(&id);
        if held.is_empty() {
            self.by_holder.remove(&holder);
        }
        self.leave(id)
    }

    /// `holder` is gone and releases all references. Returns the segments that nobody holds any more.
    pub fn drop_holder(&mut self, holder: u32) -> Vec<SegmentId> {
        let held = self.by_holder.remove(&holder).unwrap_or_default();
        held.into_keys().filter(|id| self.leave(*id)).collect()
    }

    /// References that `holder` has to the segment.
    pub fn references(&self, holder: u32, id: SegmentId) -> u64 {
        let held = self.by_holder.get(&holder);
        held.and_then(|held| held.get(&id)).copied().unwrap_or(0)
    }

    /// Whether anybody holds the segment.
    pub fn is_held(&self, id: SegmentId) -> bool {
        self.holders.contains_key(&id)
    }

    /// Whether nobody holds anything.
    pub fn is_empty(&self) -> bool {
        self.holders.is_empty()
    }

    /// Removes one holder; true if none is left.
    fn leave(&mut self, id: SegmentId) -> bool {
        let Some(count) = self.holders.get_mut(&id) else {
            return false;
        };
        *count -= 1;
        let last = *count == 0;
        if last {
            self.holders.remove(&id);
        }
        last
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: SegmentId = SegmentId(1);
    const B: SegmentId = SegmentId(2);

    #[test]
    fn the_last_of_all_holders_is_told() {
        let mut table = LeaseTable::new();
        table.add(1, A);
        table.add(1, A);
        table.add(2, A);
        assert_eq!(table.references(1, A), 2);
        assert!(!table.release(1, A));
        assert!(!table.release(2, A));
        assert!(table.is_held(A));
        assert!(table.release(1, A));
        assert!(table.is_empty());
    }

    #[test]
    fn releasing_what_is_not_held_changes_nothing() {
        let mut table = LeaseTable::new();
        table.add(1, A);
        assert!(!table.release(2, A));
        assert!(!table.release(1, B));
        assert_eq!(table.references(1, A), 1);
        assert!(table.release(1, A));
        assert!(!table.release(1, A));
    }

    #[test]
    fn a_gone_holder_gives_back_only_what_others_do_not_hold() {
        let mut table = LeaseTable::new();
        for id in [B, A, B] {
            table.add(7, id);
        }
        table.add(8, SegmentId(3));
        table.add(8, A);
        table.add(7, SegmentId(0));
        assert_eq!(table.drop_holder(7), [SegmentId(0), B]);
        assert_eq!(table.drop_holder(7), []);
        assert_eq!(table.drop_holder(8), [A, SegmentId(3)]);
        assert!(table.is_empty());
    }
}
