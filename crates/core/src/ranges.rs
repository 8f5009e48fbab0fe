//! Ranges of segments that a client's unresolved tasks name: a range counts once, however many tasks name it.
//!
//! A client may claim any length, so sums wrap around: exactly what was added is subtracted again.

use broadleaf_proto::task::{Payload, SegmentRef};
use indexmap::IndexMap;
use rustc_hash::FxBuildHasher;

/// Segment, offset and length.
type Range = (u64, u64, u64);

fn range(place: &SegmentRef) -> Range {
    (place.segment.0, place.offset_bytes, place.len_bytes)
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
        let places = payload.segments.iter();
        let new = places.filter(|place| !self.named.contains_key(&range(place)));
        new.fold(0, |sum: u64, place| sum.saturating_add(place.len_bytes))
    }

    /// Counts a task's payload; returns the bytes that it adds.
    pub fn name(&mut self, payload: &Payload) -> u64 {
        let mut added_bytes = 0_u64;
        for place in &payload.segments {
            let count = self.named.entry(range(place)).or_insert(0);
            if *count == 0 {
                added_bytes = added_bytes.wrapping_add(place.len_bytes);
            }
            *count += 1;
        }
        added_bytes
    }

    /// A counted task is resolved; returns the bytes that are no longer named.
    pub fn release(&mut self, payload: &Payload) -> u64 {
        let mut released_bytes = 0_u64;
        for place in &payload.segments {
            let Some(count) = self.named.get_mut(&range(place)) else {
                continue;
            };
            *count -= 1;
            if *count == 0 {
                self.named.swap_remove(&range(place));
                released_bytes = released_bytes.wrapping_add(place.len_bytes);
            }
        }
        released_bytes
    }
}
