//! Ranges of segments that a client's unresolved tasks name: a range counts once, however many tasks name it.
//!
//! A client may claim any length, so sums wrap around: exactly what was added is subtracted again.

use broadleaf_proto::task::{Payload, SegmentRef};
use indexmap::IndexMap;
use rustc_hash::FxBuildHasher;

/// Segment, offset and length.
type Range = (u64, u64, u64);

fn key(range: &SegmentRef) -> Range {
    (range.segment.0, range.offset_bytes, range.len_bytes)
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ranges {
    /// How often each is named.
    named: IndexMap<Range, u64, FxBuildHasher>,
}

impl Ranges {
    /// The bytes that a payload would add.
    pub fn weigh(&self, payload: &Payload) -> u64 {
        let ranges = payload.segments.iter();
        let new = ranges.filter(|range| !self.named.contains_key(&key(range)));
        new.fold(0, |sum: u64, range| sum.saturating_add(range.len_bytes))
    }

    /// The bytes of a payload that other tasks name too.
    pub fn weigh_named(&self, payload: &Payload) -> u64 {
        let mut ranges: Vec<Range> = payload.segments.iter().map(key).collect();
        // One that occurs twice counts once.
        ranges.sort_unstable();
        ranges.dedup();
        let named = ranges.iter().filter(|key| self.named.contains_key(*key));
        named.fold(0, |sum: u64, (_, _, len_bytes)| {
            sum.saturating_add(*len_bytes)
        })
    }

    /// Counts a task's payload; returns the bytes that it adds.
    pub fn name(&mut self, payload: &Payload) -> u64 {
        let mut added_bytes = 0_u64;
        for range in &payload.segments {
            let count = self.named.entry(key(range)).or_insert(0);
            if *count == 0 {
                added_bytes = added_bytes.wrapping_add(range.len_bytes);
            }
            *count += 1;
        }
        added_bytes
    }

    /// A counted task is resolved; returns the bytes that are no longer named.
    pub fn release(&mut self, payload: &Payload) -> u64 {
        let mut released_bytes = 0_u64;
        for range in &payload.segments {
            let Some(count) = self.named.get_mut(&key(range)) else {
                continue;
            };
            *count -= 1;
            if *count == 0 {
                self.named.swap_remove(&key(range));
                released_bytes = released_bytes.wrapping_add(range.len_bytes);
            }
        }
        released_bytes
    }
}
