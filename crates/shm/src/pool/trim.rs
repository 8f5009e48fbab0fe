//! Returning free segments to the system.

use broadleaf_proto::SegmentId;

use super::{Pool, State};
use crate::background::drop_memory;

impl Pool {
    /// The segment that has been free longest, and since which call of `trim`.
    pub(super) fn longest_idle(&self) -> Option<(u64, SegmentId)> {
        let free = self
            .entries
            .iter()
            .filter_map(|(id, entry)| match entry.state {
                State::Warm(since, _) => Some((since, *id)),
                _ => None,
            });
        free.min()
    }

    /// Whether a call of [`Pool::trim`] has, or will have, something to do.
    pub fn needs_trim(&self) -> bool {
        self.counters.warm_bytes > 0 || !self.retired.is_empty()
    }

    /// Retires all free segments because memory is short; returns whether there were any. The next [`Pool::trim`] says
    /// which.
    pub fn give_up_warm(&mut self) -> bool {
        let any = self.counters.warm_bytes > 0;
        while let Some((_, id)) = self.longest_idle() {
            self.retire(id);
        }
        any
    }

    /// Retires free segments that no recent call saw in use, and the longest idle ones above the warm limit; call it
    /// regularly. Returns every announced segment retired since the last call, even by `allocate`: processes that map
    /// them should close them.
    pub fn trim(&mut self) -> Vec<SegmentId> {
        self.trims += 1;
        let mut idle = Vec::new();
        let bytes_before = self.counters.bytes;
        while let Some((since, id)) = self.longest_idle() {
            let expired = self.trims - since > self.config.idle_trims;
            if !expired && self.counters.warm_bytes <= self.config.max_warm_bytes {
                break;
            }
            idle.push(self.take_warm(id));
            self.forget(id);
        }
        drop_memory(idle, bytes_before - self.counters.bytes);
        self.take_retired()
    }

    /// Every announced segment retired since the last call: processes that map them should close them, and until then
    /// their memory is not free.
    pub fn take_retired(&mut self) -> Vec<SegmentId> {
        std::mem::take(&mut self.retired)
    }

    /// Whether [`Pool::take_retired`] would return any.
    pub fn has_retired(&self) -> bool {
        !self.retired.is_empty()
    }

    /// Retires all segments except those to keep and those being filled: no reference will be released any more.
    pub fn retain(&mut self, keep: impl Fn(&SegmentId) -> bool) {
        let unwanted: Vec<_> = self
            .entries
            .iter()
            .filter(|(id, entry)| !keep(id) && !matches!(entry.state, State::Leased))
            .map(|(id, entry)| (*id, matches!(entry.state, State::Warm(..))))
            .collect();
        for (id, is_warm) in unwanted {
            if is_warm {
                self.retire(id);
            } else {
                self.forget(id);
            }
        }
    }
}
