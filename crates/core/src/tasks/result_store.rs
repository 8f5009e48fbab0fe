//! The result store: ended tasks in bounded memory, with how they ended, their results, and what it takes to run them
//! again.
//!
//! It is a queue of records and a ring of their small payloads, oldest first. Storing one and forgetting the oldest
//! cost a few writes each and allocate nothing. A look-up walks along the queue, and is only done on request.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use broadleaf_proto::control::{RefusalReason, TaskName, TaskRecord};
use broadleaf_proto::ids::{ClientId, EngineId, TaskKey, TaskSeq};
use broadleaf_proto::task::{Payload, ResultRecord, Status};

use crate::clients::history::Known;
use crate::tasks::dependencies::NOWHERE;
use crate::tasks::settle::Outcome;
use crate::tasks::submit::{Part, Submission, refusal_payload};
use crate::{Controller, Nanos, Output};

/// The size charged for one stored task besides its payloads: the queue's memory doubles when it grows.
const RECORD_BYTES: u64 = 2 * size_of::<StoredTask>() as u64;
/// Payloads up to this size are copied: they share a large buffer with data that is not stored.
const COPIED_BYTES: usize = 64 * 1024;

/// Size from which the unused front of the ring is released.
const DEAD_BYTES: usize = 16 * 1024;

/// The stored part of a payload.
#[derive(Clone, Debug)]
enum StoredPayload {
    Nothing,
    /// This many bytes in the ring of small payloads.
    Small(u32),
    Large(Box<Payload>),
}

impl StoredPayload {
    fn len_bytes(&self) -> u64 {
        match self {
            Self::Nothing => 0,
            Self::Small(len) => u64::from(*len),
            Self::Large(payload) => payload.weight_bytes(),
        }
    }
    fn small_bytes(&self) -> usize {
        match self {
            Self::Small(len) => *len as usize,
            Self::Nothing | Self::Large(_) => 0,
        }
    }
    fn is_stored(&self) -> bool {
        !matches!(self, Self::Nothing)
    }

    /// What can be stored of a payload in this many bytes; nothing if it is in segments, unless `segments` may be held.
    fn of(payload: &Payload, segments: bool, max_bytes: u64) -> Self {
        if payload.weight_bytes() > max_bytes || !payload.segments.is_empty() && !segments {
            Self::Nothing
        } else if payload.segments.is_empty() && payload.bytes.len() <= COPIED_BYTES {
            Self::Small(payload.bytes.len() as u32)
        } else {
            Self::Large(Box::new(payload.clone()))
        }
    }
}

/// One ended task. It holds a reference to its function and to its option set.
#[derive(Clone, Debug)]
pub(crate) struct StoredTask {
    pub client: ClientId,
    pub seq: TaskSeq,
    pub function: u32,
    pub options: u32,
    /// Memory of the option set besides its record, as if only this task used it.
    options_bytes: u64,
    pinned: Option<EngineId>,
    engine: EngineId,
    status: Status,
    submitted_ns: Nanos,
    started_ns: u64,
    completed_ns: u64,
    cpu_ns: u64,
    /// Where its small payloads begin, counting all bytes that ever went into the ring.
    small_at: u64,
    /// A payload in segments is omitted, and so is one that is too large.
    arguments: StoredPayload,
    /// A value is omitted if it is too large, or if it is in segments and its client is connected: the client then
    /// holds it.
    result: StoredPayload,
}

impl StoredTask {
    fn weight_bytes(&self) -> u64 {
        let payloads = self.arguments.len_bytes();
        let payloads = payloads.saturating_add(self.result.len_bytes());
        RECORD_BYTES + payloads.saturating_add(self.options_bytes)
    }
    fn small_bytes(&self) -> usize {
        self.arguments.small_bytes() + self.result.small_bytes()
    }
}

/// See the module.
#[derive(Clone, Debug)]
pub(crate) struct ResultStore {
    tasks: VecDeque<StoredTask>,
    /// Small payloads, in the order of their tasks: each one's arguments, then its result.
    small: VecDeque<u8>,
    /// Bytes at the front of `small` that belong to no task any more; they are removed in bulk.
    small_dead: usize,
    /// Bytes removed from `small`.
    small_gone: u64,
    held_bytes: u64,
    limit_bytes: u64,
}

impl ResultStore {
    pub fn new(limit_bytes: u64) -> Self {
        Self {
            tasks: VecDeque::new(),
            small: VecDeque::new(),
            small_dead: 0,
            small_gone: 0,
            held_bytes: 0,
            limit_bytes,
        }
    }
    pub fn is_off(&self) -> bool {
        self.limit_bytes < RECORD_BYTES
    }
    pub fn len(&self) -> usize {
        self.tasks.len()
    }
    pub fn held_bytes(&self) -> u64 {
        self.held_bytes
    }
    pub fn iter(&self) -> impl Iterator<Item = &StoredTask> {
        self.tasks.iter()
    }
    pub fn is_consistent(&self) -> bool {
        let held = self.tasks.iter().map(StoredTask::weight_bytes).sum::<u64>();
        let small_end = self.small_gone + self.small.len() as u64;
        let mut small_at = self.small_gone + self.small_dead as u64;
        let in_order = self.tasks.iter().all(|task| {
            let is_next = task.small_at == small_at;
            small_at += task.small_bytes() as u64;
            is_next
        });
        in_order
            && small_at == small_end
            && self.small_dead < DEAD_BYTES
            && held == self.held_bytes
            && held <= self.limit_bytes
    }

    /// Whether the store is too full for another task of this size.
    fn is_full(&self, weight_bytes: u64) -> bool {
        self.held_bytes + weight_bytes > self.limit_bytes
    }

    /// Stores a task for which there is room.
    fn push(&mut self, mut task: StoredTask, arguments: &[u8], result: &[u8]) {
        self.held_bytes += task.weight_bytes();
        task.small_at = self.small_gone + self.small.len() as u64;
        self.grow(task.small_bytes());
        for (stored, bytes) in [(&task.arguments, arguments), (&task.result, result)] {
            self.small.extend(&bytes[..stored.small_bytes()]);
        }
        self.tasks.push_back(task);
    }

    /// Makes room in the ring, which never needs more than the limit plus its unused part.
    fn grow(&mut self, more: usize) {
        let wanted = self.small.len() + more;
        let capacity = self.small.capacity();
        if wanted > capacity {
            let limit = usize::try_from(self.limit_bytes).unwrap_or(usize::MAX);
            let max_capacity = limit.saturating_add(DEAD_BYTES);
            let capacity = capacity.saturating_mul(2).min(max_capacity).max(wanted);
            self.small.reserve_exact(capacity - self.small.len());
        }
    }

    /// Removes the oldest task.
    fn pop(&mut self) -> Option<StoredTask> {
        let task = self.tasks.pop_front()?;
        self.small_dead += task.small_bytes();
        if self.small_dead >= DEAD_BYTES {
            self.small.drain(..self.small_dead);
            self.small_gone += self.small_dead as u64;
            self.small_dead = 0;
        }
        self.held_bytes -= task.weight_bytes();
        Some(task)
    }

    /// Removes those of the named tasks that are here.
    fn take(&mut self, names: &BTreeSet<TaskName>) -> Vec<StoredTask> {
        let mut left = Self::new(self.limit_bytes);
        let mut taken = Vec::new();
        for task in core::mem::take(&mut self.tasks) {
            if names.contains(&(task.client, task.seq)) {
                taken.push(task);
                continue;
            }
            let small = self.small_of(task.small_at, task.small_bytes());
            let (arguments, result) = small.split_at(task.arguments.small_bytes());
            left.push(task, arguments, result);
        }
        *self = left;
        taken
    }

    /// The named tasks that are here.
    pub(crate) fn find(&self, names: &[TaskName]) -> BTreeMap<TaskName, &StoredTask> {
        let names: BTreeSet<_> = names.iter().copied().collect();
        let here = self
            .tasks
            .iter()
            .map(|task| ((task.client, task.seq), task));
        here.filter(|(name, _)| names.contains(name)).collect()
    }

    fn small_of(&self, at: u64, len: usize) -> Vec<u8> {
        let first = (at - self.small_gone) as usize;
        self.small.range(first..first + len).copied().collect()
    }

    fn payload(&self, at: u64, stored: &StoredPayload) -> Option<Payload> {
        match stored {
            StoredPayload::Nothing => None,
            StoredPayload::Small(len) => Some(Payload {
                bytes: self.small_of(at, *len as usize).into(),
                ..Payload::default()
            }),
            StoredPayload::Large(payload) => Some(Payload::clone(payload)),
        }
    }
    fn arguments(&self, task: &StoredTask) -> Option<Payload> {
        self.payload(task.small_at, &task.arguments)
    }
    fn result(&self, task: &StoredTask) -> Option<Payload> {
        let at = task.small_at + task.arguments.small_bytes() as u64;
        self.payload(at, &task.result)
    }
}

impl Controller {
    /// Frees a task that ended, and stores what can be stored of it.
    pub(crate) fn keep(
        &mut self,
        key: TaskKey,
        client: ClientId,
        is_away: bool,
        outcome: &Outcome,
    ) {
        if self.result_store.is_off() {
            self.free(key);
            return;
        }
        self.clear_timer(key);
        let task = self.tasks.at(key);
        let options_bytes = self.options.at(task.options).extra_bytes();
        let max_bytes = self.result_store.limit_bytes - RECORD_BYTES;
        if options_bytes > max_bytes {
            self.free(key);
            return;
        }
        let max_bytes = max_bytes - options_bytes;
        let copy = outcome.copy.as_deref().map(|bytes| Payload {
            bytes: bytes.clone(),
            ..Payload::default()
        });
        let payload = copy.as_ref().unwrap_or(&outcome.payload);
        let result = StoredPayload::of(payload, is_away, max_bytes);
        let max_bytes = max_bytes - result.len_bytes();
        let stored = StoredTask {
            client,
            seq: task.seq,
            function: task.function,
            options: task.options,
            options_bytes,
            pinned: task.pinned,
            engine: outcome.engine,
            status: outcome.status,
            submitted_ns: task.submitted_ns,
            started_ns: outcome.started_ns,
            completed_ns: outcome.completed_ns,
            cpu_ns: outcome.cpu_ns,
            small_at: 0,
            arguments: StoredPayload::of(&task.payload, false, max_bytes),
            result,
        };
        let arguments = self.tasks.remove(key);
        self.functions.end(stored.function);
        while self.result_store.is_full(stored.weight_bytes())
            && let Some(oldest) = self.result_store.pop()
        {
            self.release_stored(&oldest);
        }
        self.result_store
            .push(stored, &arguments.bytes, &payload.bytes);
    }

    fn release_stored(&mut self, task: &StoredTask) {
        self.release_function(task.function);
        self.release_options(task.options);
    }

    /// Forgets the oldest stored task, if there is one.
    pub(crate) fn forget_oldest_kept(&mut self) -> bool {
        let oldest = self.result_store.pop();
        if let Some(task) = &oldest {
            self.release_stored(task);
        }
        oldest.is_some()
    }

    pub(crate) fn forget_kept(&mut self, names: Option<Vec<TaskName>>) {
        match names {
            None => while self.forget_oldest_kept() {},
            Some(names) => {
                for task in self.result_store.take(&names.into_iter().collect()) {
                    self.release_stored(&task);
                }
            }
        }
    }

    pub(crate) fn live(&self, (client, seq): TaskName) -> Option<TaskKey> {
        match self.known(client, seq) {
            Known::Live(slot) => self.tasks.key_at(slot),
            _ => None,
        }
    }

    pub(crate) fn stored_record(&self, task: &StoredTask) -> TaskRecord {
        TaskRecord {
            client: task.client,
            seq: task.seq,
            status: Some(task.status as u8),
            engine: task.engine,
            is_running: false,
            submitted_ns: task.submitted_ns,
            started_ns: task.started_ns,
            completed_ns: task.completed_ns,
            label: self.options.at(task.options).options.label.clone(),
            has_result: task.result.is_stored(),
            can_run_again: task.arguments.is_stored(),
        }
    }

    /// Sends a client the results of these tasks, and those of live tasks once they end.
    pub(crate) fn subscribe(
        &mut self,
        client: ClientId,
        first: TaskSeq,
        names: &[TaskName],
        out: &mut Vec<Output>,
    ) {
        let stored = self.result_store.find(names);
        let (mut answers, mut awaited) = (Vec::new(), Vec::new());
        let mut sent_bytes = 0_u64;
        for (name, seq) in names.iter().zip(first.0..) {
            let seq = TaskSeq(seq);
            if let Some(key) = self.live(*name) {
                awaited.push((key, seq));
            } else {
                let task = stored.get(name);
                let weight_bytes = task.map_or(0, |task| task.result.len_bytes());
                sent_bytes = sent_bytes.saturating_add(weight_bytes);
                if sent_bytes > self.config.max_outstanding_bytes {
                    answers.push(refused(seq, &RefusalReason::OverLimit)); // One result, asked for again and again.
                    continue;
                }
                let result = task.and_then(|task| Some((task, self.result_store.result(task)?)));
                answers.push(result.map_or_else(
                    || refused(seq, &RefusalReason::NotStored),
                    |(task, result)| ResultRecord {
                        seq,
                        status: task.status,
                        engine: task.engine,
                        started_ns: task.started_ns,
                        completed_ns: task.completed_ns,
                        cpu_ns: task.cpu_ns,
                        payload: result,
                    },
                ));
            }
        }
        for (key, seq) in awaited {
            let max_tasks = self.config.max_outstanding_tasks;
            let is_known = self.clients.contains_key(&client);
            if !is_known || self.subscribers.n_of(client) >= max_tasks {
                answers.push(refused(seq, &RefusalReason::OverLimit));
                continue;
            }
            self.tasks.at(key).is_awaited = true;
            self.subscribers.add(key.slot() as u32, client, seq);
        }
        out.extend(
            answers
                .into_iter()
                .map(|record| Output::Result { client, record }),
        );
    }

    /// Tells those who subscribed to a task's result how it ended.
    pub(crate) fn tell_subscribers(
        &mut self,
        key: TaskKey,
        outcome: &Outcome,
        out: &mut Vec<Output>,
    ) {
        self.tasks.at(key).is_awaited = false;
        for (client, seq) in self.subscribers.take(key.slot() as u32) {
            let record = ResultRecord {
                seq,
                status: outcome.status,
                engine: outcome.engine,
                started_ns: outcome.started_ns,
                completed_ns: outcome.completed_ns,
                cpu_ns: outcome.cpu_ns,
                payload: outcome.payload.clone(),
            };
            out.push(Output::Result { client, record });
        }
    }

    /// Runs these tasks again, as tasks of this client.
    pub(crate) fn resubmit(
        &mut self,
        now: Nanos,
        client: ClientId,
        first: TaskSeq,
        (names, depth): (&[TaskName], u16),
        out: &mut Vec<Output>,
    ) {
        let stored = self.result_store.find(names);
        let mut copies = Vec::new();
        for (name, seq) in names.iter().zip(first.0..) {
            if self.known(client, TaskSeq(seq)) != Known::Unknown {
                self.totals.ignored += 1;
                continue;
            }
            let live = self.live(*name).and_then(|key| self.tasks.get(key));
            let found = live
                .map(|t| (t.function, t.options, t.pinned, t.payload.clone()))
                .or_else(|| {
                    let task = stored.get(name)?;
                    let arguments = self.result_store.arguments(task)?;
                    Some((task.function, task.options, task.pinned, arguments))
                });
            if let Some((function, options, ..)) = found {
                // A copy that is refused is stored as well, and may displace the task that it was copied from.
                self.functions.retain(function);
                self.options.retain(options);
            }
            copies.push((TaskSeq(seq), found));
        }
        for (seq, found) in copies {
            let Some((function, options, pinned, payload)) = found else {
                let reason = RefusalReason::NotStored;
                self.refuse_unseen(client, seq, 1, reason, out);
                continue;
            };
            let gone = pinned.filter(|engine| !self.is_hopeful_slot(*engine));
            let objection = self.objection(client, 1, &payload, 0);
            let objection = objection.or(gone.map(RefusalReason::NoSuchEngine));
            if let Some(reason) = objection {
                self.refuse_unseen(client, seq, 1, reason, out);
                self.release_function(function);
                self.release_options(options);
                continue;
            }
            let part = Part {
                seq,
                pinned,
                inline_bytes: payload.bytes.len() as u64,
                payload,
            };
            let whole = Submission::bare(client, options, function, depth);
            self.submit_part(now, &whole, part, out);
            self.release_function(function);
            self.release_options(options);
        }
    }
}

fn refused(seq: TaskSeq, reason: &RefusalReason) -> ResultRecord {
    ResultRecord {
        seq,
        status: Status::Refused,
        engine: NOWHERE,
        started_ns: 0,
        completed_ns: 0,
        cpu_ns: 0,
        payload: refusal_payload(reason),
    }
}
