//! What a client knows about one request: its parts, and how each ended. No Python code runs here.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use broadleaf_proto::layout::PLAIN;
use broadleaf_proto::task::{OutputRecord, ResultRecord};
use broadleaf_proto::{CoalescedRecord, EngineId, Payload, Status, TaskSeq};
use pyo3::prelude::*;
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use crate::client::incoming::written::Written;
use crate::payload::lock;

/// The state of one part.
#[derive(Clone, Debug, Default)]
pub struct Part {
    /// How it ended; `None` before that.
    pub status: Option<Status>,
    /// Where it ran; `u32::MAX` for nowhere.
    pub engine: u32,
    /// Wall clock, ns since 1970; 0 if it never started.
    pub started_ns: u64,
    /// Wall clock, ns since 1970; 0 if it never started.
    pub completed_ns: u64,
    /// Processor time that it took.
    pub cpu_ns: u64,
    /// Wall clock at its arrival here, ns since 1970.
    pub received_ns: u64,
    /// Value or failure, until it is decoded.
    pub payload: Payload,
}

struct State {
    /// Empty as long as a coalescing request has no separate result for a part.
    parts: SmallVec<[Part; 1]>,
    /// Kept separate from the rest, because there may be hundreds of thousands of requests.
    rest: Option<Box<Rest>>,
}

/// What a request of one part without output does not need.
#[derive(Default)]
struct Rest {
    /// All results of a coalescing request, and when they arrived.
    together: Option<(CoalescedRecord, u64)>,
    /// Parts in the order of their arrival; left empty for a single part.
    order: Vec<u32>,
    callbacks: Vec<Py<PyAny>>,
    written: Option<Box<FxHashMap<usize, Written>>>,
}

impl State {
    fn rest(&mut self) -> &mut Rest {
        self.rest.get_or_insert_default()
    }

    fn together(&self) -> Option<&(CoalescedRecord, u64)> {
        self.rest.as_ref()?.together.as_ref()
    }

    /// All parts are resolved: returns the callbacks to run.
    fn finish(&mut self) -> Vec<Py<PyAny>> {
        let rest = self.rest.as_mut();
        rest.map_or_else(Vec::new, |rest| std::mem::take(&mut rest.callbacks))
    }

    fn part(&self, index: usize, len: usize) -> Option<Part> {
        let Some((record, received_ns)) = self.together() else {
            let known = self.parts.get(index).cloned();
            return known.or_else(|| (index < len).then(Part::default));
        };
        let (engine, started_ns, completed_ns, cpu_ns) = record.span(index)?;
        let outcome = record.outcome(index)?;
        Some(Part {
            status: Some(outcome.status),
            engine: engine.0,
            started_ns,
            completed_ns,
            cpu_ns,
            received_ns: *received_ns,
            payload: outcome.payload.clone(),
        })
    }
}

fn blank_parts(len: usize) -> SmallVec<[Part; 1]> {
    if len == 1 {
        SmallVec::from_buf([Part::default()])
    } else {
        smallvec::smallvec![Part::default(); len]
    }
}

/// One request of one or more parts.
pub struct Request {
    /// Number of the first part.
    pub base: u64,
    /// Number of parts.
    pub len: usize,
    /// Wall clock at submission, ns since 1970.
    pub submitted_ns: u64,
    coalescing: bool,
    done: AtomicUsize,
    state: Mutex<State>,
}

impl Request {
    /// A request none of whose parts is resolved.
    pub fn new(base: u64, len: usize, submitted_ns: u64) -> Self {
        Self::with_parts(base, submitted_ns, len, blank_parts(len), false)
    }

    /// A request whose results all arrive together.
    pub fn coalescing(base: u64, len: usize, submitted_ns: u64) -> Self {
        Self::with_parts(base, submitted_ns, len, SmallVec::new(), true)
    }

    fn with_parts(
        base: u64,
        submitted_ns: u64,
        len: usize,
        parts: SmallVec<[Part; 1]>,
        coalescing: bool,
    ) -> Self {
        Self {
            base,
            len,
            submitted_ns,
            coalescing,
            done: AtomicUsize::new(0),
            state: Mutex::new(State { parts, rest: None }),
        }
    }

    /// Whether its results arrive together.
    pub fn is_coalescing(&self) -> bool {
        self.coalescing
    }

    /// Number of resolved parts.
    pub fn n_done(&self) -> usize {
        self.done.load(Ordering::Acquire)
    }

    /// Whether every part is resolved.
    pub fn all_done(&self) -> bool {
        self.n_done() == self.len
    }

    /// Stores how a part ended; returns the callbacks to run if it was the last one.
    pub fn resolve(&self, index: usize, record: ResultRecord, received_ns: u64) -> Vec<Py<PyAny>> {
        let mut state = lock(&self.state);
        if state.parts.is_empty() && state.together().is_none() {
            state.parts = blank_parts(self.len);
        }
        self.resolve_part(&mut state, index, record, received_ns);
        self.callbacks_if_done(&mut state)
    }

    /// An abandoned part stays cancelled; only where and when it ran is new information.
    #[inline]
    fn resolve_part(
        &self,
        state: &mut State,
        index: usize,
        record: ResultRecord,
        received_ns: u64,
    ) {
        let Some(part) = state.parts.get_mut(index) else {
            return;
        };
        let is_new = part.status.is_none();
        if !is_new && part.status != Some(Status::Cancelled) {
            return;
        }
        part.engine = record.engine.0;
        part.started_ns = record.started_ns;
        part.completed_ns = record.completed_ns;
        part.cpu_ns = record.cpu_ns;
        if is_new {
            part.status = Some(record.status);
            part.received_ns = received_ns;
            part.payload = record.payload;
            if self.len > 1 {
                state.rest().order.push(index as u32);
            }
            // Writers hold the lock, so this is a plain store, which costs a tenth of an exchange.
            let n_done = self.done.load(Ordering::Relaxed);
            self.done.store(n_done + 1, Ordering::Release);
        }
    }

    fn callbacks_if_done(&self, state: &mut State) -> Vec<Py<PyAny>> {
        if self.all_done() {
            state.finish()
        } else {
            Vec::new()
        }
    }

    /// Marks the unresolved parts among these as cancelled, whatever happens to their tasks; returns the callbacks to
    /// run.
    pub fn abandon(&self, parts: Vec<usize>, received_ns: u64) -> Vec<Py<PyAny>> {
        let mut state = lock(&self.state);
        if state.together().is_some() {
            return Vec::new();
        }
        if state.parts.is_empty() {
            state.parts = blank_parts(self.len);
        }
        for index in parts {
            let is_open = state.parts.get(index).is_some_and(|p| p.status.is_none());
            if is_open {
                let record = ResultRecord {
                    seq: TaskSeq(self.base + index as u64),
                    status: Status::Cancelled,
                    engine: EngineId(u32::MAX),
                    started_ns: 0,
                    completed_ns: 0,
                    cpu_ns: 0,
                    payload: Payload::default(),
                };
                self.resolve_part(&mut state, index, record, received_ns);
            }
        }
        self.callbacks_if_done(&mut state)
    }

    /// Number of parts that are resolved but did not return.
    pub fn n_failed(&self) -> usize {
        let state = lock(&self.state);
        let failed = |status: Status| usize::from(status != Status::Ok);
        let Some((record, _)) = state.together() else {
            let resolved = state.parts.iter().filter_map(|part| part.status);
            return resolved.map(failed).sum();
        };
        let mut first = 0;
        let counts = record.outcomes.iter().map(|outcome| {
            let n = (outcome.end - first) as usize;
            first = outcome.end;
            n * failed(outcome.status)
        });
        counts.sum()
    }

    /// Stores how all parts of a coalescing request ended; returns the callbacks to run.
    pub fn resolve_together(&self, record: CoalescedRecord, received_ns: u64) -> Vec<Py<PyAny>> {
        let mut state = lock(&self.state);
        if record.len() != self.len || state.together().is_some() {
            return Vec::new();
        }
        if !state.parts.is_empty() {
            // Some parts were abandoned.
            for (index, record) in record.results().enumerate() {
                self.resolve_part(&mut state, index, record, received_ns);
            }
            return self.callbacks_if_done(&mut state);
        }
        state.rest().together = Some((record, received_ns));
        self.done.store(self.len, Ordering::Release);
        state.finish()
    }

    /// Stores what a part wrote.
    pub fn on_output(&self, index: usize, record: &OutputRecord) {
        let mut state = lock(&self.state);
        let all = state.rest().written.get_or_insert_default();
        all.entry(index)
            .or_default()
            .append(record.stream, &record.bytes);
    }

    /// Applies `read` to what a part has written so far.
    pub fn read_written<R>(&self, index: usize, read: impl FnOnce(&Written) -> R) -> R {
        let state = lock(&self.state);
        let all = state.rest.as_ref().and_then(|rest| rest.written.as_ref());
        match all.and_then(|all| all.get(&index)) {
            Some(written) => read(written),
            None => read(&Written::default()),
        }
    }

    /// The parts that have written something so far, in order.
    pub fn written_parts(&self) -> Vec<usize> {
        let state = lock(&self.state);
        let all = state.rest.as_ref().and_then(|rest| rest.written.as_ref());
        let mut parts: Vec<usize> = all.map_or_else(Vec::new, |all| all.keys().copied().collect());
        parts.sort_unstable();
        parts
    }

    /// A copy of a part's state; payload bytes are shared, not copied.
    pub fn part(&self, index: usize) -> Option<Part> {
        lock(&self.state).part(index, self.len)
    }

    /// A part's status, if it is resolved.
    pub fn status(&self, index: usize) -> Option<Status> {
        let state = lock(&self.state);
        match state.together() {
            Some((record, _)) => record.outcome(index).map(|o| o.status),
            None => state.parts.get(index).and_then(|part| part.status),
        }
    }

    /// For a part that shares one value in the compact encoding with others: the first part after those.
    pub fn plain_until(&self, index: usize) -> Option<u32> {
        let state = lock(&self.state);
        let outcome = state.together()?.0.outcome(index)?;
        let plain = matches!(outcome.payload.bytes.first(), None | Some(&PLAIN));
        (plain && outcome.status == Status::Ok).then_some(outcome.end)
    }

    /// Drops a part's payload: its decoded value has replaced it.
    pub fn forget_payload(&self, index: usize) {
        let mut state = lock(&self.state);
        let rest = state.rest.as_mut();
        let payload = match rest.and_then(|rest| rest.together.as_mut()) {
            Some((record, _)) => record.take_own_payload(index),
            None => state
                .parts
                .get_mut(index)
                .map(|part| std::mem::take(&mut part.payload)),
        };
        drop(state);
        drop(payload);
    }

    /// The part that was resolved as number `rank`.
    pub fn completed_part(&self, rank: usize) -> Option<usize> {
        if self.len == 1 {
            return (rank == 0 && self.all_done()).then_some(0);
        }
        let state = lock(&self.state);
        if state.together().is_some() {
            return (rank < self.len).then_some(rank);
        }
        let order = &state.rest.as_ref()?.order;
        order.get(rank).map(|part| *part as usize)
    }

    /// Stores `callback` until all parts are resolved; returns it if they already are.
    pub fn on_done(&self, callback: Py<PyAny>) -> Option<Py<PyAny>> {
        let mut state = lock(&self.state);
        if self.all_done() {
            return Some(callback);
        }
        state.rest().callbacks.push(callback);
        None
    }
}
