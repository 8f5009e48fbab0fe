//! What tasks write, on its way to this process's own streams.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use broadleaf_proto::task::{OutputRecord, STDERR, STDOUT};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::payload::lock;

/// Output in the order in which it arrived. Whoever sees that a task has ended sees what it wrote here before.
#[derive(Default)]
pub struct Unshown {
    records: Mutex<VecDeque<OutputRecord>>,
    /// The records, and those that are being written.
    n: AtomicUsize,
}

impl Unshown {
    /// Adds text; leaves messages alone.
    pub fn add(&self, record: &OutputRecord) {
        if [STDOUT, STDERR].contains(&record.stream) {
            self.n.fetch_add(1, Ordering::AcqRel);
            lock(&self.records).push_back(record.clone());
        }
    }

    /// Whether anything is not written yet.
    pub fn has_some(&self) -> bool {
        self.n.load(Ordering::Acquire) > 0
    }

    /// Calls `show(task, stream, data)` for the oldest; returns whether there was one.
    pub fn show_next(&self, show: &Bound<'_, PyAny>) -> PyResult<bool> {
        let Some(record) = lock(&self.records).pop_front() else {
            return Ok(false);
        };
        let data = PyBytes::new(show.py(), &record.bytes);
        let shown = show.call1((record.task, record.stream, data));
        self.n.fetch_sub(1, Ordering::AcqRel);
        shown.map(|_| true)
    }
}
