//! The invariants, verified one by one.

use super::Controller;
use crate::Nanos;
use crate::check::{Violation, ensure};
use crate::clients::history::Known;
use crate::clients::ranges::Ranges;
use crate::engines::offers::Claim;
use crate::engines::{Engine, State};
use crate::placement::groups::ALL;
use crate::results::failures::MAX_KINDS;
use crate::tasks::options::OptionSet;
use crate::tasks::{Task, TaskState};
use crate::timers::Timer;

impl Controller {
    /// Verifies every invariant, in time proportional to the size of the whole state.
    ///
    /// # Errors
    /// The first [`Violation`] found.
    pub fn check(&self) -> Result<(), Violation> {
        let mut counts = StateCounts::default();
        let mut timers = 0;
        for (key, task) in self.tasks.iter() {
            self.check_task(key, task)?;
            counts.count(task.state());
            timers += usize::from(task.timer_at() != 0);
        }
        ensure(self.dependencies.is_settled(), || {
            "some endings were not reported".into()
        })?;
        self.check_queues(&counts)?;
        for engine in &self.engines {
            self.check_engine(engine)?;
            timers += usize::from(engine.timer_at() != 0);
        }
        timers += usize::from(self.supervisor.has_timer()) + self.hosts.n_timers();
        ensure(timers == self.timers.len(), || {
            format!("{} timers set, {timers} owned", self.timers.len())
        })?;
        self.check_clients()?;
        ensure(self.result_store.is_consistent(), || {
            "the result store is miscounted, or over its bound".into()
        })?;
        self.observers.check(
            |host| self.is_relay_up(host),
            |host| self.can_spawn(host),
            |client| self.clients.is_here(client),
        )?;
        self.check_references()
    }

    /// Verifies, right after [`Self::schedule`] at `now`, that nobody waits for long while an engine is idle: neither behind
    /// a task that has run for longer than those who steal are patient, nor in the queue of all engines without
    /// somebody looking again in time.
    ///
    /// # Errors
    /// Who waits.
    pub fn check_waits(&self, now: Nanos) -> Result<(), Violation> {
        let is_idle = |e: &&Engine| {
            let is_free = e.offers().is_empty() && !e.is_stealing();
            e.is_up() && !e.is_away() && is_free
        };
        let Some(idle) = self.engines.iter().find(is_idle) else {
            return Ok(());
        };
        if !self.config.steal {
            return Ok(());
        }
        let patience_ns = self.config.steal_after_ns;
        for engine in self.engines.iter().filter(|e| !e.is_away()) {
            let is_patient = engine.head_since() + patience_ns > now;
            let mut waiting = engine.offers().stealable();
            let waits = waiting.find(|(_, key)| self.may_move_to(now, *key, idle.id()));
            ensure(is_patient || waits.is_none(), || {
                format!(
                    "{waits:?} waits behind a long task of engine {} (noted: {}, {} tasks on its stack) while engine {} is idle",
                    engine.id().0,
                    engine.is_late(),
                    engine.offers().n_stacked(),
                    idle.id().0
                )
            })?;
        }
        let is_queued = self.groups.at(ALL).queue.top_rank().is_some();
        let looks_again = self
            .timers
            .look_again_at()
            .is_some_and(|at| at <= now + patience_ns);
        ensure(!is_queued || looks_again, || {
            format!("tasks wait although engine {} is idle", idle.id().0)
        })
    }

    fn check_task(&self, key: broadleaf_proto::TaskKey, task: &Task) -> Result<(), Violation> {
        let at = |what: &str| format!("{key:?} (task {:?}): {what}", task.seq());
        let engine = |id: broadleaf_proto::EngineId| &self.engines[id.0 as usize];
        let is_there = match task.state() {
            TaskState::Vacant | TaskState::Detached => false,
            TaskState::Waiting => self.dependencies.get(key).is_some(),
            TaskState::Ready(group) => {
                task.pinned().is_none()
                    && self
                        .groups
                        .at(group)
                        .queue
                        .keys(&self.tasks)
                        .any(|k| k == key)
            }
            TaskState::Pinned(id) => {
                task.pinned() == Some(id) && engine(id).pinned().keys(&self.tasks).any(|k| k == key)
            }
            TaskState::Offered(id, offer) => {
                let booked = engine(id).offers().iter().find(|(_, k)| *k == key);
                booked.map(|(n, _)| n) == Some(offer) && engine(id).is_connected()
            }
            TaskState::Orphaned(id) => engine(id).orphans().contains(&key),
        };
        ensure(is_there, || {
            at(&format!("not at its recorded position: {:?}", task.state()))
        })?;
        ensure(
            task.client().is_some() || matches!(task.state(), TaskState::Offered(..)),
            || at("its client left, and it is not on an engine"),
        )?;
        if let Some(client) = task.client() {
            let known = self.clients.known(client, task.seq());
            ensure(known == Known::Live(key.slot() as u32), || {
                at(&format!("its client believes it {known:?}"))
            })?;
        }
        if let TaskState::Offered(id, offer) = task.state() {
            let engine = engine(id);
            let ends = engine.is_killed() || engine.state() == State::Dying;
            let runs = engine.offers().claim(offer) == Some(Claim::Claimed) && !ends;
            ensure(
                !runs || !task.stopping().is_forced() || task.timer_at() != 0,
                || at("it is to end, and may run forever"),
            )?;
        }
        ensure(
            task.timer_at() == 0 || self.timers.contains(task.timer_at(), Timer::Task(key)),
            || at("its timer is not set"),
        )
    }

    fn check_queues(&self, counts: &StateCounts) -> Result<(), Violation> {
        ensure(self.engines.is_consistent(), || {
            "an engine is listed where it does not belong".into()
        })?;
        let n_pinned = self.engines.iter().map(|e| e.pinned().len()).sum::<usize>();
        let n_offered = (self.engines.iter())
            .map(|e| e.offers().n_unfinished())
            .sum();
        let n_orphans = self.engines.iter().map(|e| e.orphans().len()).sum();
        for (what, stored, counted) in [
            ("waiting", self.dependencies.n_waiting(), counts.waiting),
            ("ready", self.groups.n_queued(), counts.ready),
            ("pinned", n_pinned, counts.pinned),
            ("offered", n_offered, counts.offered),
            ("orphaned", n_orphans, counts.orphaned),
        ] {
            ensure(stored == counted, || {
                format!("{stored} tasks are stored as {what}, {counted} say so")
            })?;
        }
        for (id, group) in self.groups.iter() {
            ensure(group.queue.is_consistent(&self.tasks), || {
                format!("group {id} miscounts its tasks")
            })?;
            let hopeful = |e: &Engine| !e.is_gone() && group.key.allows(e.id().0);
            let is_hopeful = self.clients.some_await() && group.key.only.is_none()
                || self.engines.iter().any(hopeful);
            ensure(group.queue.len() == 0 || is_hopeful, || {
                format!("group {id} waits for engines that cannot connect")
            })?;
        }
        ensure(self.groups.at(ALL).key.only.is_none(), || {
            "the group of all engines has a restriction".into()
        })
    }

    fn check_engine(&self, engine: &Engine) -> Result<(), Violation> {
        let at = |what: &str| format!("engine {} ({}): {what}", engine.id().0, engine.state_name());
        ensure(engine.is_consistent(&self.config), || {
            at("miscounts its offers, or is over its window")
        })?;
        ensure(engine.pinned().is_consistent(&self.tasks), || {
            at("miscounts the tasks that must run there")
        })?;
        let idle = engine.offers().is_empty();
        ensure(idle || engine.is_connected(), || {
            at("has offers without a link")
        })?;
        ensure(
            engine.orphans().is_empty() || engine.timer_at() != 0,
            || at("keeps orphaned tasks forever"),
        )?;
        let timed = match engine.state() {
            State::Up | State::Gone => engine.timer_at() == 0,
            State::Draining => true, // It may take as long as it needs.
            _ => engine.timer_at() != 0 || !self.supervisor.is_booted(),
        };
        ensure(timed, || at("has a timer it should not have, or lacks one"))?;
        let gone = engine.is_gone();
        ensure(!gone || engine.pinned().len() == 0, || {
            at("keeps tasks waiting forever")
        })
    }

    fn check_clients(&self) -> Result<(), Violation> {
        let tasks = |id| {
            let own = self.tasks.iter().filter(|(_, t)| t.client() == Some(id));
            let mut ranges = Ranges::default();
            own.fold((0, 0), |(n, bytes), (_, task)| {
                let own_bytes = task
                    .inline_bytes()
                    .wrapping_add(ranges.name(task.payload()));
                (n + 1, u64::wrapping_add(bytes, own_bytes))
            })
        };
        let options_bytes = |id| {
            let sets = self.options.iter().map(|(_, set)| set);
            let own = sets.filter(|set| set.owner == Some(id));
            own.map(OptionSet::weight_bytes).sum()
        };
        let is_awaited = |slot| {
            let task = self.tasks.key_at(slot).and_then(|k| self.tasks.get(k));
            task.is_some_and(Task::is_awaited)
        };
        let n_unfinished = |reply_group, client| {
            let is_of =
                |t: &Task| t.reply_group() == Some(reply_group) && t.client() == Some(client);
            self.tasks.iter().filter(|(_, t)| is_of(t)).count() as u64
        };
        let max_tasks = self.config.max_outstanding_tasks;
        (self.clients).check(max_tasks, tasks, options_bytes, is_awaited, n_unfinished)
    }

    fn check_references(&self) -> Result<(), Violation> {
        ensure(self.failures.len() <= MAX_KINDS, || {
            "more kinds of errors are remembered than there may be".to_owned()
        })?;
        for slot in self.functions.slots() {
            let defined = self.clients.n_defining(slot);
            let used = self
                .tasks
                .iter()
                .filter(|(_, t)| t.function() == slot)
                .count();
            ensure(self.functions.unfinished(slot) == used as u64, || {
                format!("function {slot} miscounts its unfinished tasks")
            })?;
            let used = used
                + self
                    .result_store
                    .iter()
                    .filter(|t| t.function() == slot)
                    .count();
            let used = used + self.preparations.slots().filter(|s| *s == slot).count();
            ensure(
                self.functions.references(slot) == (defined + used) as u64,
                || format!("function {slot} miscounts its references"),
            )?;
        }
        for (slot, set) in self.options.iter() {
            let defined = self.clients.n_defining_options(slot) + usize::from(slot == 0);
            let used = self
                .tasks
                .iter()
                .filter(|(_, t)| t.options() == slot)
                .count();
            let used = used
                + self
                    .result_store
                    .iter()
                    .filter(|t| t.options() == slot)
                    .count();
            ensure(set.references == (defined + used) as u64, || {
                format!("option set {slot} miscounts its references")
            })?;
        }
        for slot in self.dependencies.awaited() {
            let task = self.tasks.key_at(slot).and_then(|k| self.tasks.get(k));
            ensure(task.is_some_and(Task::has_dependents), || {
                format!("slot {slot} is awaited but not marked so")
            })?;
        }
        Ok(())
    }
}

/// Tasks by where they claim to be.
#[derive(Default)]
struct StateCounts {
    waiting: usize,
    ready: usize,
    pinned: usize,
    offered: usize,
    orphaned: usize,
}

impl StateCounts {
    fn count(&mut self, state: TaskState) {
        match state {
            TaskState::Waiting => self.waiting += 1,
            TaskState::Ready(_) => self.ready += 1,
            TaskState::Pinned(_) => self.pinned += 1,
            TaskState::Offered(..) => self.offered += 1,
            TaskState::Orphaned(_) => self.orphaned += 1,
            TaskState::Vacant | TaskState::Detached => {}
        }
    }
}
