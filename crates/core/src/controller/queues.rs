//! Where ready tasks wait, and which of them no engine will ever run.

use broadleaf_proto::control::RefusalReason;
use broadleaf_proto::ids::{ClientId, EngineId, TaskKey, TaskSeq};

use super::Controller;
use crate::placement::groups::{ALL, GroupKey};
use crate::tasks::targets::Targets;
use crate::tasks::{Task, TaskState};
use crate::{Nanos, Output};

impl Controller {
    /// Queues a detached task where it belongs, or ends it if no engine can ever run it.
    pub(super) fn make_ready(&mut self, key: TaskKey, front: bool, out: &mut Vec<Output>) {
        let task = self.tasks.at(key);
        let Some(client) = task.client() else {
            self.discard(key, out);
            return;
        };
        if self.supervisor.is_stopping() {
            self.refuse(key, &RefusalReason::Stopping, out);
            return;
        }
        let rank = task.rank(&self.options);
        let pinned = task.pinned();
        let congested = self.clients.is_congested(client);
        let queue = if let Some(target) = pinned {
            let engine = &mut self.engines[target.0 as usize];
            if engine.is_gone() {
                self.refuse(key, &RefusalReason::NoSuchEngine(target), out);
                return;
            }
            self.tasks.at(key).enter(TaskState::Pinned(target));
            engine.pinned_mut()
        } else {
            let set = self.options.at(task.options());
            let needs_ns = set.options.timeout_ns.filter(|_| self.hosts.n_ending() > 0);
            let group_key = Self::group_key(set.targets.as_ref(), needs_ns, task);
            let id = match group_key {
                None => ALL,
                Some(group_key) => self.groups.intern(group_key),
            };
            if !self.is_hopeful(id) {
                let reason = self.why_hopeless(key);
                self.refuse(key, &reason, out);
                return;
            }
            self.tasks.at(key).enter(TaskState::Ready(id));
            self.groups.queue(id)
        };
        if front {
            queue.push_front(rank, client, congested, key);
        } else {
            queue.push_back(rank, client, congested, key);
        }
    }

    /// The engines that a load-balanced task may run on; `None` for all.
    fn group_key(
        targets: Option<&Targets>,
        needs_ns: Option<Nanos>,
        task: &Task,
    ) -> Option<GroupKey> {
        let restrictions = task.restrictions();
        if targets.is_none() && needs_ns.is_none() && restrictions.is_none() {
            return None;
        }
        let followed = restrictions.and_then(|r| r.followed.as_ref());
        let followed = followed.map(|followed| followed.iter().copied());
        let only = match (targets, followed) {
            (None, followed) => followed.map(Targets::of_sorted),
            (Some(targets), None) => Some(targets.sorted()),
            (Some(targets), Some(followed)) => Some(Targets::of_sorted(
                followed.filter(|e| targets.contains(*e)),
            )),
        };
        Some(GroupKey {
            only,
            not: restrictions.map_or_else(Vec::new, |r| r.tried.to_vec()),
            avoid: restrictions.and_then(|r| r.avoid).map(|e| e.0),
            needs_ns,
        })
    }

    /// Starts a task again after an error or a death, on another engine if there is one.
    pub(super) fn retry(&mut self, key: TaskKey, failed_on: EngineId, out: &mut Vec<Output>) {
        self.tasks.at(key).use_retry(failed_on);
        self.totals.retried += 1;
        let key = self.tasks.rename(key);
        self.make_ready(key, true, out);
    }

    /// Whether an engine of a group exists or will come.
    pub(super) fn is_hopeful(&mut self, group: u32) -> bool {
        let key = &self.groups.at(group).key;
        if self.clients.some_await() && key.only.is_none() {
            return true; // A client will start more.
        }
        let n_present = self.engines.n_present(None);
        let engines = &self.engines;
        let is_present = |id: &u32| {
            let engine = engines.get(*id as usize);
            engine.is_some_and(|e| !e.is_gone())
        };
        match &key.only {
            Some(only) => only.iter().any(|id| key.allows(id) && is_present(&id)),
            None => n_present > key.not.iter().filter(|id| is_present(id)).count(),
        }
    }

    /// Why no engine can run a load-balanced task.
    pub(super) fn why_hopeless(&mut self, key: TaskKey) -> RefusalReason {
        let task = self.tasks.at(key);
        let restrictions = task.restrictions();
        if let Some(said) = restrictions.and_then(|r| r.unmet.as_ref()) {
            return RefusalReason::UnmetEverywhere(said.to_string());
        }
        if restrictions.is_some_and(|r| r.followed.is_some()) {
            return RefusalReason::ImpossibleDependency;
        }
        let targets = self.options.at(task.options()).targets.as_ref();
        match targets.and_then(|t| t.iter().next()) {
            Some(target) => RefusalReason::NoSuchEngine(EngineId(target)),
            None => RefusalReason::NoEngines,
        }
    }

    /// Ends tasks that are queued for engines that will not come.
    pub(super) fn refuse_hopeless(&mut self, out: &mut Vec<Output>) {
        let hopeless: Vec<u32> = self.groups.iter().map(|(group, _)| group).collect();
        for group in hopeless {
            if self.is_hopeful(group) {
                continue;
            }
            let keys: Vec<TaskKey> = self.groups.at(group).queue.keys(&self.tasks).collect();
            for key in keys {
                self.detach(key);
                let reason = self.why_hopeless(key);
                self.refuse(key, &reason, out);
            }
        }
    }

    /// A client starts engines if there are none, or stops doing so: decides whether load-balanced tasks wait for them.
    pub(super) fn await_engines(&mut self, client: ClientId, awaits: bool, out: &mut Vec<Output>) {
        if self.clients.await_engines(client, awaits) {
            self.refuse_hopeless(out);
        }
    }

    /// From now on some hosts end by themselves: queued tasks that may take long go only to hosts where they fit.
    pub(super) fn regroup_timed(&mut self, out: &mut Vec<Output>) {
        let timed = |options: u32| self.options.at(options).options.timeout_ns.is_some();
        let queued = self.tasks.iter();
        let queued =
            queued.filter(|(_, t)| matches!(t.state(), TaskState::Ready(_)) && timed(t.options()));
        let mut keys: Vec<(TaskSeq, TaskKey)> = queued.map(|(key, t)| (t.seq(), key)).collect();
        keys.sort_unstable();
        for (_, key) in keys {
            self.detach(key);
            let key = self.tasks.rename(key);
            self.make_ready(key, false, out);
        }
    }
}
