//! Segments that many buffers share, because a descriptor, a mapping and an announcement for each would not scale.
//!
//! The ranges of a slab are handed out one after the other, each on its own pages, and none is reused before all of
//! them are free. So one range in use keeps its whole slab: at worst 16 MiB for 64 KiB. Slabs are small while there are
//! few, which limits the waste if little is used.

use std::sync::Arc;

use broadleaf_proto::SegmentId;

use super::lease::{Holds, Lease};
use super::{Pool, State};
use crate::{ShmError, platform};

/// Buffers below this size share segments.
pub const SLAB_BUFFER_BYTES: u64 = 1024 * 1024;
/// Smallest and largest segment that is shared. As long as little is used, it should stay in the caches.
const SLAB_BYTES: (u64, u64) = (256 * 1024, 16 * 1024 * 1024);
/// A new slab has room for this many of the buffers it is made for.
const MIN_BUFFERS: u64 = 2;
/// After this many slabs in use, the next ones are twice as large.
const SLABS_OF_A_SIZE: u64 = 4;
/// A slab with less space left counts as full.
const MIN_ROOM_BYTES: u64 = 64 * 1024;

/// The slab that the buffers of one message fill. Nobody else may use it before it is announced; see
/// [`Pool::share_rest`].
#[derive(Debug, Default)]
pub struct MessageSlab {
    id: Option<SegmentId>,
    /// How many bytes the message has yet to place in slabs; 0 if nothing is known, or for a single buffer. See
    /// [`slab_range_bytes`].
    pub expected_bytes: u64,
}

impl MessageSlab {
    /// The slab was given back, so the message has none.
    pub fn on_given_back(&mut self) {
        self.id = None;
    }
}

/// The bytes of a slab that a buffer takes; 0 for one that gets a segment of its own.
pub fn slab_range_bytes(len_bytes: u64) -> u64 {
    if len_bytes >= SLAB_BUFFER_BYTES {
        return 0;
    }
    len_bytes.next_multiple_of(platform::page_bytes())
}

/// Size of the next slab, for a buffer of `len_bytes` of a message that has yet to place `expected_bytes`, if this many
/// slabs are in use.
fn slab_bytes(len_bytes: u64, expected_bytes: u64, slabs: u64) -> u64 {
    let (min_bytes, max_bytes) = SLAB_BYTES;
    let doublings =
        (slabs / SLABS_OF_A_SIZE).min(u64::from((max_bytes / min_bytes).ilog2())) as u32;
    let for_buffer = (MIN_BUFFERS * len_bytes).next_power_of_two();
    let for_message = expected_bytes.min(max_bytes).next_multiple_of(min_bytes);
    for_buffer.max(for_message).max(min_bytes << doublings)
}

impl Pool {
    /// Memory to fill for a buffer of a message that may share its segment with others: a range of a slab for a small
    /// one, else as [`Pool::allocate`].
    ///
    /// # Errors
    /// As [`Pool::allocate`].
    pub fn allocate_shared(
        &mut self,
        len_bytes: u64,
        message: &mut MessageSlab,
    ) -> Result<Lease, ShmError> {
        if len_bytes == 0 || len_bytes >= SLAB_BUFFER_BYTES {
            return self.allocate(len_bytes);
        }
        self.check_process()?;
        let own = message.id.and_then(|id| self.take_range(id, len_bytes));
        let range = own.or_else(|| self.take_range(self.filling?, len_bytes));
        let expected_bytes = message.expected_bytes;
        message.expected_bytes = expected_bytes.saturating_sub(slab_range_bytes(len_bytes));
        if let Some(lease) = range {
            return Ok(lease);
        }
        let fitting = self
            .warm
            .range(slab_bytes(len_bytes, expected_bytes, 0)..=SLAB_BYTES.1)
            .next();
        let last_freed = fitting.and_then(|(size, ids)| Some((*size, *ids.last()?)));
        let new_bytes = slab_bytes(len_bytes, expected_bytes, self.slabs);
        let (size, id, memory) = match last_freed {
            Some((size, id)) => (size, id, Holds::Whole(self.take_warm(id))),
            None => match self.make_room(new_bytes) {
                Ok(id) => (new_bytes, id, Holds::Nothing),
                // No room for a slab, but perhaps for this buffer alone.
                Err(_) => return self.allocate(len_bytes),
            },
        };
        message.id = Some(id);
        let lease = self.lease(id, size, len_bytes, memory);
        Ok(Lease {
            is_slab: true,
            ..lease
        })
    }

    /// The next range of a slab, if it fits.
    fn take_range(&mut self, id: SegmentId, len_bytes: u64) -> Option<Lease> {
        let entry = self.entries.get_mut(&id)?;
        let State::Used(count, memory) = &mut entry.state else {
            return None;
        };
        if !entry.is_slab {
            return None;
        }
        let offset_bytes = entry.filled_bytes;
        if entry.size - offset_bytes < len_bytes {
            return None;
        }
        // The lease has a reference, so that the slab is not free before it is published.
        *count += 1;
        let memory = Arc::clone(memory);
        entry.filled_bytes = (offset_bytes + len_bytes)
            .next_multiple_of(platform::page_bytes())
            .min(entry.size);
        let size = entry.size;
        Some(self.lease(id, size, len_bytes, Holds::Part(memory, offset_bytes)))
    }

    /// The first buffer of a slab is published.
    pub(super) fn begin_slab(&mut self, id: SegmentId) {
        self.slabs += 1;
        let entry = self.leased(id);
        entry.is_slab = true;
        if entry.announced {
            self.share_rest(id);
        }
    }

    /// The rest of a slab may hold other buffers from now on: everyone who is told of one already knows the segment.
    /// Does nothing for other segments.
    pub fn share_rest(&mut self, id: SegmentId) {
        let room_bytes = self.room_bytes(id);
        let present = self.filling.map_or(0, |id| self.room_bytes(id));
        if room_bytes >= MIN_ROOM_BYTES && room_bytes > present {
            self.filling = Some(id);
        }
    }

    fn room_bytes(&self, id: SegmentId) -> u64 {
        let entry = self.entries.get(&id).filter(|entry| entry.is_slab);
        entry.map_or(0, |entry| entry.size - entry.filled_bytes)
    }

    /// A segment is free or gone, so it is no longer shared.
    pub(super) fn end_slab(&mut self, id: SegmentId) {
        let entry = self.entries.get_mut(&id);
        if entry.is_some_and(|entry| std::mem::take(&mut entry.is_slab)) {
            self.slabs -= 1;
            self.filling = self.filling.filter(|filling| *filling != id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slab_has_room_for_its_message() {
        assert_eq!(slab_bytes(100_000, 1 << 20, 0), 1 << 20);
        assert_eq!(slab_bytes(100_000, (1 << 20) + 1, 0), 5 << 18);
        assert_eq!(slab_bytes(100_000, 1 << 30, 0), 16 << 20);
    }

    #[test]
    fn slabs_grow_with_their_number_and_hold_some_buffers() {
        assert_eq!(slab_bytes(1, 1, 0), 256 << 10);
        assert_eq!(slab_bytes(100_000, 0, 3), 256 << 10);
        assert_eq!(slab_bytes(160_000, 0, 3), 512 << 10);
        assert_eq!(slab_bytes(160_000, 0, 8), 1 << 20);
        assert_eq!(slab_bytes(160_000, 0, 1_000_000), 16 << 20);
        assert_eq!(slab_bytes(900_000, 0, 0), 2 << 20);
        assert!(slab_bytes(SLAB_BUFFER_BYTES - 1, u64::MAX, 0) <= SLAB_BYTES.1);
    }
}
