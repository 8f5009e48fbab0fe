//! What a host's lane is used for, and when its node looks for answers: one task for many engines is left in memory that
//! each of them shares with the node, with one wake-up call for all, and so are the answers.
//!
//! The driver's part is in `broadleaf_shm`: a place for a task and an answer of each engine, and a count of the answers
//! that are missing, which whoever gives the last one wakes the node for.

use std::collections::BTreeMap;

use broadleaf_proto::ids::{EngineId, TaskKey};

use crate::Nanos;

/// Fewer engines are woken by their sockets in no more time.
const MIN_TASKS: usize = 8;
/// Time in which at least one answer comes as long as the engines are busy with short tasks. If none does, those that
/// have answered wait for a longer one.
const PATIENCE_NS: Nanos = 1_000_000;

/// The tasks that are on a host's lane: those of one broadcast at a time.
#[derive(Clone, Debug, Default)]
pub struct Lane {
    /// The engines that have not answered, and what.
    owed: BTreeMap<EngineId, TaskKey>,
    /// Number of missing answers when last looked at.
    n_missing: u32,
    look_at: Nanos,
    /// Each engine wakes the node for its answer by now.
    in_hurry: bool,
}

impl Lane {
    /// Whether the same task for `n_tasks` of the host's `n_engines` takes the lane. It wakes all of them, so it is not for
    /// a few; and it is free only once everybody has answered.
    pub fn is_for(&self, n_tasks: usize, n_engines: usize) -> bool {
        self.owed.is_empty() && n_tasks >= MIN_TASKS && 2 * n_tasks > n_engines
    }

    /// These tasks take the lane, each to another engine.
    pub fn begin(&mut self, now: Nanos, tasks: impl IntoIterator<Item = (EngineId, TaskKey)>) {
        self.owed = tasks.into_iter().collect();
        self.n_missing = self.owed.len() as u32;
        self.look_at = now + PATIENCE_NS;
        self.in_hurry = false;
    }

    /// Whether an answer may be in this engine's place.
    pub fn owes(&self, engine: EngineId) -> bool {
        self.owed.contains_key(&engine)
    }

    /// The engines that have not answered.
    pub fn owing(&self) -> impl Iterator<Item = EngineId> + '_ {
        self.owed.keys().copied()
    }

    /// A task has ended, whichever way that was told, or was taken back.
    pub fn on_end(&mut self, engine: EngineId, key: TaskKey) {
        if self.owed.get(&engine) == Some(&key) {
            self.owed.remove(&engine);
        }
    }

    /// An engine is gone.
    pub fn on_gone(&mut self, engine: EngineId) {
        self.owed.remove(&engine);
    }

    /// Whether to look into the places of all that owe an answer, after saying that each answer from here on wakes the
    /// node. `n_missing` is the number of answers that the engines have not counted, which is not to be relied on: an
    /// engine may die before it counts.
    pub fn look(&mut self, now: Nanos, n_missing: u32) -> bool {
        if self.owed.is_empty() || self.in_hurry {
            return false;
        }
        if n_missing == 0 {
            self.in_hurry = true;
        } else if now >= self.look_at {
            self.in_hurry = n_missing == self.n_missing;
            self.n_missing = n_missing;
            self.look_at = now + PATIENCE_NS;
        }
        self.in_hurry
    }

    /// When [`Self::look`] must be called although nobody wakes the node.
    pub fn next_deadline(&self) -> Option<Nanos> {
        (!self.owed.is_empty() && !self.in_hurry).then_some(self.look_at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn begun(n: u32) -> Lane {
        let mut lane = Lane::default();
        lane.begin(0, (0..n).map(|id| (EngineId(id), TaskKey(id.into()))));
        lane
    }

    #[test]
    fn it_is_for_most_engines_of_a_host_and_for_one_broadcast_at_a_time() {
        let lane = Lane::default();
        assert!(lane.is_for(8, 8) && lane.is_for(8, 15));
        assert!(!lane.is_for(8, 16), "it would wake as many for nothing");
        assert!(!lane.is_for(7, 7));
        let mut lane = begun(9);
        for id in 0..9 {
            assert!(!lane.is_for(9, 9));
            lane.on_end(EngineId(id), TaskKey(id.into()));
        }
        assert!(lane.is_for(9, 9));
    }

    #[test]
    fn it_looks_once_the_last_answer_is_counted() {
        let mut lane = begun(8);
        assert!(!lane.look(10, 3));
        assert!(lane.look(20, 0));
        assert!(!lane.look(21, 0), "those that are left wake the node");
        assert_eq!(lane.next_deadline(), None);
        assert_eq!(lane.owing().count(), 8);
    }

    #[test]
    fn it_waits_as_long_as_answers_come() {
        let mut lane = begun(8);
        for n_missing in (1..8).rev() {
            let due = lane.next_deadline().unwrap();
            assert!(!lane.look(due - 1, n_missing));
            assert!(!lane.look(due, n_missing));
        }
        let due = lane.next_deadline().unwrap();
        assert!(lane.look(due, 1), "nobody has answered since");
        lane.begin(due, [(EngineId(1), TaskKey(1))]);
        assert!(!lane.look(due, 1), "the next one is not in a hurry");
    }

    #[test]
    fn who_has_died_or_ended_another_task_owes_what_it_owed() {
        let mut lane = begun(2);
        lane.on_end(EngineId(0), TaskKey(7));
        lane.on_end(EngineId(5), TaskKey(0));
        assert!(lane.owes(EngineId(0)) && lane.owes(EngineId(1)));
        lane.on_gone(EngineId(0));
        lane.on_end(EngineId(1), TaskKey(1));
        assert!(!lane.owes(EngineId(0)) && !lane.owes(EngineId(1)));
        assert_eq!(lane.next_deadline(), None);
        assert!(!lane.look(Nanos::MAX, 2));
    }
}
