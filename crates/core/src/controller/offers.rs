//! Tasks on engines: how they end there, are taken back, interrupted and aborted.

use broadleaf_proto::host::EngineOrder;
use broadleaf_proto::ids::{EngineId, TaskKey};
use broadleaf_proto::task::{DoneRecord, Payload, Status};
use bytes::Bytes;

use super::Controller;
use crate::engines::offers::Claim;
use crate::results::Outcome;
use crate::tasks::dependencies::NOWHERE;
use crate::tasks::{Stopping, TaskState};
use crate::{Nanos, Output};

/// How much is kept of what an engine says about a condition that it does not meet.
const MAX_UNMET_BYTES: usize = 2048;

impl Controller {
    /// Whether an engine has been offered an unfinished task: only then is its value worth fetching.
    pub fn is_offered(&self, engine: EngineId, key: TaskKey) -> bool {
        let task = self.tasks.get(self.tasks.named(key));
        task.is_some_and(|task| matches!(task.state(), TaskState::Offered(at, _) if at == engine))
    }

    /// Removes an offer from its engine.
    pub(super) fn unoffer(&mut self, now: Nanos, key: TaskKey, engine: EngineId, offer: u32) {
        self.clear_timer(key);
        self.tasks.at(key).enter(TaskState::Detached);
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
            thief.end_steal();
        }
    }

    /// Takes an offer back, or interrupts its task if it is known to run.
    pub(super) fn take_back(
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
    pub(super) fn interrupt(
        &mut self,
        engine: EngineId,
        key: TaskKey,
        offer: u32,
        out: &mut Vec<Output>,
    ) {
        let task = self.tasks.at(key);
        if task.client().is_some() || task.stopping().is_forced() {
            task.note_interrupt();
            out.push(Output::Order(EngineOrder::Interrupt { engine, key, offer }));
        }
    }

    /// Aborts a live task, in one of the two ways in which clients do that.
    pub(super) fn cancel(
        &mut self,
        now: Nanos,
        key: TaskKey,
        how: Stopping,
        out: &mut Vec<Output>,
    ) {
        let task = self.tasks.at(key);
        let TaskState::Offered(engine, offer) = task.state() else {
            self.detach(key);
            self.resolve(key, Outcome::bare(Status::Cancelled, NOWHERE), out);
            return;
        };
        let is_new = !task.stopping().is_forced() && task.stopping() != how;
        if is_new {
            task.stop(how);
        }
        self.take_back(engine, key, offer, out);
        if is_new && self.engines[engine.0 as usize].offers().claim(offer) == Some(Claim::Claimed) {
            self.limit_end(now, key);
        }
    }

    pub(super) fn on_done(
        &mut self,
        now: Nanos,
        engine: EngineId,
        record: DoneRecord,
        copy: Option<Box<Bytes>>,
        out: &mut Vec<Output>,
    ) {
        let key = self.tasks.named(record.key);
        let offered = self.tasks.state(key);
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
            let function = self.tasks.at(key).function();
            let state = &mut self.engines[engine.0 as usize];
            state.observe(task_ns, &self.config);
            let is_first = state.try_function(function);
            let is_error = record.status == Status::Error;
            self.functions
                .observe(function, engine, is_first, task_ns, is_error);
        }
        let task = self.tasks.at(key);
        if record.status == Status::Error && task.stopping() == Stopping::No {
            let function = task.function();
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
        match (task.stopping(), record.status) {
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
            (Stopping::No, Status::Error) if task.may_retry() && !task.was_interrupted() => {
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

    fn on_unmet(&mut self, key: TaskKey, engine: EngineId, said: &[u8], out: &mut Vec<Output>) {
        let said = String::from_utf8_lossy(&said[..said.len().min(MAX_UNMET_BYTES)]);
        let task = self.tasks.at(key);
        task.note_unmet(engine, format!("engine {}: {said}", engine.0));
        if task.pinned().is_some() {
            let reason = self.why_hopeless(key);
            self.refuse(key, &reason, out);
            return;
        }
        let key = self.tasks.rename(key);
        self.make_ready(key, true, out);
    }

    pub(super) fn on_revoked(
        &mut self,
        now: Nanos,
        engine: EngineId,
        key: TaskKey,
        won: bool,
        out: &mut Vec<Output>,
    ) {
        let offered = self.tasks.state(key);
        let Some(TaskState::Offered(at, offer)) = offered else {
            return; // The task ended, or its engine died, before the answer came.
        };
        let claim = self.engines[at.0 as usize].offers().claim(offer);
        let asked = matches!(claim, Some(Claim::Revoking(_) | Claim::Returning));
        if at != engine || !asked {
            self.totals.ignored += 1;
            return;
        }
        let stopping = self.tasks.at(key).stopping();
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
            _ if task.client().is_none() => self.discard(key, out),
            Stopping::Asked | Stopping::Cancel => {
                self.resolve(key, Outcome::bare(Status::Cancelled, NOWHERE), out);
            }
            Stopping::Timeout if task.has_stalled() => {
                self.resolve(key, Outcome::bare(Status::Timeout, engine), out);
            }
            Stopping::Timeout => {
                // The task had not even started, so its time has not run out; the engine is stuck
                // or slow.
                task.stall(engine);
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
