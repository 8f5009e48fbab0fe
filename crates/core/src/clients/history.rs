//! A client's task numbers: where each live task is, and how the recent resolved ones ended.
//!
//! A ring indexed by the low bits of the number: one small write when a task is submitted and one when it is resolved.
//! It grows only if live tasks would be overwritten; a live task overtaken by more than the ring's full size moves to a
//! separate map.

use std::collections::BTreeMap;

use broadleaf_proto::ids::{EngineId, TaskSeq};
use broadleaf_proto::task::Status;

/// What is known about a task number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Known {
    /// Not resolved: its slot in the task table.
    Live(u32),
    /// How it ended, and where (`u32::MAX`: nowhere).
    Resolved(Status, EngineId),
    /// Never submitted, or resolved too long ago.
    Unknown,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    seq: u64,
    known: Known,
}

const VACANT: Entry = Entry {
    seq: u64::MAX,
    known: Known::Unknown,
};
const FIRST_ENTRIES: usize = 64;

/// See the module.
#[derive(Clone, Debug)]
pub(crate) struct History {
    ring: Vec<Entry>,
    /// Size up to which the ring grows to remember tasks.
    keep: usize,
    /// Size up to which it grows to hold live tasks.
    max_entries: usize,
    overtaken: BTreeMap<u64, u32>,
    /// Consecutive numbers that were refused together: the first, and the one after the last.
    refused: BTreeMap<u64, u64>,
}

impl History {
    pub fn new(keep: usize, max_live: u64) -> Self {
        let keep = keep.max(FIRST_ENTRIES).next_power_of_two();
        let max_entries = usize::try_from(max_live)
            .unwrap_or(usize::MAX)
            .clamp(keep, 1 << 24)
            .next_power_of_two();
        Self {
            ring: vec![VACANT; FIRST_ENTRIES],
            keep,
            max_entries,
            overtaken: BTreeMap::new(),
            refused: BTreeMap::new(),
        }
    }

    fn index(&self, seq: u64) -> usize {
        seq as usize & (self.ring.len() - 1)
    }

    pub fn submit(&mut self, seq: TaskSeq, slot: u32) {
        let mut index = self.index(seq.0);
        while self.ring[index].seq != u64::MAX && self.grows(self.ring[index].known) {
            self.grow();
            index = self.index(seq.0);
        }
        let old = self.ring[index];
        if let Known::Live(slot) = old.known {
            self.overtaken.insert(old.seq, slot);
        }
        self.ring[index] = Entry {
            seq: seq.0,
            known: Known::Live(slot),
        };
    }

    fn grows(&self, known: Known) -> bool {
        let limit = match known {
            Known::Live(_) => self.max_entries,
            _ => self.keep,
        };
        self.ring.len() < limit
    }

    fn grow(&mut self) {
        let larger = vec![VACANT; self.ring.len() * 2];
        for entry in core::mem::replace(&mut self.ring, larger) {
            if entry.seq != u64::MAX {
                let index = self.index(entry.seq);
                self.ring[index] = entry;
            }
        }
    }

    pub fn resolve(&mut self, seq: TaskSeq, status: Status, engine: EngineId) {
        let index = self.index(seq.0);
        let entry = &mut self.ring[index];
        if entry.seq == seq.0 {
            entry.known = Known::Resolved(status, engine);
        } else {
            self.overtaken.remove(&seq.0);
        }
    }

    /// Remembers tasks with consecutive numbers that were refused together, without ever being
    /// live. However many they are, they take the space of a single task.
    pub fn refuse(&mut self, seq: TaskSeq, n_tasks: u64) {
        if self.refused.len() >= self.keep {
            self.refused.pop_first();
        }
        self.refused.insert(seq.0, seq.0.saturating_add(n_tasks));
    }

    fn is_refused(&self, seq: u64) -> bool {
        let before = self.refused.range(..=seq).next_back();
        before.is_some_and(|(_, end)| seq < *end)
    }

    pub fn get(&self, seq: TaskSeq) -> Known {
        let entry = self.ring[self.index(seq.0)];
        if entry.seq == seq.0 {
            return entry.known;
        }
        if let Some(slot) = self.overtaken.get(&seq.0) {
            return Known::Live(*slot);
        }
        if self.is_refused(seq.0) {
            Known::Resolved(Status::Refused, EngineId(u32::MAX))
        } else {
            Known::Unknown
        }
    }

    /// Slots of all live tasks, in no particular order.
    pub fn live(&self) -> impl Iterator<Item = u32> {
        self.overtaken
            .values()
            .copied()
            .chain(self.ring.iter().filter_map(|e| match e.known {
                Known::Live(slot) => Some(slot),
                _ => None,
            }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remembers_recent_and_forgets_old() {
        let mut history = History::new(64, 64);
        for seq in 0..100 {
            history.submit(TaskSeq(seq), seq as u32);
            if seq != 3 {
                history.resolve(TaskSeq(seq), Status::Ok, EngineId(1));
            }
        }
        assert_eq!(
            history.get(TaskSeq(99)),
            Known::Resolved(Status::Ok, EngineId(1))
        );
        assert_eq!(history.get(TaskSeq(30)), Known::Unknown);
        assert_eq!(history.get(TaskSeq(3)), Known::Live(3));
        assert_eq!(history.live().collect::<Vec<_>>(), [3]);
        history.resolve(TaskSeq(3), Status::Ok, EngineId(1));
        assert_eq!(history.get(TaskSeq(3)), Known::Unknown);
    }

    #[test]
    fn grows_for_live_tasks_only_to_its_limit() {
        let mut history = History::new(64, 1000);
        for seq in 0..5000 {
            history.submit(TaskSeq(seq), seq as u32);
        }
        assert_eq!(history.ring.len(), 1024);
        assert_eq!(history.live().count(), 5000);
        for seq in 0..5000 {
            assert_eq!(history.get(TaskSeq(seq)), Known::Live(seq as u32));
        }
    }
}
