//! What a client knows of one request: its parts, and how each ended. No Python code runs here.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use broadleaf_proto::layout::PLAIN;
use broadleaf_proto::task::{OutputRecord, ResultRecord};
use broadleaf_proto::{CoalescedRecord, Payload, Status};
use bytes::Bytes;
use pyo3::prelude::*;
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use crate::payload::lock;

/// How one part stands.
#[derive(Clone, Debug, Default)]
pub struct Part {
    /// How it ended; `None` until it did.
    pub status: Option<Status>,
    /// Where it ran; `u32::MAX` for nowhere.
    pub engine: u32,
    /// Wall clock, ns since 1970; 0 if it never started.
    pub started_ns: u64,
    /// Wall clock, ns since 1970; 0 if it never started.
    pub completed_ns: u64,
    /// Wall clock at its arrival here, ns since 1970.
    pub received_ns: u64,
    /// Value or failure, until it is decoded.
    pub payload: Payload,
}

/// What a part wrote.
#[derive(Clone, Debug, Default)]
pub struct Written {
    /// Standard output.
    pub stdout: Vec<u8>,
    /// Standard error.
    pub stderr: Vec<u8>,
    /// Pickled display and data messages.
    pub messages: VecDeque<Bytes>,
    message_bytes: usize,
}

impl Written {
    /// Keeps a message, the latest in any case, and forgets the oldest that are too much.
    fn keep_message(&mut self, bytes: &[u8]) {
        // Copied: a slice of the frame would keep all of that.
        self.messages.push_back(Bytes::copy_from_slice(bytes));
        self.message_bytes += bytes.len();
        while self.message_bytes > MAX_MESSAGE_BYTES && self.messages.len() > 1 {
            let oldest = self.messages.pop_front().map_or(0, |m| m.len());
            self.message_bytes -= oldest;
        }
    }
}

/// Most bytes of one stream kept for one part; what comes later is dropped from its start.
const MAX_WRITTEN_BYTES: usize = 16 * 1024 * 1024;
/// Most bytes of messages kept for one part; the oldest are forgotten first.
const MAX_MESSAGE_BYTES: usize = 64 * 1024 * 1024;

struct State {
    /// Empty while a coalescing request has no result of a part by itself.
    parts: SmallVec<[Part; 1]>,
    /// Apart from what every request has: there may be hundreds of thousands of them.
    rest: Option<Box<Rest>>,
}

/// What a request of one part without output has no need of.
#[derive(Default)]
struct Rest {
    /// All results of a coalescing request, and when they came.
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

    fn take_callbacks(&mut self) -> Vec<Py<PyAny>> {
        let rest = self.rest.as_mut();
        rest.map_or_else(Vec::new, |rest| std::mem::take(&mut rest.callbacks))
    }

    fn part(&self, index: usize, len: usize) -> Option<Part> {
        let Some((record, received_ns)) = self.together() else {
            let known = self.parts.get(index).cloned();
            return known.or_else(|| (index < len).then(Part::default));
        };
        let (engine, started_ns, completed_ns) = record.place(index)?;
        let outcome = record.outcome(index)?;
        Some(Part {
            status: Some(outcome.status),
            engine: engine.0,
            started_ns,
            completed_ns,
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
    /// How many parts.
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

    /// A request all of whose results come together.
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

    /// Whether its results come together.
    pub fn is_coalescing(&self) -> bool {
        self.coalescing
    }

    /// Parts resolved so far.
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
        let Some(part) = state
            .parts
            .get_mut(index)
            .filter(|part| part.status.is_none())
        else {
            return Vec::new();
        };
        *part = Part {
            status: Some(record.status),
            engine: record.engine.0,
            started_ns: record.started_ns,
            completed_ns: record.completed_ns,
            received_ns,
            payload: record.payload,
        };
        if self.len > 1 {
            state.rest().order.push(index as u32);
        }
        if self.done.fetch_add(1, Ordering::AcqRel) + 1 == self.len {
            return state.take_callbacks();
        }
        Vec::new()
    }

    /// Stores how all parts of a coalescing request ended; returns the callbacks to run.
    pub fn resolve_together(&self, record: CoalescedRecord, received_ns: u64) -> Vec<Py<PyAny>> {
        let mut state = lock(&self.state);
        if record.len() != self.len || !state.parts.is_empty() || state.together().is_some() {
            return Vec::new();
        }
        state.rest().together = Some((record, received_ns));
        self.done.store(self.len, Ordering::Release);
        state.take_callbacks()
    }

    /// Keeps what a part wrote.
    pub fn on_output(&self, index: usize, record: &OutputRecord) {
        let mut state = lock(&self.state);
        let all = state.rest().written.get_or_insert_default();
        let written = all.entry(index).or_default();
        match record.stream {
            1 => keep_tail(&mut written.stdout, &record.bytes),
            2 => keep_tail(&mut written.stderr, &record.bytes),
            _ => written.keep_message(&record.bytes),
        }
    }

    /// What a part wrote so far.
    pub fn written(&self, index: usize) -> Written {
        let state = lock(&self.state);
        let all = state.rest.as_ref().and_then(|rest| rest.written.as_ref());
        all.and_then(|all| all.get(&index))
            .cloned()
            .unwrap_or_default()
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

    /// For a part that ended together with others in one immutable value: the first part after those.
    pub fn plain_until(&self, index: usize) -> Option<u32> {
        let state = lock(&self.state);
        let outcome = state.together()?.0.outcome(index)?;
        let plain = matches!(outcome.payload.bytes.first(), None | Some(&PLAIN));
        (plain && outcome.status == Status::Ok).then_some(outcome.end)
    }

    /// Drops a part's payload: its decoded value has taken its place.
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

    /// Keeps `callback` for the moment all parts are resolved; gives it back if they are already.
    pub fn on_done(&self, callback: Py<PyAny>) -> Option<Py<PyAny>> {
        let mut state = lock(&self.state);
        if self.all_done() {
            return Some(callback);
        }
        state.rest().callbacks.push(callback);
        None
    }
}

fn keep_tail(kept: &mut Vec<u8>, bytes: &[u8]) {
    kept.extend_from_slice(bytes);
    if kept.len() > MAX_WRITTEN_BYTES {
        kept.drain(..kept.len() - MAX_WRITTEN_BYTES / 2);
    }
}
