//! Ended tasks, kept in bounded memory: how they ended, their results, and what it takes to run them again.
//!
//! A queue, oldest first: keeping one and forgetting the oldest cost a few writes each. Looking one up costs a walk
//! along the queue, which is only done on request.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use broadleaf_proto::control::{RefusalReason, TaskName, TaskRecord};
use broadleaf_proto::ids::{ClientId, EngineId, TaskKey, TaskSeq};
use broadleaf_proto::task::{Payload, ResultRecord, Status};
use bytes::Bytes;

use crate::dependencies::NOWHERE;
use crate::history::Known;
use crate::settle::End;
use crate::submit::{Part, Submission, refusal_payload};
use crate::tasks::{Place, Task};
use crate::{Controller, Nanos, Output};

/// What one kept task counts for beside its payloads.
const RECORD_BYTES: u64 = 320;
/// Payloads up to this size are copied: they share a large buffer with what is not kept.
const COPIED_BYTES: usize = 64 * 1024;

/// One ended task. It holds a reference on its function and on its option set.
#[derive(Debug)]
pub(crate) struct KeptTask {
    pub client: ClientId,
    pub seq: TaskSeq,
    pub function: u32,
    pub options: u32,
    pub pinned: Option<EngineId>,
    pub status: Status,
    pub engine: EngineId,
    pub submitted_ns: Nanos,
    pub started_ns: u64,
    pub completed_ns: u64,
    /// `None` if they lie in segments, or are too large.
    pub arguments: Option<Payload>,
    /// `None` if it is too large, or lies in segments and its client is there to hold it.
    pub result: Option<Payload>,
}

impl KeptTask {
    pub fn weight_bytes(&self) -> u64 {
        let payloads = self.arguments.iter().chain(&self.result);
        payloads.fold(RECORD_BYTES, |sum, p| sum.saturating_add(p.weight_bytes()))
    }
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Kept {
    tasks: VecDeque<KeptTask>,
    held_bytes: u64,
    limit_bytes: u64,
}

impl Kept {
    pub fn new(limit_bytes: u64) -> Self {
        Self {
            tasks: VecDeque::new(),
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
    pub fn iter(&self) -> impl Iterator<Item = &KeptTask> {
        self.tasks.iter()
    }
    pub fn is_consistent(&self) -> bool {
        let held = self.tasks.iter().map(KeptTask::weight_bytes).sum::<u64>();
        held == self.held_bytes && held <= self.limit_bytes
    }

    /// Keeps a task, without the payloads that alone are over the bound.
    fn push(&mut self, mut task: KeptTask) {
        if task.weight_bytes() > self.limit_bytes {
            task.arguments = None;
        }
        if task.weight_bytes() > self.limit_bytes {
            task.result = None;
        }
        self.held_bytes += task.weight_bytes();
        self.tasks.push_back(task);
    }

    /// Takes the oldest task out if there is too much.
    fn pop_over(&mut self) -> Option<KeptTask> {
        if self.held_bytes <= self.limit_bytes {
            return None;
        }
        self.pop()
    }

    /// Takes the oldest task out.
    pub fn pop(&mut self) -> Option<KeptTask> {
        let task = self.tasks.pop_front()?;
        self.held_bytes -= task.weight_bytes();
        Some(task)
    }

    /// Takes out those of the named tasks that are here.
    fn take(&mut self, names: &BTreeSet<TaskName>) -> Vec<KeptTask> {
        let (taken, left) = core::mem::take(&mut self.tasks)
            .into_iter()
            .partition::<Vec<_>, _>(|task| names.contains(&(task.client, task.seq)));
        self.tasks = left.into();
        self.held_bytes -= taken.iter().map(KeptTask::weight_bytes).sum::<u64>();
        taken
    }

    /// The named tasks that are here.
    fn find(&self, names: &[TaskName]) -> BTreeMap<TaskName, &KeptTask> {
        let names: BTreeSet<_> = names.iter().copied().collect();
        let here = self
            .tasks
            .iter()
            .map(|task| ((task.client, task.seq), task));
        here.filter(|(name, _)| names.contains(name)).collect()
    }
}

/// What is kept of a payload; nothing if it lies in segments, unless `segments` may be held.
fn keepable(payload: &Payload, segments: bool) -> Option<Payload> {
    if !payload.segments.is_empty() {
        return segments.then(|| payload.clone());
    }
    let bytes = match payload.bytes.len() {
        0 => Bytes::new(),
        1..=COPIED_BYTES => Bytes::copy_from_slice(&payload.bytes),
        _ => payload.bytes.clone(),
    };
    Some(Payload {
        bytes,
        ..Payload::default()
    })
}

impl Controller {
    /// Frees a task that ended, and keeps what can be kept of it.
    pub(crate) fn keep(&mut self, key: TaskKey, client: ClientId, end: &End) {
        if self.kept.is_off() {
            self.free(key);
            return;
        }
        self.clear_timer(key);
        let away = self.clients.get(&client).is_some_and(|c| c.away);
        let task = self.tasks.at(key);
        let kept = KeptTask {
            client,
            seq: task.seq,
            function: task.function,
            options: task.options,
            pinned: task.pinned,
            status: end.status,
            engine: end.engine,
            submitted_ns: task.submitted_ns,
            started_ns: end.started_ns,
            completed_ns: end.completed_ns,
            arguments: keepable(&task.payload, false),
            result: keepable(&end.payload, away),
        };
        drop(self.tasks.remove(key));
        self.kept.push(kept);
        while let Some(oldest) = self.kept.pop_over() {
            self.release_kept(&oldest);
        }
    }

    fn release_kept(&mut self, task: &KeptTask) {
        self.release_function(task.function);
        self.options.release(task.options);
    }

    /// Forgets everything kept, so that the functions it names make room.
    pub(crate) fn forget_all_kept(&mut self) {
        while let Some(task) = self.kept.pop() {
            self.release_kept(&task);
        }
    }

    pub(crate) fn forget_kept(&mut self, names: Option<Vec<TaskName>>) {
        match names {
            None => self.forget_all_kept(),
            Some(names) => {
                for task in self.kept.take(&names.into_iter().collect()) {
                    self.release_kept(&task);
                }
            }
        }
    }

    /// What is known of these tasks, or of all.
    pub(crate) fn records(&self, names: Option<Vec<TaskName>>) -> Vec<TaskRecord> {
        let Some(names) = names else {
            let live = self.tasks.iter().filter_map(|(_, t)| self.live_record(t));
            let kept = self.kept.iter().map(|task| self.kept_record(task));
            return live.chain(kept).collect();
        };
        let kept = self.kept.find(&names);
        let in_order: BTreeSet<_> = names.into_iter().collect();
        let record = |name: TaskName| {
            let live = self.live(name).and_then(|key| self.tasks.get(key));
            live.and_then(|task| self.live_record(task))
                .or_else(|| kept.get(&name).map(|task| self.kept_record(task)))
        };
        in_order.into_iter().filter_map(record).collect()
    }

    fn live(&self, (client, seq): TaskName) -> Option<TaskKey> {
        match self.known(client, seq) {
            Known::Live(slot) => self.tasks.key_at(slot),
            _ => None,
        }
    }

    fn live_record(&self, task: &Task) -> Option<TaskRecord> {
        let engine = match task.place {
            Place::Offered(engine, _) | Place::Pinned(engine) | Place::Limbo(engine) => engine,
            _ => NOWHERE,
        };
        Some(TaskRecord {
            client: task.client?,
            seq: task.seq,
            status: None,
            engine,
            submitted_ns: task.submitted_ns,
            started_ns: 0,
            completed_ns: 0,
            label: self.options.at(task.options).options.label.clone(),
            has_result: true,
            can_run_again: true,
        })
    }

    fn kept_record(&self, task: &KeptTask) -> TaskRecord {
        TaskRecord {
            client: task.client,
            seq: task.seq,
            status: Some(task.status as u8),
            engine: task.engine,
            submitted_ns: task.submitted_ns,
            started_ns: task.started_ns,
            completed_ns: task.completed_ns,
            label: self.options.at(task.options).options.label.clone(),
            has_result: task.result.is_some(),
            can_run_again: task.arguments.is_some(),
        }
    }

    /// Sends a client the results of these tasks, those that live when they end.
    pub(crate) fn adopt(
        &mut self,
        client: ClientId,
        first: TaskSeq,
        names: &[TaskName],
        out: &mut Vec<Output>,
    ) {
        let kept = self.kept.find(names);
        let mut answers = Vec::new();
        let mut awaited = Vec::new();
        for (name, seq) in names.iter().zip(first.0..) {
            let seq = TaskSeq(seq);
            if let Some(key) = self.live(*name) {
                awaited.push((key, seq));
            } else {
                let result = kept
                    .get(name)
                    .and_then(|task| task.result.as_ref().map(|r| (task, r)));
                answers.push(result.map_or_else(
                    || not_kept(seq),
                    |(task, result)| ResultRecord {
                        seq,
                        status: task.status,
                        engine: task.engine,
                        started_ns: task.started_ns,
                        completed_ns: task.completed_ns,
                        payload: result.clone(),
                    },
                ));
            }
        }
        for (key, seq) in awaited {
            if self.n_awaited >= self.config.max_outstanding_tasks {
                answers.push(not_kept(seq));
                continue;
            }
            self.tasks.at(key).is_awaited = true;
            let slot = key.slot() as u32;
            self.awaited.entry(slot).or_default().push((client, seq));
            self.n_awaited += 1;
        }
        out.extend(
            answers
                .into_iter()
                .map(|record| Output::Result { client, record }),
        );
    }

    /// Tells those who adopted a task's result how it ended.
    pub(crate) fn tell_adopters(&mut self, key: TaskKey, end: &End, out: &mut Vec<Output>) {
        self.tasks.at(key).is_awaited = false;
        let adopters = self.awaited.swap_remove(&(key.slot() as u32));
        for (client, seq) in adopters.unwrap_or_default() {
            self.n_awaited -= 1;
            let record = ResultRecord {
                seq,
                status: end.status,
                engine: end.engine,
                started_ns: end.started_ns,
                completed_ns: end.completed_ns,
                payload: end.payload.clone(),
            };
            out.push(Output::Result { client, record });
        }
    }

    /// A client that waits for others' results is gone.
    pub(crate) fn drop_adopter(&mut self, client: ClientId) {
        for adopters in self.awaited.values_mut() {
            let before = adopters.len();
            adopters.retain(|(adopter, _)| *adopter != client);
            self.n_awaited -= (before - adopters.len()) as u64;
        }
    }

    /// Runs these tasks again, as tasks of this client.
    pub(crate) fn resubmit(
        &mut self,
        now: Nanos,
        client: ClientId,
        first: TaskSeq,
        names: &[TaskName],
        out: &mut Vec<Output>,
    ) {
        let kept = self.kept.find(names);
        let mut copies = Vec::new();
        for (name, seq) in names.iter().zip(first.0..) {
            let live = self.live(*name).and_then(|key| self.tasks.get(key));
            let found = live
                .map(|t| (t.function, t.options, t.pinned, t.payload.clone()))
                .or_else(|| {
                    let task = kept.get(name)?;
                    let arguments = task.arguments.clone()?;
                    Some((task.function, task.options, task.pinned, arguments))
                });
            if let Some((function, options, ..)) = found {
                // One running over the bound pushes the one it is copied from out.
                self.functions.retain(function);
                self.options.retain(options);
            }
            copies.push((TaskSeq(seq), found));
        }
        for (seq, found) in copies {
            let Some((function, options, pinned, payload)) = found else {
                let reason = RefusalReason::NotKept;
                self.refuse_unseen(client, None, seq, &reason, out);
                continue;
            };
            let weight_bytes = payload.weight_bytes();
            let part = Part {
                seq,
                pinned,
                weight_bytes,
                payload,
            };
            let over_bytes = self.is_over_bytes(client, weight_bytes);
            let whole = Submission::bare((client, over_bytes), options, function, seq);
            self.submit_part(now, &whole, part, out);
            self.release_function(function);
            self.options.release(options);
        }
    }
}

fn not_kept(seq: TaskSeq) -> ResultRecord {
    ResultRecord {
        seq,
        status: Status::Refused,
        engine: NOWHERE,
        started_ns: 0,
        completed_ns: 0,
        payload: refusal_payload(&RefusalReason::NotKept),
    }
}
