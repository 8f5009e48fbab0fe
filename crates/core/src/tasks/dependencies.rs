//! Tasks that wait for other tasks of their client.

use std::collections::VecDeque;

use broadleaf_proto::control::DependencyRule;
use broadleaf_proto::ids::{EngineId, TaskKey, TaskSeq};
use broadleaf_proto::task::Status;
use indexmap::IndexMap;
use rustc_hash::FxBuildHasher;
use smallvec::SmallVec;

/// Where a task ran that never ran: on no engine.
pub(crate) const NOWHERE: EngineId = EngineId(u32::MAX);

/// A task's end, for its dependents.
#[derive(Clone, Debug)]
pub(crate) struct Ended {
    pub slot: u32,
    pub status: Status,
    pub engine: EngineId,
}

/// Whether a wait is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Met,
    Pending,
    Impossible,
}

/// Which of a task's two sets of dependencies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    After,
    Follow,
}

#[derive(Clone, Copy, Debug)]
struct Tally {
    rule: DependencyRule,
    total: u32,
    resolved: u32,
    /// How many of the resolved ones satisfy the rule.
    counted: u32,
}

impl Tally {
    fn new(rule: DependencyRule, total: usize) -> Self {
        Self {
            rule,
            total: total as u32,
            resolved: 0,
            counted: 0,
        }
    }
    fn verdict(&self) -> Verdict {
        let met = self.total == 0
            || if self.rule.all {
                self.counted == self.total
            } else {
                self.counted > 0
            };
        let hopeless = if self.rule.all {
            self.resolved > self.counted
        } else {
            self.resolved == self.total
        };
        match (met, hopeless) {
            (true, _) => Verdict::Met,
            (false, true) => Verdict::Impossible,
            (false, false) => Verdict::Pending,
        }
    }
}

/// What one task waits for.
#[derive(Clone, Debug)]
pub(crate) struct Wait {
    after: Tally,
    follow: Tally,
    /// Engines of the `follow` dependencies that count.
    engines: SmallVec<[u32; 2]>,
    /// A sample of the unresolved dependencies, for `explain`.
    pending: SmallVec<[TaskSeq; 2]>,
}

/// Number of dependencies that `explain` names.
const PENDING_SAMPLE: usize = 2;

impl Wait {
    pub fn new(after: (DependencyRule, usize), follow: (DependencyRule, usize)) -> Self {
        Self {
            after: Tally::new(after.0, after.1),
            follow: Tally::new(follow.0, follow.1),
            engines: SmallVec::new(),
            pending: SmallVec::new(),
        }
    }

    pub fn note_pending(&mut self, seq: TaskSeq) {
        if self.pending.len() < PENDING_SAMPLE {
            self.pending.push(seq);
        }
    }

    /// A sample of the unresolved dependencies.
    pub fn pending(&self) -> &[TaskSeq] {
        &self.pending
    }

    /// Dependencies not resolved yet.
    pub fn n_pending(&self) -> u32 {
        self.after.total - self.after.resolved + self.follow.total - self.follow.resolved
    }

    /// Records the end of one dependency.
    pub fn count(&mut self, kind: Kind, status: Status, engine: EngineId) {
        let tally = match kind {
            Kind::After => &mut self.after,
            Kind::Follow => &mut self.follow,
        };
        tally.resolved += 1;
        let mut counts = match status {
            Status::Ok => tally.rule.success,
            _ => tally.rule.failure,
        };
        if kind == Kind::Follow && counts {
            // A task that ran nowhere cannot be followed, nor can two that ran on different engines.
            let same = self.engines.first().is_none_or(|e| *e == engine.0);
            counts = engine != NOWHERE && (same || !tally.rule.all);
            if counts && !self.engines.contains(&engine.0) {
                self.engines.push(engine.0);
            }
        }
        tally.counted += u32::from(counts);
    }

    pub fn verdict(&self) -> Verdict {
        match (self.after.verdict(), self.follow.verdict()) {
            (Verdict::Impossible, _) | (_, Verdict::Impossible) => Verdict::Impossible,
            (Verdict::Met, Verdict::Met) => Verdict::Met,
            _ => Verdict::Pending,
        }
    }

    /// Engines that `follow` allows, sorted; empty when nothing is followed.
    pub fn into_engines(mut self) -> SmallVec<[u32; 0]> {
        self.engines.sort_unstable();
        self.engines.into_iter().collect()
    }
}

/// The graph: who waits, and for whom.
#[derive(Clone, Debug, Default)]
pub(crate) struct Dependencies {
    waiting: IndexMap<TaskKey, Wait, FxBuildHasher>,
    /// Indexed by the dependency's slot in the task table, which never changes.
    dependents: IndexMap<u32, Vec<(TaskKey, Kind)>, FxBuildHasher>,
    /// Ends that dependents have not been told of.
    ended: VecDeque<Ended>,
}

impl Dependencies {
    pub fn wait(&mut self, key: TaskKey, wait: Wait) {
        self.waiting.insert(key, wait);
    }
    pub fn depend(&mut self, key: TaskKey, kind: Kind, on_slot: u32) {
        self.dependents
            .entry(on_slot)
            .or_default()
            .push((key, kind));
    }
    pub fn forget(&mut self, key: TaskKey) -> Option<Wait> {
        self.waiting.swap_remove(&key)
    }
    pub fn forget_dependents(&mut self, slot: u32) -> Vec<(TaskKey, Kind)> {
        self.dependents.swap_remove(&slot).unwrap_or_default()
    }
    pub fn get(&self, key: TaskKey) -> Option<&Wait> {
        self.waiting.get(&key)
    }
    pub fn get_mut(&mut self, key: TaskKey) -> Option<&mut Wait> {
        self.waiting.get_mut(&key)
    }
    /// A task that others wait for has ended.
    pub fn note_end(&mut self, ended: Ended) {
        self.ended.push_back(ended);
    }
    /// The first end that dependents have not been told of.
    pub fn next_end(&mut self) -> Option<Ended> {
        self.ended.pop_front()
    }
    /// Whether dependents were told of every end.
    pub fn is_settled(&self) -> bool {
        self.ended.is_empty()
    }
    pub fn n_waiting(&self) -> usize {
        self.waiting.len()
    }
    pub fn awaited(&self) -> impl Iterator<Item = u32> {
        self.dependents.keys().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(all: bool, success: bool, failure: bool) -> DependencyRule {
        DependencyRule {
            all,
            success,
            failure,
        }
    }

    fn after(rule: DependencyRule, ends: &[Status], total: usize) -> Verdict {
        let mut wait = Wait::new((rule, total), (DependencyRule::default(), 0));
        for status in ends {
            wait.count(Kind::After, *status, EngineId(0));
        }
        wait.verdict()
    }

    #[test]
    fn rules_of_after() {
        use Status::{Error, Lost, Ok};
        use Verdict::{Impossible, Met, Pending};
        let all = rule(true, true, false);
        assert_eq!(after(all, &[Ok], 2), Pending);
        assert_eq!(after(all, &[Ok, Ok], 2), Met);
        assert_eq!(after(all, &[Error], 2), Impossible);
        let any = rule(false, true, false);
        assert_eq!(after(any, &[Error], 2), Pending);
        assert_eq!(after(any, &[Error, Ok], 2), Met);
        assert_eq!(after(any, &[Error, Lost], 2), Impossible);
        let ended = rule(true, true, true);
        assert_eq!(after(ended, &[Error, Ok], 2), Met);
        let failed = rule(false, false, true);
        assert_eq!(after(failed, &[Ok, Lost], 2), Met);
        assert_eq!(after(failed, &[Ok, Ok], 2), Impossible);
        assert_eq!(after(all, &[], 0), Met);
    }

    #[test]
    fn follow_needs_one_place_for_all_and_any_place_for_any() {
        let none = (DependencyRule::default(), 0);
        let mut all = Wait::new(none, (rule(true, true, false), 2));
        all.count(Kind::Follow, Status::Ok, EngineId(1));
        all.count(Kind::Follow, Status::Ok, EngineId(2));
        assert_eq!(all.verdict(), Verdict::Impossible);
        let mut any = Wait::new(none, (rule(false, true, true), 2));
        any.count(Kind::Follow, Status::Refused, NOWHERE);
        assert_eq!(any.verdict(), Verdict::Pending);
        any.count(Kind::Follow, Status::Ok, EngineId(2));
        assert_eq!(any.verdict(), Verdict::Met);
        assert_eq!(any.into_engines().as_slice(), [2]);
    }
}
