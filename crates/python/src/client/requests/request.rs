//! One request of a client. Its parts are changed under its own lock; the number of those that are resolved is read
//! without it. No Python code runs here.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use broadleaf_client::{Part, Parts, Written};
use broadleaf_proto::task::{OutputRecord, ResultRecord};
use broadleaf_proto::{CoalescedRecord, Status};
use pyo3::prelude::*;

use crate::payload::lock;

/// One request of one or more parts.
pub struct Request {
    /// Number of the first part.
    pub base: u64,
    /// Number of parts.
    pub len: usize,
    /// Wall clock at submission, ns since 1970.
    pub submitted_ns: u64,
    /// Whether what its tasks write is shown by this process.
    pub is_shown: bool,
    done: AtomicUsize,
    parts: Mutex<Parts<Py<PyAny>>>,
}

impl Request {
    /// A request none of whose parts is resolved.
    pub fn new(base: u64, submitted_ns: u64, is_shown: bool, parts: Parts<Py<PyAny>>) -> Self {
        Self {
            base,
            len: parts.len(),
            submitted_ns,
            is_shown,
            done: AtomicUsize::new(0),
            parts: Mutex::new(parts),
        }
    }

    /// Which of its parts has this number.
    pub fn index(&self, seq: u64) -> usize {
        (seq - self.base) as usize
    }

    /// Number of resolved parts.
    pub fn n_done(&self) -> usize {
        self.done.load(Ordering::Acquire)
    }

    /// Whether every part is resolved.
    pub fn all_done(&self) -> bool {
        self.n_done() == self.len
    }

    fn change<R>(&self, change: impl FnOnce(&mut Parts<Py<PyAny>>) -> R) -> R {
        let mut parts = lock(&self.parts);
        let changed = change(&mut parts);
        // Writers hold the lock, so this is a plain store, which costs a tenth of an exchange.
        self.done.store(parts.n_done(), Ordering::Release);
        changed
    }

    /// Stores how a part ended; returns the callbacks to run if it was the last one.
    pub fn resolve(&self, record: ResultRecord, received_ns: u64) -> Vec<Py<PyAny>> {
        let index = self.index(record.seq.0);
        self.change(|parts| parts.resolve(index, record, received_ns))
    }

    /// Marks the unresolved parts among these as cancelled; returns the callbacks to run.
    pub fn abandon(&self, indices: Vec<usize>, received_ns: u64) -> Vec<Py<PyAny>> {
        self.change(|parts| parts.abandon(indices, received_ns))
    }

    /// Stores how all parts of a coalescing request ended; returns the callbacks to run.
    pub fn resolve_together(&self, record: CoalescedRecord, received_ns: u64) -> Vec<Py<PyAny>> {
        self.change(|parts| parts.resolve_together(record, received_ns))
    }

    /// Stores `callback` until all parts are resolved; returns it if they already are.
    pub fn on_done(&self, callback: Py<PyAny>) -> Option<Py<PyAny>> {
        lock(&self.parts).on_done(callback)
    }

    /// Stores what a part wrote.
    pub fn on_output(&self, index: usize, record: &OutputRecord) {
        lock(&self.parts).on_output(index, record);
    }

    /// Drops a part's payload: its decoded value has replaced it.
    pub fn forget_payload(&self, index: usize) {
        let payload = lock(&self.parts).take_payload(index);
        // Without the lock: the last reference to a segment may go with it.
        drop(payload);
    }

    /// Number of parts that are resolved but did not return.
    pub fn n_failed(&self) -> usize {
        lock(&self.parts).n_failed()
    }

    /// Applies `read` to what a part has written so far.
    pub fn read_written<R>(&self, index: usize, read: impl FnOnce(&Written) -> R) -> R {
        match lock(&self.parts).written(index) {
            Some(written) => read(written),
            None => read(&Written::default()),
        }
    }

    /// The parts that have written something so far, in order.
    pub fn written_parts(&self) -> Vec<usize> {
        lock(&self.parts).written_parts()
    }

    /// A copy of a part's state; payload bytes are shared, not copied.
    pub fn part(&self, index: usize) -> Option<Part> {
        lock(&self.parts).part(index)
    }

    /// A part's status, if it is resolved.
    pub fn status(&self, index: usize) -> Option<Status> {
        lock(&self.parts).status(index)
    }

    /// For a part that shares one value in the compact encoding with others: the first part after those.
    pub fn plain_until(&self, index: usize) -> Option<u32> {
        lock(&self.parts).plain_until(index)
    }

    /// The part that was resolved as number `rank`.
    pub fn completed_part(&self, rank: usize) -> Option<usize> {
        lock(&self.parts).completed_part(rank)
    }
}
