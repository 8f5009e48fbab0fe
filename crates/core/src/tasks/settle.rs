//! How tasks end: results, retries, refusals, cancels and timeouts.

use broadleaf_proto::control::{self, RefusalReason};
use broadleaf_proto::host::EngineOrder;
use broadleaf_proto::ids::{EngineId, TaskKey};
use broadleaf_proto::task::{DoneRecord, Payload, ResultRecord, Status};
use bytes::Bytes;
use smallvec::SmallVec;

use crate::engines::State;
use crate::engines::offers::Claim;
use crate::placement::groups::{ALL, GroupKey};
use crate::tasks::dependencies::{NOWHERE, Resolved};
use crate::tasks::submit::refusal_payload;
use crate::tasks::targets::Targets;
use crate::tasks::{Stopping, Task, TaskState};
use crate::{Controller, Nanos, Output};

/// A task's end.
pub(crate) struct Outcome {
    pub status: Status,
    pub engine: EngineId,
    pub started_ns: u64,
    pub completed_ns: u64,
    pub cpu_ns: u64,
    pub payload: Payload,
    /// The payload inline, for the result store.
    pub copy: Option<Box<Bytes>>,
}

impl Outcome {
    /// An end without a value.
    pub fn bare(status: Status, engine: EngineId) -> Self {
        Self {
            status,
            engine,
            started_ns: 0,
            completed_ns: 0,
            cpu_ns: 0,
            payload: Payload::default(),
            copy: None,
        }
    }
}

/// How much is kept of what an engine says about a condition that it does not meet.
const MAX_UNMET_BYTES: usize = 2048;

impl Controller {
    pub(crate) fn on_done(
        &mut self,
        now: Nanos,
        engine: EngineId,
        record: DoneRecord,
        copy: Option<Box<Bytes>>,
        out: &mut Vec<Output>,
    ) {
        let key = record.key;
        let offered = self.tasks.get(key).map(|t| t.state);
        let Some(TaskState::Offered(at, offer)) = offered else {
            self.totals.ignored += 1;
            return;
        };
        if at != engine {
            self.totals.ignored += 1;
            return;
        }
        self.tell_unread(engine, key, out);
        self.unoffer(now, key, engine, offer);
        if record.status != Status::Unmet {
            let task_ns = record.completed_ns.saturating_sub(record.started_ns);
            let function = self.tasks.at(key).function;
            let state = &mut self.engines[engine.0 as usize];
            state.observe(task_ns, &self.config);
            let is_first = state.try_function(function);
            let is_error = record.status == Status::Error;
            self.functions
                .observe(function, engine, is_first, task_ns, is_error);
        }
        let task = self.tasks.at(key);
        if record.status == Status::Error && task.stopping == Stopping::No {
            let function = task.function;
            let name = || self.functions.name(function);
            let (tag, at_ns) = (self.functions.tag(function), record.completed_ns);
            self.failures
                .observe(tag, &name, engine, at_ns, &record.payload.bytes);
        }
        let task = self.tasks.at(key);
        let outcome = Outcome {
            status: record.status,
            engine,
            started_ns: record.started_ns,
            completed_ns: record.completed_ns,
            cpu_ns: record.cpu_ns,
            payload: record.payload,
            copy,
        };
        match (task.stopping, record.status) {
            (Stopping::Timeout, _) => {
                let outcome = Outcome {
                    status: Status::Timeout,
                    payload: Payload::default(),
                    copy: None,
                    ..outcome
                };
                self.resolve(key, outcome, out);
            }
            (_, Status::Ok) => self.resolve(key, outcome, out),
            (Stopping::Asked | Stopping::Cancel, _) => {
                let outcome = Outcome {
                    status: Status::Cancelled,
                    payload: Payload::default(),
                    copy: None,
                    ..outcome
                };
                self.resolve(key, outcome, out);
            }
            (Stopping::No, Status::Unmet) => {
                self.on_unmet(key, engine, &outcome.payload.bytes, out);
            }
            (Stopping::No, Status::Error) if task.retries_left > 0 && !task.interrupted => {
                self.retry(key, engine, out);
            }
            (Stopping::No, Status::Refused | Status::Lost) => {
                // An engine may not report these; its payload would not decode as they promise.
                let status = Status::Error;
                self.resolve(key, Outcome { status, ..outcome }, out);
            }
            (Stopping::No, _) => self.resolve(key, outcome, out),
        }
    }

    /// Removes an offer from its engine.
    pub(crate) fn unoffer(&mut self, now: Nanos, key: TaskKey, engine: EngineId, offer: u32) {
        self.clear_timer(key);
        self.tasks.at(key).state = TaskState::Detached;
        self.end_steal(engine, offer);
        let state = &mut self.engines[engine.0 as usize];
        if state.offers_mut().strike(offer) {
            state.begin_head(now);
            self.time_head(now, engine);
        }
        self.time_uncovered(now, engine);
    }

    /// The idle engine for which an offer was being revoked, if any, stops waiting for it.
    fn end_steal(&mut self, engine: EngineId, offer: u32) {
        let claim = self.engines[engine.0 as usize].offers().claim(offer);
        if let Some(Claim::Revoking(Some(thief))) = claim {
            let thief = &mut self.engines[thief.0 as usize];
            thief.stealing = thief.stealing.saturating_sub(1);
        }
    }

    /// Starts a task again after an error or a death, on another engine if there is one.
    pub(crate) fn retry(&mut self, key: TaskKey, failed_on: EngineId, out: &mut Vec<Output>) {
        let task = self.tasks.at(key);
        task.retries_left -= 1;
        task.restrict().avoid = Some(failed_on);
        self.totals.retried += 1;
        let key = self.tasks.rename(key);
        self.make_ready(key, true, out);
    }

    fn on_unmet(&mut self, key: TaskKey, engine: EngineId, said: &[u8], out: &mut Vec<Output>) {
        let said = String::from_utf8_lossy(&said[..said.len().min(MAX_UNMET_BYTES)]);
        let task = self.tasks.at(key);
        let restrictions = task.restrict();
        restrictions.unmet = Some(format!("engine {}: {said}", engine.0).into());
        if let Err(index) = restrictions.tried.binary_search(&engine.0) {
            restrictions.tried.insert(index, engine.0);
        }
        if task.pinned.is_some() {
            let reason = self.why_hopeless(key);
            self.refuse(key, &reason, out);
            return;
        }
        let key = self.tasks.rename(key);
        self.make_ready(key, true, out);
    }

    /// Queues a detached task where it belongs, or ends it if no engine can ever run it.
    pub(crate) fn make_ready(&mut self, key: TaskKey, front: bool, out: &mut Vec<Output>) {
        let task = self.tasks.at(key);
        let Some(client) = task.client else {
            self.discard(key, out);
            return;
        };
        if self.supervisor.stopping {
            self.refuse(key, &RefusalReason::Stopping, out);
            return;
        }
        let rank = task.rank(&self.options);
        let pinned = task.pinned;
        let congested = self.clients.get(&client).is_some_and(|c| c.congested);
        let queue = if let Some(target) = pinned {
            let engine = &mut self.engines[target.0 as usize];
            if engine.state == State::Gone {
                self.refuse(key, &RefusalReason::NoSuchEngine(target), out);
                return;
            }
            self.tasks.at(key).state = TaskState::Pinned(target);
            &mut engine.pinned
        } else {
            let set = self.options.at(task.options);
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
            self.tasks.at(key).state = TaskState::Ready(id);
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

    /// Whether an engine of a group exists or will come.
    pub(crate) fn is_hopeful(&mut self, group: u32) -> bool {
        let key = &self.groups.at(group).key;
        if self.n_awaiting > 0 && key.only.is_none() {
            return true; // A client will start more.
        }
        let n_present = self.engines.n_present(None);
        let engines = &self.engines;
        let is_present = |id: &u32| {
            let engine = engines.get(*id as usize);
            engine.is_some_and(|e| e.state != State::Gone)
        };
        match &key.only {
            Some(only) => only.iter().any(|id| key.allows(id) && is_present(&id)),
            None => n_present > key.not.iter().filter(|id| is_present(id)).count(),
        }
    }

    /// Why no engine can run a load-balanced task.
    pub(crate) fn why_hopeless(&mut self, key: TaskKey) -> RefusalReason {
        let task = self.tasks.at(key);
        let restrictions = task.restrictions();
        if let Some(said) = restrictions.and_then(|r| r.unmet.as_ref()) {
            return RefusalReason::UnmetEverywhere(said.to_string());
        }
        if restrictions.is_some_and(|r| r.followed.is_some()) {
            return RefusalReason::ImpossibleDependency;
        }
        let targets = self.options.at(task.options).targets.as_ref();
        match targets.and_then(|t| t.iter().next()) {
            Some(target) => RefusalReason::NoSuchEngine(EngineId(target)),
            None => RefusalReason::NoEngines,
        }
    }

    /// Removes a live task from wherever it is; the caller resolves it next.
    pub(crate) fn detach(&mut self, key: TaskKey) {
        self.clear_timer(key);
        let task = self.tasks.at(key);
        let state = core::mem::replace(&mut task.state, TaskState::Detached);
        let (client, rank) = (task.client, task.rank(&self.options));
        match state {
            TaskState::Waiting => drop(self.dependencies.forget(key)),
            TaskState::Orphaned(engine) => {
                self.engines[engine.0 as usize]
                    .orphans
                    .retain(|k| *k != key);
            }
            TaskState::Ready(group) => {
                if let Some(client) = client {
                    self.groups.queue(group).removed(rank, client, &self.tasks);
                }
            }
            TaskState::Pinned(engine) => {
                if let Some(client) = client {
                    let queue = &mut self.engines[engine.0 as usize].pinned;
                    queue.removed(rank, client, &self.tasks);
                }
            }
            TaskState::Offered(..) | TaskState::Detached | TaskState::Vacant => {}
        }
    }

    /// Ends a detached task: this is its only result.
    pub(crate) fn resolve(&mut self, key: TaskKey, outcome: Outcome, out: &mut Vec<Output>) {
        let task = self.tasks.at(key);
        let is_awaited = task.is_awaited;
        let Some(client) = task.client else {
            if is_awaited {
                self.tell_subscribers(key, &outcome, out);
            }
            self.discard(key, out);
            return;
        };
        let (seq, inline_bytes, reply_group) = (task.seq, task.inline_bytes, task.reply_group);
        if task.has_dependents {
            self.resolved.push_back(Resolved {
                slot: key.slot() as u32,
                status: outcome.status,
                engine: outcome.engine,
            });
        }
        let mut is_away = false;
        if let Some(known) = self.clients.get_mut(&client) {
            is_away = known.away;
            known.outstanding_tasks -= 1;
            let bytes = inline_bytes.wrapping_add(known.ranges.release(&task.payload));
            known.outstanding_bytes = known.outstanding_bytes.wrapping_sub(bytes);
            known.history.resolve(seq, outcome.status, outcome.engine);
            if is_away && known.outstanding_tasks == 0 {
                self.departed.push(client);
            }
        }
        self.totals.resolved[outcome.status as usize] += 1;
        if is_awaited {
            self.tell_subscribers(key, &outcome, out);
        }
        self.keep(key, client, is_away, &outcome);
        if is_away {
            return;
        }
        let record = ResultRecord {
            seq,
            status: outcome.status,
            engine: outcome.engine,
            started_ns: outcome.started_ns,
            completed_ns: outcome.completed_ns,
            cpu_ns: outcome.cpu_ns,
            payload: outcome.payload,
        };
        self.deliver(client, reply_group, record, out);
    }

    /// Frees a detached task whose client is gone.
    pub(crate) fn discard(&mut self, key: TaskKey, out: &mut Vec<Output>) {
        if self.tasks.at(key).is_awaited {
            self.tell_subscribers(key, &Outcome::bare(Status::Cancelled, NOWHERE), out);
        }
        self.totals.discarded += 1;
        self.free(key);
    }

    pub(crate) fn free(&mut self, key: TaskKey) {
        self.clear_timer(key);
        let task = self.tasks.at(key);
        let (function, options) = (task.function, task.options);
        drop(self.tasks.remove(key));
        self.functions.end(function);
        self.release_function(function);
        self.release_options(options);
    }

    pub(crate) fn refuse(&mut self, key: TaskKey, reason: &RefusalReason, out: &mut Vec<Output>) {
        let outcome = Outcome {
            payload: refusal_payload(reason),
            ..Outcome::bare(Status::Refused, NOWHERE)
        };
        self.resolve(key, outcome, out);
    }

    /// Ends a detached task whose engine died.
    pub(crate) fn lose(
        &mut self,
        key: TaskKey,
        engine: EngineId,
        started: bool,
        out: &mut Vec<Output>,
    ) {
        let certificate = self.engines[engine.0 as usize].certificate(started);
        let payload = Payload {
            bytes: control::encode(&certificate).into(),
            segments: SmallVec::new(),
            lease: None,
        };
        let at = if started { engine } else { NOWHERE };
        let outcome = Outcome {
            payload,
            ..Outcome::bare(Status::Lost, at)
        };
        self.resolve(key, outcome, out);
    }

    /// Aborts a live task, in one of the two ways in which clients do that.
    pub(crate) fn cancel(
        &mut self,
        now: Nanos,
        key: TaskKey,
        how: Stopping,
        out: &mut Vec<Output>,
    ) {
        let task = self.tasks.at(key);
        let TaskState::Offered(engine, offer) = task.state else {
            self.detach(key);
            self.resolve(key, Outcome::bare(Status::Cancelled, NOWHERE), out);
            return;
        };
        let is_new = !task.stopping.is_forced() && task.stopping != how;
        if is_new {
            task.stopping = how;
        }
        self.take_back(engine, key, offer, out);
        if is_new && self.engines[engine.0 as usize].offers().claim(offer) == Some(Claim::Claimed) {
            self.limit_end(now, key);
        }
    }

    /// Takes an offer back, or interrupts its task if it is known to run.
    pub(crate) fn take_back(
        &mut self,
        engine: EngineId,
        key: TaskKey,
        offer: u32,
        out: &mut Vec<Output>,
    ) {
        let offers = self.engines[engine.0 as usize].offers_mut();
        match offers.claim(offer) {
            Some(Claim::Open) => {
                offers.set_claim(offer, Claim::Revoking(None));
                out.push(Output::Order(EngineOrder::Revoke { engine, key, offer }));
            }
            Some(Claim::Claimed) => self.interrupt(engine, key, offer, out),
            Some(Claim::Revoking(_) | Claim::Returning) | None => {}
        }
    }

    /// Interrupts a task that was claimed. A task whose client left may finish within its time.
    pub(crate) fn interrupt(
        &mut self,
        engine: EngineId,
        key: TaskKey,
        offer: u32,
        out: &mut Vec<Output>,
    ) {
        let task = self.tasks.at(key);
        if task.client.is_some() || task.stopping.is_forced() {
            task.interrupted = true;
            out.push(Output::Order(EngineOrder::Interrupt { engine, key, offer }));
        }
    }

    pub(crate) fn on_revoked(
        &mut self,
        now: Nanos,
        engine: EngineId,
        key: TaskKey,
        won: bool,
        out: &mut Vec<Output>,
    ) {
        let offered = self.tasks.get(key).map(|t| t.state);
        let Some(TaskState::Offered(at, offer)) = offered else {
            return; // The task ended, or its engine died, before the answer came.
        };
        let claim = self.engines[at.0 as usize].offers().claim(offer);
        let asked = matches!(claim, Some(Claim::Revoking(_) | Claim::Returning));
        if at != engine || !asked {
            self.totals.ignored += 1;
            return;
        }
        let stopping = self.tasks.at(key).stopping;
        if !won {
            self.end_steal(engine, offer);
            let offers = self.engines[engine.0 as usize].offers_mut();
            offers.set_claim(offer, Claim::Claimed);
            if stopping != Stopping::No {
                self.interrupt(engine, key, offer, out);
                self.limit_end(now, key);
            }
            return;
        }
        self.totals.revoked += 1;
        self.unoffer(now, key, engine, offer);
        let task = self.tasks.at(key);
        match stopping {
            _ if task.client.is_none() => self.discard(key, out),
            Stopping::Asked | Stopping::Cancel => {
                self.resolve(key, Outcome::bare(Status::Cancelled, NOWHERE), out);
            }
            Stopping::Timeout if task.stalled => {
                self.resolve(key, Outcome::bare(Status::Timeout, engine), out);
            }
            Stopping::Timeout => {
                // The task had not even started, so its time has not run out; the engine is stuck
                // or slow.
                task.stalled = true;
                task.stopping = Stopping::No;
                task.restrict().avoid = Some(engine);
                let key = self.tasks.rename(key);
                self.make_ready(key, true, out);
            }
            Stopping::No => {
                let key = self.tasks.rename(key);
                self.make_ready(key, true, out);
            }
        }
    }
}
