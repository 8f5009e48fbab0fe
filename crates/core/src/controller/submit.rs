//! Submission: from a record to tasks in a queue, or to their refusal.

use broadleaf_proto::RefusedRun;
use broadleaf_proto::control::{RefusalReason, TaskOptions};
use broadleaf_proto::ids::{ClientId, EngineId, TaskKey, TaskSeq};
use broadleaf_proto::limits::DEPENDENCY_BYTES;
use broadleaf_proto::task::{Payload, Status, SubmitRecord};
use smallvec::SmallVec;

use super::Controller;
use crate::clients::history::Known;
use crate::clients::{DefinedFunction, DefinedOptions};
use crate::tasks::dependencies::{Kind, Verdict, Wait};
use crate::tasks::targets::Targets;
use crate::tasks::{NewTask, TaskState};
use crate::{Nanos, Output};

/// No client counts this far, so the number after one never overflows.
pub(crate) const LAST_SEQ: TaskSeq = TaskSeq(1 << 62);

/// Adds a part whose target is gone to the refused parts, extending the last run if possible.
fn refuse_target(refused: &mut Vec<RefusedRun>, seq: TaskSeq, target: EngineId) {
    let is_full = refused.len() >= MAX_RUNS;
    if let Some(run) = refused.last_mut()
        && run.seq.0 + u64::from(run.n_tasks) == seq.0
        && (is_full || run.reason(run.n_tasks) == RefusalReason::NoSuchEngine(target))
    {
        if run.reason(run.n_tasks) != RefusalReason::NoSuchEngine(target) {
            run.reason = RefusalReason::NoEngines;
        }
        run.n_tasks += 1;
        return;
    }
    refused.push(RefusedRun {
        seq,
        n_tasks: 1,
        reason: RefusalReason::NoSuchEngine(target),
    });
}

/// What all parts of one record share.
pub(crate) struct Submission {
    client: ClientId,
    /// Slot among the option sets.
    options: u32,
    /// Slot in the function cache.
    function: u32,
    depth: u16,
    reply_group: Option<u32>,
    after: SmallVec<[TaskSeq; 0]>,
    follow: SmallVec<[TaskSeq; 0]>,
}

/// What is specific to each part.
pub(crate) struct Part {
    pub seq: TaskSeq,
    pub pinned: Option<EngineId>,
    /// Its share of the inline bytes, and the charge for its dependencies.
    pub inline_bytes: u64,
    pub payload: Payload,
}

/// Number of runs of refused parts in answer to one record, beyond which they are reported together.
const MAX_RUNS: usize = 64;

impl Submission {
    /// A submission without dependencies.
    pub fn bare(client: ClientId, options: u32, function: u32, depth: u16) -> Self {
        Self {
            client,
            options,
            function,
            depth,
            reply_group: None,
            after: SmallVec::new(),
            follow: SmallVec::new(),
        }
    }
}

impl Controller {
    /// Handles a record of tasks; `missing` says why their arguments are not there, if they are not.
    pub(super) fn on_submit(
        &mut self,
        now: Nanos,
        client: ClientId,
        record: SubmitRecord,
        missing: Option<String>,
        out: &mut Vec<Output>,
    ) {
        let Some(known) = self.clients.get(client) else {
            self.totals.ignored += 1;
            return;
        };
        if known.known(record.seq) != Known::Unknown || record.seq > LAST_SEQ {
            // This number was used before (answering it would resolve that task twice), or is
            // absurd. Numbers need not arrive in order: a client's threads take them before they
            // send.
            self.totals.ignored += 1;
            return;
        }
        let seq = record.seq;
        let function = known.function(record.function);
        let options = match self.slot_of(known.options(record.options)) {
            Ok(slot) => slot,
            Err((n_parts, reason)) => {
                self.refuse_unseen(client, seq, n_parts, reason, out);
                return;
            }
        };
        let balanced = self.options.is_balanced(options);
        let targets = if balanced {
            Targets::default()
        } else {
            self.targets_now(options)
        };
        let n_parts = if balanced { 1 } else { targets.len() };
        let n_dependencies = record.after.len() + record.follow.len();
        // A record is refused as a whole here, before memory is taken for any part of it.
        let objection = match function {
            _ if n_parts == 0 => Some(RefusalReason::NoEngines),
            None => Some(RefusalReason::Undefined),
            Some(DefinedFunction::OverLimit) => Some(RefusalReason::OverLimit),
            Some(_) if missing.is_some() => missing.map(RefusalReason::Undeliverable),
            Some(_) => self
                .objection(client, n_parts, &record.payload, n_dependencies)
                .or_else(|| {
                    let mut dependencies = record.after.iter().chain(&record.follow);
                    let is_later = dependencies.any(|on| *on >= seq);
                    is_later.then_some(RefusalReason::InvalidDependency)
                }),
        };
        let (None, Some(DefinedFunction::At(function))) = (&objection, function) else {
            let reason = objection.unwrap_or(RefusalReason::Undefined);
            self.refuse_unseen(client, seq, n_parts.max(1), reason, out);
            return;
        };
        let mut others = (1..n_parts as u64).map(|part| TaskSeq(seq.0 + part));
        if others.any(|seq| self.clients.known(client, seq) != Known::Unknown) {
            self.totals.ignored += 1;
            return;
        }
        let inline_bytes = record.payload.bytes.len() as u64;
        let dependency_bytes = n_dependencies as u64 * DEPENDENCY_BYTES;
        let mut submission = Submission {
            client,
            options,
            function,
            depth: record.depth,
            reply_group: None,
            after: record.after,
            follow: record.follow,
        };
        if balanced {
            let part = Part {
                seq,
                pinned: None,
                inline_bytes: inline_bytes + dependency_bytes,
                payload: record.payload,
            };
            self.submit_part(now, &submission, part, out);
            return;
        }
        // If a part is refused now, the others are reported one by one: nothing is stored for it.
        let all_there = targets.iter().all(|e| self.is_hopeful_slot(EngineId(e)));
        if all_there && self.options.at(options).options.coalesce {
            let id = self.clients.begin_reply_group(client, seq, n_parts);
            submission.reply_group = Some(id);
        }
        // The arguments exist once, however many engines share them.
        let n = n_parts as u64;
        let (share, rest) = (inline_bytes / n, inline_bytes % n);
        let mut refused: Vec<RefusedRun> = Vec::new();
        for (index, target) in (0..).zip(targets.iter()) {
            let (seq, target) = (TaskSeq(seq.0 + index), EngineId(target));
            if !self.is_hopeful_slot(target) {
                refuse_target(&mut refused, seq, target);
                continue;
            }
            let part = Part {
                seq,
                pinned: Some(target),
                inline_bytes: share + if index == 0 { rest } else { 0 } + dependency_bytes,
                payload: record.payload.clone(),
            };
            self.submit_part(now, &submission, part, out);
        }
        for run in refused {
            self.refuse_unseen(client, run.seq, run.n_tasks as usize, run.reason, out);
        }
    }

    /// The slot of defined options, or why and for how many parts a record that names them is refused.
    fn slot_of(&self, defined: Option<DefinedOptions>) -> Result<u32, (usize, RefusalReason)> {
        match defined {
            Some(DefinedOptions::At(slot)) => Ok(slot),
            Some(DefinedOptions::OverLimit(n_parts)) => {
                let n = n_parts.unwrap_or_else(|| self.hopeful_engines().count());
                Err((n.max(1), RefusalReason::OverLimit))
            }
            None => Err((1, RefusalReason::Undefined)),
        }
    }

    /// Accepts a part that passed all checks.
    pub(super) fn submit_part(
        &mut self,
        now: Nanos,
        whole: &Submission,
        part: Part,
        out: &mut Vec<Output>,
    ) {
        let has_dependencies = !whole.after.is_empty() || !whole.follow.is_empty();
        self.totals.submitted += 1;
        self.functions.retain(whole.function);
        self.functions.begin(whole.function);
        self.options.retain(whole.options);
        let key = self.tasks.insert(NewTask {
            client: whole.client,
            seq: part.seq,
            reply_group: whole.reply_group,
            function: whole.function,
            options: whole.options,
            depth: whole.depth,
            retries: self.options.at(whole.options).options.retries,
            pinned: part.pinned,
            inline_bytes: part.inline_bytes,
            submitted_ns: now,
            payload: part.payload,
        });
        let (slot, payload) = (key.slot() as u32, &self.tasks.at(key).payload());
        (self.clients).submit(whole.client, part.seq, slot, part.inline_bytes, payload);
        if has_dependencies {
            self.await_dependencies(now, whole, key, out);
        } else {
            self.make_ready(key, false, out);
        }
    }

    /// Why this many tasks of a client with this payload cannot be accepted; `None` if they can.
    pub(super) fn objection(
        &self,
        client: ClientId,
        n_parts: usize,
        payload: &Payload,
        n_dependencies: usize,
    ) -> Option<RefusalReason> {
        if self.supervisor.is_stopping() {
            return Some(RefusalReason::Stopping);
        }
        let client = self.clients.get(client)?;
        let n_tasks = client.outstanding_tasks().saturating_add(n_parts as u64);
        let n_dependencies = (n_dependencies as u64).saturating_mul(n_parts as u64);
        let dependency_bytes = n_dependencies.saturating_mul(DEPENDENCY_BYTES);
        let max_bytes = self.config.max_outstanding_bytes;
        let is_over = n_tasks > self.config.max_outstanding_tasks
            || client.is_over_bytes(max_bytes, payload, dependency_bytes);
        is_over.then_some(RefusalReason::OverLimit)
    }

    /// Refuses tasks with consecutive numbers that never became tasks.
    pub(super) fn refuse_unseen(
        &mut self,
        client: ClientId,
        first: TaskSeq,
        n_tasks: usize,
        reason: RefusalReason,
        out: &mut Vec<Output>,
    ) {
        let n = n_tasks as u64;
        self.totals.submitted += n;
        self.totals.resolved[Status::Refused as usize] += n;
        self.clients.refuse(client, first, n);
        let record = RefusedRun {
            seq: first,
            n_tasks: n_tasks as u32,
            reason,
        };
        out.push(Output::Refused { client, record });
    }

    /// Enters a new task into the graph, or lets it proceed if there is nothing left to wait for.
    fn await_dependencies(
        &mut self,
        now: Nanos,
        whole: &Submission,
        key: TaskKey,
        out: &mut Vec<Output>,
    ) {
        let TaskOptions {
            after,
            follow,
            dependency_timeout_ns,
            ..
        } = self.options.at(whole.options).options;
        let mut wait = Wait::new((after, whole.after.len()), (follow, whole.follow.len()));
        let named = whole.after.iter().map(|seq| (Kind::After, *seq));
        let named = named.chain(whole.follow.iter().map(|seq| (Kind::Follow, *seq)));
        let mut live: SmallVec<[(Kind, u32); 4]> = SmallVec::new();
        for (kind, seq) in named {
            match self.clients.known(whole.client, seq) {
                Known::Live(slot) => {
                    wait.note_pending(seq);
                    live.push((kind, slot));
                }
                Known::Resolved(status, engine) => wait.count(kind, status, engine),
                Known::Unknown => {
                    self.refuse(key, &RefusalReason::ImpossibleDependency, out);
                    return;
                }
            }
        }
        match wait.verdict() {
            Verdict::Met => self.follow(key, wait, out),
            Verdict::Impossible => self.refuse(key, &RefusalReason::ImpossibleDependency, out),
            Verdict::Pending => {
                for (kind, slot) in live {
                    self.dependencies.depend(key, kind, slot);
                    if let Some(on) = self.tasks.key_at(slot) {
                        self.tasks.at(on).note_dependents();
                    }
                }
                self.dependencies.wait(key, wait);
                self.tasks.at(key).enter(TaskState::Waiting);
                if let Some(timeout_ns) = dependency_timeout_ns {
                    self.set_timer(key, now.saturating_add(timeout_ns));
                }
            }
        }
    }
}
