//! How tasks end: each exactly once.

use broadleaf_proto::control;
use broadleaf_proto::control::RefusalReason;
use broadleaf_proto::ids::{ClientId, EngineId, TaskKey};
use broadleaf_proto::task::{Payload, Status};
use smallvec::SmallVec;

use super::Controller;
use crate::Output;
use crate::results::Outcome;
use crate::tasks::TaskState;
use crate::tasks::dependencies::{Ended, NOWHERE};

impl Controller {
    /// Removes a live task from wherever it is; the caller resolves it next.
    pub(super) fn detach(&mut self, key: TaskKey) {
        self.clear_timer(key);
        let task = self.tasks.at(key);
        let state = task.enter(TaskState::Detached);
        let (client, rank) = (task.client(), task.rank(&self.options));
        match state {
            TaskState::Waiting => drop(self.dependencies.forget(key)),
            TaskState::Orphaned(engine) => {
                self.engines[engine.0 as usize].drop_orphan(key);
            }
            TaskState::Ready(group) => {
                if let Some(client) = client {
                    self.groups.queue(group).removed(rank, client, &self.tasks);
                }
            }
            TaskState::Pinned(engine) => {
                if let Some(client) = client {
                    let queue = self.engines[engine.0 as usize].pinned_mut();
                    queue.removed(rank, client, &self.tasks);
                }
            }
            TaskState::Offered(..) | TaskState::Detached | TaskState::Vacant => {}
        }
    }

    /// Ends a detached task: this is its only result.
    pub(super) fn resolve(&mut self, key: TaskKey, outcome: Outcome, out: &mut Vec<Output>) {
        let task = self.tasks.at(key);
        let is_awaited = task.is_awaited();
        let Some(client) = task.client() else {
            if is_awaited {
                self.tell_subscribers(key, &outcome, out);
            }
            self.discard(key, out);
            return;
        };
        let (seq, inline_bytes, reply_group) =
            (task.seq(), task.inline_bytes(), task.reply_group());
        if task.has_dependents() {
            self.dependencies.note_end(Ended {
                slot: key.slot() as u32,
                status: outcome.status,
                engine: outcome.engine,
            });
        }
        let end = (outcome.status, outcome.engine);
        let is_away = (self.clients).resolve(client, seq, end, inline_bytes, task.payload());
        self.totals.resolved[outcome.status as usize] += 1;
        if is_awaited {
            self.tell_subscribers(key, &outcome, out);
        }
        self.keep(key, client, is_away, &outcome);
        if is_away {
            return;
        }
        let record = outcome.into_record(seq);
        self.clients.deliver(client, reply_group, record, out);
    }

    /// Frees a detached task whose client is gone.
    pub(super) fn discard(&mut self, key: TaskKey, out: &mut Vec<Output>) {
        if self.tasks.at(key).is_awaited() {
            self.tell_subscribers(key, &Outcome::bare(Status::Cancelled, NOWHERE), out);
        }
        self.totals.discarded += 1;
        self.free(key);
    }

    pub(super) fn free(&mut self, key: TaskKey) {
        self.clear_timer(key);
        let task = self.tasks.at(key);
        let (function, options) = (task.function(), task.options());
        drop(self.tasks.remove(key));
        self.functions.end(function);
        self.release_function(function);
        self.release_options(options);
    }

    pub(super) fn refuse(&mut self, key: TaskKey, reason: &RefusalReason, out: &mut Vec<Output>) {
        self.resolve(key, Outcome::refused(reason), out);
    }

    /// Ends a detached task whose engine died.
    pub(super) fn lose(
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

    /// Frees a task that ended, and stores what can be stored of it.
    pub(super) fn keep(
        &mut self,
        key: TaskKey,
        client: ClientId,
        is_away: bool,
        outcome: &Outcome,
    ) {
        let task = self.tasks.at(key);
        let options_bytes = self.options.at(task.options()).extra_bytes();
        let stored = (self.result_store).prepare(client, is_away, task, options_bytes, outcome);
        let Some(stored) = stored else {
            self.free(key);
            return;
        };
        self.clear_timer(key);
        let arguments = self.tasks.remove(key);
        self.functions.end(stored.function());
        while let Some(oldest) = self.result_store.make_room(&stored) {
            self.release_stored(&oldest);
        }
        self.result_store.store(stored, &arguments, outcome);
    }

    /// Tells those who subscribed to a task's result how it ended.
    pub(super) fn tell_subscribers(
        &mut self,
        key: TaskKey,
        outcome: &Outcome,
        out: &mut Vec<Output>,
    ) {
        self.tasks.at(key).set_awaited(false);
        for (client, seq) in self.clients.take_subscribers(key.slot() as u32) {
            let record = outcome.record(seq);
            out.push(Output::Result { client, record });
        }
    }
}
