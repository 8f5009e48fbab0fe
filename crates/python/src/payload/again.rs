//! Buffers that are sent again: found by their address, compared with what was sent, and named again if nothing
//! changed. Every byte is compared, which takes a fraction of the time of a first copy, and a host that has the bytes
//! does not receive them again.

use std::collections::VecDeque;
use std::collections::hash_map::Entry;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use broadleaf_proto::task::SegmentRef;
use broadleaf_proto::{SegmentId, control};
use rustc_hash::FxHashMap;

use super::{DataPlane, lock};

/// A smaller buffer is copied faster than it is looked up.
pub(super) const MIN_BYTES: usize = 1024 * 1024;
/// Maximum number of remembered buffers.
const MAX_BUFFERS: usize = 1024;
/// Maximum size of kept buffers that were sent once; the latest is kept in any case.
const MAX_NEW_BYTES: u64 = 256 * 1024 * 1024;

/// Bytes that several payloads name. They count once against the client's bound, while any task that names them is
/// unresolved.
pub struct Counted {
    len_bytes: u64,
    n_claims: AtomicU64,
    outstanding_bytes: Arc<AtomicU64>,
}

impl Counted {
    /// Their number, if a task that names them is unresolved, and else 0.
    pub fn charged_bytes(&self) -> u64 {
        if self.n_claims.load(Ordering::Acquire) > 0 {
            self.len_bytes
        } else {
            0
        }
    }

    /// Their number.
    pub fn len_bytes(&self) -> u64 {
        self.len_bytes
    }
}

/// The share that an unresolved task has in bytes that are counted once.
pub struct Claim(Arc<Counted>);

impl Claim {
    /// The first claim charges the bytes.
    pub fn new(counted: &Arc<Counted>) -> Self {
        if counted.n_claims.fetch_add(1, Ordering::AcqRel) == 0 {
            counted
                .outstanding_bytes
                .fetch_add(counted.len_bytes, Ordering::AcqRel);
        }
        Self(Arc::clone(counted))
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        if self.0.n_claims.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.0
                .outstanding_bytes
                .fetch_sub(self.0.len_bytes, Ordering::AcqRel);
        }
    }
}

/// Address and length.
type Key = (usize, usize);

/// A buffer that was sent.
struct Sent {
    range: SegmentRef,
    counted: Weak<Counted>,
    /// It has a reference of its own here.
    is_kept: bool,
}

/// See the module.
#[derive(Default)]
pub struct Again {
    sent: FxHashMap<Key, Sent>,
    /// Number of callers that want resent buffers kept in between.
    n_keepers: usize,
    /// Kept buffers that were sent once, oldest first.
    new: VecDeque<(Key, SegmentRef)>,
    new_bytes: u64,
}

impl Again {
    /// Forgets what was sent; returns the segments that were kept.
    pub(super) fn clear(&mut self) -> Vec<SegmentId> {
        self.new.clear();
        self.new_bytes = 0;
        let kept = self.sent.drain().filter(|(_, sent)| sent.is_kept);
        kept.map(|(_, sent)| sent.range.segment).collect()
    }

    /// Records that a buffer that was sent once is kept. Returns those that make room for it.
    fn keep_new(&mut self, key: Key, range: SegmentRef) -> Vec<SegmentId> {
        self.new.push_back((key, range));
        self.new_bytes += range.len_bytes;
        let mut given_up = Vec::new();
        while self.new_bytes > MAX_NEW_BYTES && self.new.len() > 1 {
            let Some((key, range)) = self.new.pop_front() else {
                break;
            };
            self.new_bytes -= range.len_bytes;
            given_up.extend(self.forget(key, range));
        }
        given_up
    }

    /// A buffer was sent again: it no longer makes room for new ones.
    fn on_found(&mut self, key: Key, range: SegmentRef) {
        if let Some(index) = self.new.iter().position(|new| *new == (key, range)) {
            self.new.remove(index);
            self.new_bytes -= range.len_bytes;
        }
    }

    fn forget(&mut self, key: Key, range: SegmentRef) -> Option<SegmentId> {
        let Entry::Occupied(entry) = self.sent.entry(key) else {
            return None;
        };
        if entry.get().range != range {
            return None;
        }
        let sent = entry.remove();
        self.on_found(key, range);
        sent.is_kept.then_some(sent.range.segment)
    }
}

impl DataPlane {
    /// A separate count for bytes that more than one payload will name.
    pub(super) fn counted(&self, len_bytes: u64) -> Arc<Counted> {
        Arc::new(Counted {
            len_bytes,
            n_claims: AtomicU64::new(0),
            outstanding_bytes: Arc::clone(&self.outstanding_bytes),
        })
    }

    /// One more reference to the segment in which this buffer was sent, if its bytes are still the same.
    pub(super) fn find_again(&self, data: &[u8]) -> Option<(SegmentRef, Arc<Counted>)> {
        let key = (data.as_ptr() as usize, data.len());
        let range = lock(&self.again).sent.get(&key)?.range;
        let reading = lock(&self.pool).read(&range);
        // Compared outside the lock, as copies are made.
        let is_same = reading.is_ok_and(|reading| {
            let is_same = reading.equals(data);
            drop(reading);
            if !is_same {
                self.release(vec![range.segment]);
            }
            is_same
        });
        let mut again = lock(&self.again);
        if !is_same {
            let kept = again.forget(key, range);
            drop(again);
            self.release(kept.into_iter().collect());
            return None;
        }
        again.on_found(key, range);
        let keeps = again.n_keepers > 0;
        let fresh = || self.counted(range.len_bytes);
        let Some(sent) = again.sent.get_mut(&key).filter(|sent| sent.range == range) else {
            return Some((range, fresh()));
        };
        if keeps && !sent.is_kept {
            sent.is_kept = lock(&self.pool).add_reference(range.segment, 1).is_ok();
        }
        let counted = sent.counted.upgrade().unwrap_or_else(|| {
            let counted = fresh();
            sent.counted = Arc::downgrade(&counted);
            counted
        });
        Some((range, counted))
    }

    /// Remembers where a buffer was sent.
    pub(super) fn remember(&self, data: &[u8], range: SegmentRef) -> Arc<Counted> {
        let counted = self.counted(range.len_bytes);
        let mut again = lock(&self.again);
        let mut kept = if again.sent.len() >= MAX_BUFFERS {
            again.clear()
        } else {
            Vec::new()
        };
        let key = (data.as_ptr() as usize, data.len());
        let before = again.sent.get(&key).map(|sent| sent.range);
        kept.extend(before.and_then(|range| again.forget(key, range)));
        let is_kept =
            again.n_keepers > 0 && lock(&self.pool).add_reference(range.segment, 1).is_ok();
        let sent = Sent {
            range,
            counted: Arc::downgrade(&counted),
            is_kept,
        };
        again.sent.insert(key, sent);
        if is_kept {
            kept.extend(again.keep_new(key, range));
        }
        drop(again);
        self.release(kept);
        counted
    }

    /// From here on resent buffers are kept until the same number of [`Self::stop_keeping`] calls.
    pub fn start_keeping(&self) {
        lock(&self.again).n_keepers += 1;
    }

    /// See [`Self::start_keeping`].
    pub fn stop_keeping(&self) {
        let mut again = lock(&self.again);
        again.n_keepers = again.n_keepers.saturating_sub(1);
        if again.n_keepers == 0 {
            let kept = again.clear();
            drop(again);
            self.release(kept);
        }
    }

    /// Gives up what is kept because memory is short; returns whether there was anything.
    pub(super) fn give_up_kept(&self) -> bool {
        let kept = lock(&self.again).clear();
        let any = !kept.is_empty();
        self.release(kept);
        any
    }

    fn release(&self, released: Vec<SegmentId>) {
        if !released.is_empty() {
            self.on_release(&control::SegmentRelease {
                released,
                retired: Vec::new(),
            });
        }
    }
}
