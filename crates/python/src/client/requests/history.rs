//! `_native.History`: numbers of the tasks that a client or a view submitted last.

use std::sync::Mutex;

use pyo3::prelude::*;

use crate::payload::lock;

/// The numbers of the last tasks submitted, oldest first.
#[pyclass(frozen, module = "broadleaf._native")]
pub struct History(Mutex<broadleaf_client::History>);

#[pymethods]
impl History {
    #[new]
    fn new(limit: u64) -> Self {
        Self(Mutex::new(broadleaf_client::History::new(limit)))
    }

    /// Records submitted tasks.
    pub fn record(&self, first: u64, n: usize) {
        lock(&self.0).record(first, n);
    }

    fn __len__(&self) -> usize {
        lock(&self.0).len()
    }

    fn seqs(&self) -> Vec<u64> {
        lock(&self.0).seqs()
    }

    /// Those of `seqs` that are in the history, and those that may have been in it before it forgot them.
    fn select(&self, seqs: Vec<u64>) -> Vec<u64> {
        lock(&self.0).select(seqs)
    }

    fn clear(&self) {
        lock(&self.0).clear();
    }
}
