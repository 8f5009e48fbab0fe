//! Submission: from a record to tasks in a queue, or to their refusal.

use broadleaf_proto::control::{self, RefusalReason, TaskOptions};
use broadleaf_proto::ids::{ClientId, EngineId, OptionsId, TaskKey, TaskSeq};
use broadleaf_proto::task::{Payload, ResultRecord, Status, SubmitRecord};
use smallvec::SmallVec;

use crate::dependencies::{Kind, NOWHERE, Verdict, Wait};
use crate::engines::State;
use crate::history::Known;
use crate::tasks::{Place, Stopping, Task};
use crate::timers::Timer;
use crate::{Controller, Nanos, Output};

/// No client counts so far; what follows a number never overflows.
const LAST_SEQ: TaskSeq = TaskSeq(1 << 62);

/// A refusal's payload.
pub(crate) fn refusal_payload(reason: &RefusalReason) -> Payload {
    Payload {
        bytes: control::encode(reason).into(),
        segments: SmallVec::new(),
        lease: None,
    }
}

/// What the parts of one record share.
pub(crate) struct Submission {
    client: ClientId,
    /// Slot among the option sets.
    options: u32,
    /// Slot in the function cache.
    function: u32,
    first_seq: TaskSeq,
    gathering: Option<u32>,
    /// Its bytes, all parts together, are more than the client may have unresolved beside what it has.
    over_bytes: bool,
    after: SmallVec<[TaskSeq; 0]>,
    follow: SmallVec<[TaskSeq; 0]>,
}

/// What each part has of its own.
pub(crate) struct Part {
    pub seq: TaskSeq,
    pub pinned: Option<EngineId>,
    pub weight_bytes: u64,
    pub payload: Payload,
}

impl Submission {
    /// One without dependencies, of a client that may be over its bytes with it.
    pub fn bare(
        (client, over_bytes): (ClientId, bool),
        options: u32,
        function: u32,
        first_seq: TaskSeq,
    ) -> Self {
        Self {
            client,
            options,
            function,
            first_seq,
            gathering: None,
            over_bytes,
            after: SmallVec::new(),
            follow: SmallVec::new(),
        }
    }
}

impl Controller {
    pub(crate) fn on_submit(
        &mut self,
        now: Nanos,
        client: ClientId,
        record: SubmitRecord,
        out: &mut Vec<Output>,
    ) {
        let Some(known) = self.clients.get(&client) else {
            self.totals.ignored += 1;
            return;
        };
        if known.history.get(record.seq) != Known::Unknown || record.seq > LAST_SEQ {
            // A number used before (answering it would resolve that task twice), or absurd. Numbers need not come in
            // their order: a client's threads take them before they send.
            self.totals.ignored += 1;
            return;
        }
        let options = match record.options {
            OptionsId(0) => Some(0),
            id => known.options.get(&id).copied(),
        };
        let Some(options) = options else {
            self.refuse_unseen(client, None, record.seq, &RefusalReason::Undefined, out);
            return;
        };
        let function = known.functions.get(&record.function).copied();
        let balanced = self.options.is_balanced(options);
        let targets = if balanced {
            Vec::new()
        } else {
            self.targets_now(options)
        };
        let mut others = (1..targets.len() as u64).map(|part| TaskSeq(record.seq.0 + part));
        if others.any(|seq| self.known(client, seq) != Known::Unknown) {
            self.totals.ignored += 1;
            return;
        }
        let Some(Some(function)) = function else {
            let reason = match function {
                Some(_) => RefusalReason::OverLimit,
                None => RefusalReason::Undefined,
            };
            for part in 0..targets.len().max(1) as u64 {
                let seq = TaskSeq(record.seq.0 + part);
                self.refuse_unseen(client, None, seq, &reason, out);
            }
            return;
        };
        let weight_bytes = record.payload.weight_bytes();
        let mut submission = Submission {
            client,
            options,
            function,
            first_seq: record.seq,
            gathering: None,
            over_bytes: self.is_over_bytes(client, weight_bytes),
            after: record.after,
            follow: record.follow,
        };
        if balanced {
            let part = Part {
                seq: record.seq,
                pinned: None,
                weight_bytes,
                payload: record.payload,
            };
            self.submit_part(now, &submission, part, out);
            return;
        }
        if targets.is_empty() {
            self.refuse_unseen(client, None, record.seq, &RefusalReason::NoEngines, out);
            return;
        }
        if self.options.at(options).options.coalesce {
            let id = self.gatherings.begin(client, record.seq, targets.len());
            submission.gathering = Some(id);
        }
        // The arguments exist once, however many engines share them.
        let n = targets.len() as u64;
        let (share, rest) = (weight_bytes / n, weight_bytes % n);
        for (index, target) in (0..).zip(targets) {
            let part = Part {
                seq: TaskSeq(record.seq.0 + index),
                pinned: Some(EngineId(target)),
                weight_bytes: share + if index == 0 { rest } else { 0 },
                payload: record.payload.clone(),
            };
            self.submit_part(now, &submission, part, out);
        }
    }

    /// Targets of mode `Each`, in target order.
    fn targets_now(&self, options: u32) -> Vec<u32> {
        let targets = self.options.at(options).targets.clone();
        targets.unwrap_or_else(|| {
            let hopeful = self.engines.iter().filter(|e| e.state != State::Gone);
            hopeful.map(|e| e.id.0).collect()
        })
    }

    pub(crate) fn submit_part(
        &mut self,
        now: Nanos,
        whole: &Submission,
        part: Part,
        out: &mut Vec<Output>,
    ) {
        if let Some(reason) = self.objection(whole, &part) {
            self.refuse_unseen(whole.client, whole.gathering, part.seq, &reason, out);
            return;
        }
        let has_dependencies = !whole.after.is_empty() || !whole.follow.is_empty();
        self.totals.submitted += 1;
        self.functions.retain(whole.function);
        self.options.retain(whole.options);
        let key = self.tasks.insert(Task {
            generation: 0,
            place: Place::Detached,
            client: Some(whole.client),
            seq: part.seq,
            gathering: whole.gathering,
            function: whole.function,
            options: whole.options,
            retries_left: self.options.at(whole.options).options.retries,
            stopping: Stopping::No,
            interrupted: false,
            stalled: false,
            is_travelling: false,
            has_dependents: false,
            is_awaited: false,
            follows: false,
            pinned: part.pinned,
            tried: SmallVec::new(),
            followed: SmallVec::new(),
            avoid: None,
            weight_bytes: part.weight_bytes,
            submitted_ns: now,
            timer_at: 0,
            payload: part.payload,
        });
        if let Some(client) = self.clients.get_mut(&whole.client) {
            client.outstanding_tasks += 1;
            client.outstanding_bytes += part.weight_bytes;
            client.history.submit(part.seq, key.slot() as u32);
        }
        if has_dependencies {
            self.await_dependencies(now, whole, key, out);
        } else {
            self.make_ready(key, false, out);
        }
    }

    /// Whether the client may not have this many bytes more unresolved. Alone they are always let in, as the arguments
    /// of one task or of all parts of a broadcast: they could never be sent otherwise.
    pub(crate) fn is_over_bytes(&self, client: ClientId, weight_bytes: u64) -> bool {
        self.clients.get(&client).is_some_and(|client| {
            let bytes = client.outstanding_bytes.saturating_add(weight_bytes);
            client.outstanding_tasks > 0 && bytes > self.config.max_outstanding_bytes
        })
    }

    /// Why a part cannot be accepted.
    fn objection(&self, whole: &Submission, part: &Part) -> Option<RefusalReason> {
        if self.supervisor.stopping {
            return Some(RefusalReason::Stopping);
        }
        let client = self.clients.get(&whole.client)?;
        if client.outstanding_tasks >= self.config.max_outstanding_tasks || whole.over_bytes {
            return Some(RefusalReason::OverLimit);
        }
        let mut dependencies = whole.after.iter().chain(&whole.follow);
        if dependencies.any(|seq| *seq >= whole.first_seq) {
            return Some(RefusalReason::InvalidDependency);
        }
        if let Some(target) = part.pinned {
            let engine = self.engines.get(target.0 as usize);
            let hopeful = engine.is_some_and(|e| e.state != State::Gone);
            return (!hopeful).then_some(RefusalReason::NoSuchEngine(target));
        }
        None
    }

    /// Refuses a part that never became a task.
    pub(crate) fn refuse_unseen(
        &mut self,
        client: ClientId,
        gathering: Option<u32>,
        seq: TaskSeq,
        reason: &RefusalReason,
        out: &mut Vec<Output>,
    ) {
        self.totals.submitted += 1;
        self.totals.resolved[Status::Refused as usize] += 1;
        if let Some(known) = self.clients.get_mut(&client) {
            known.history.refuse(seq);
        }
        let record = ResultRecord {
            seq,
            status: Status::Refused,
            engine: NOWHERE,
            started_ns: 0,
            completed_ns: 0,
            payload: refusal_payload(reason),
        };
        self.deliver(client, gathering, record, out);
    }

    /// Enters a new task into the graph, or lets it go on if nothing is left to wait for.
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
            match self.known(whole.client, seq) {
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
                        self.tasks.at(on).has_dependents = true;
                    }
                }
                self.dependencies.wait(key, wait);
                self.tasks.at(key).place = Place::Waiting;
                if let Some(most_ns) = dependency_timeout_ns {
                    self.set_timer(key, now.saturating_add(most_ns));
                }
            }
        }
    }

    /// A task's dependencies are met: narrows its engines to those it follows.
    pub(crate) fn follow(&mut self, key: TaskKey, wait: Wait, out: &mut Vec<Output>) {
        let engines = wait.into_engines();
        let task = self.tasks.at(key);
        if !engines.is_empty() {
            let elsewhere = task.pinned.is_some_and(|e| !engines.contains(&e.0));
            task.follows = true;
            task.followed = engines;
            if elsewhere {
                self.refuse(key, &RefusalReason::ImpossibleDependency, out);
                return;
            }
        }
        self.make_ready(key, false, out);
    }

    /// Tells the dependents of tasks that ended, and theirs in turn.
    pub(crate) fn settle(&mut self, out: &mut Vec<Output>) {
        while let Some(ended) = self.ended.pop_front() {
            for (key, kind) in self.dependencies.forget_dependents(ended.slot) {
                let Some(wait) = self.dependencies.get_mut(key) else {
                    continue; // It stopped waiting for another reason.
                };
                wait.count(kind, ended.status, ended.engine);
                let verdict = wait.verdict();
                if verdict == Verdict::Pending {
                    continue;
                }
                self.clear_timer(key);
                if let Some(wait) = self.dependencies.forget(key) {
                    self.tasks.at(key).place = Place::Detached;
                    if verdict == Verdict::Met {
                        self.follow(key, wait, out);
                    } else {
                        self.refuse(key, &RefusalReason::ImpossibleDependency, out);
                    }
                }
            }
        }
        while let Some(client) = self.departed.pop() {
            self.remove_client(client);
        }
    }

    /// Sets a task's one timer.
    pub(crate) fn set_timer(&mut self, key: TaskKey, at: Nanos) {
        self.clear_timer(key);
        let at = at.max(1);
        self.tasks.at(key).timer_at = at;
        self.timers.set(at, Timer::Task(key));
    }

    pub(crate) fn clear_timer(&mut self, key: TaskKey) {
        let at = core::mem::take(&mut self.tasks.at(key).timer_at);
        if at != 0 {
            self.timers.cancel(at, Timer::Task(key));
        }
    }
}
