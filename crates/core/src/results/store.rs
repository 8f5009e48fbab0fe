//! The result store: ended tasks in bounded memory, with how they ended, their results, and what it takes to run them
//! again.
//!
//! It is a queue of records and a ring of their small payloads, oldest first. Storing one and forgetting the oldest
//! cost a few writes each and allocate nothing. A look-up walks along the queue, and is only done on request.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use broadleaf_proto::control::{TaskName, TaskRecord};
use broadleaf_proto::ids::{ClientId, EngineId, TaskSeq};
use broadleaf_proto::task::{Payload, ResultRecord, Status};
use bytes::Bytes;

use crate::Nanos;
use crate::results::Outcome;
use crate::tasks::Task;

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
    client: ClientId,
    seq: TaskSeq,
    function: u32,
    options: u32,
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
    /// Slot in the function cache.
    pub fn function(&self) -> u32 {
        self.function
    }
    /// Slot among the option sets.
    pub fn options(&self) -> u32 {
        self.options
    }
    /// The size of what is stored of its value.
    pub fn result_bytes(&self) -> u64 {
        self.result.len_bytes()
    }
    /// What clients are told of it.
    pub fn record(&self, label: String) -> TaskRecord {
        TaskRecord {
            client: self.client,
            seq: self.seq,
            status: Some(self.status as u8),
            engine: self.engine,
            is_running: false,
            submitted_ns: self.submitted_ns,
            started_ns: self.started_ns,
            completed_ns: self.completed_ns,
            label,
            has_result: self.result.is_stored(),
            can_run_again: self.arguments.is_stored(),
        }
    }
    fn weight_bytes(&self) -> u64 {
        let payloads = self.arguments.len_bytes();
        let payloads = payloads.saturating_add(self.result.len_bytes());
        RECORD_BYTES + payloads.saturating_add(self.options_bytes)
    }
    fn small_bytes(&self) -> usize {
        self.arguments.small_bytes() + self.result.small_bytes()
    }
}

/// What it takes to run a task again.
pub(crate) struct Call {
    /// Slot in the function cache.
    pub function: u32,
    /// Slot among the option sets.
    pub options: u32,
    /// The engine that it must run on.
    pub pinned: Option<EngineId>,
    pub payload: Payload,
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

    /// What would be stored of a task that ended; `None` if nothing can be. `options_bytes` is the memory of its option
    /// set besides its record.
    pub fn prepare(
        &self,
        client: ClientId,
        is_away: bool,
        task: &Task,
        options_bytes: u64,
        outcome: &Outcome,
    ) -> Option<StoredTask> {
        let max_bytes = self.limit_bytes.checked_sub(RECORD_BYTES)?;
        let max_bytes = max_bytes.checked_sub(options_bytes)?;
        let result = match &outcome.copy {
            Some(copy) => {
                let payload = Payload {
                    bytes: Bytes::clone(copy),
                    ..Payload::default()
                };
                StoredPayload::of(&payload, is_away, max_bytes)
            }
            None => StoredPayload::of(&outcome.payload, is_away, max_bytes),
        };
        let max_bytes = max_bytes - result.len_bytes();
        Some(StoredTask {
            client,
            seq: task.seq(),
            function: task.function(),
            options: task.options(),
            options_bytes,
            pinned: task.pinned(),
            engine: outcome.engine,
            status: outcome.status,
            submitted_ns: task.submitted_ns(),
            started_ns: outcome.started_ns,
            completed_ns: outcome.completed_ns,
            cpu_ns: outcome.cpu_ns,
            small_at: 0,
            arguments: StoredPayload::of(task.payload(), false, max_bytes),
            result,
        })
    }

    /// Removes the oldest task if there is no room for this one.
    pub fn make_room(&mut self, task: &StoredTask) -> Option<StoredTask> {
        if self.is_full(task.weight_bytes()) {
            self.pop()
        } else {
            None
        }
    }

    /// Stores a task that was prepared and for which there is room, with these arguments and this result.
    pub fn store(&mut self, task: StoredTask, arguments: &Payload, outcome: &Outcome) {
        let result = outcome.copy.as_deref().unwrap_or(&outcome.payload.bytes);
        self.push(task, &arguments.bytes, result);
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
    pub fn pop(&mut self) -> Option<StoredTask> {
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
    pub fn take(&mut self, names: &BTreeSet<TaskName>) -> Vec<StoredTask> {
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
    pub fn find(&self, names: &[TaskName]) -> BTreeMap<TaskName, &StoredTask> {
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

    /// What it takes to run a stored task again, if its arguments are stored.
    pub fn call(&self, task: &StoredTask) -> Option<Call> {
        let payload = self.payload(task.small_at, &task.arguments)?;
        Some(Call {
            function: task.function,
            options: task.options,
            pinned: task.pinned,
            payload,
        })
    }

    /// How a stored task ended, if its result is stored, under the number by which a client knows it.
    pub fn result(&self, task: &StoredTask, seq: TaskSeq) -> Option<ResultRecord> {
        let at = task.small_at + task.arguments.small_bytes() as u64;
        let payload = self.payload(at, &task.result)?;
        Some(ResultRecord {
            seq,
            status: task.status,
            engine: task.engine,
            started_ns: task.started_ns,
            completed_ns: task.completed_ns,
            cpu_ns: task.cpu_ns,
            payload,
        })
    }
}
