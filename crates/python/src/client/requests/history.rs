//! `_native.History`: numbers of the tasks that a client or a view submitted last.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Mutex;

use pyo3::prelude::*;

use crate::payload::lock;

#[derive(Default)]
struct Entries {
    /// Oldest first. Consecutive numbers form one range.
    ranges: VecDeque<Range<u64>>,
    n_tasks: u64,
    has_forgotten: bool,
}

/// The numbers of the last tasks submitted, oldest first.
#[pyclass(frozen, module = "broadleaf._native")]
pub struct History {
    entries: Mutex<Entries>,
    limit: u64,
}

#[pymethods]
impl History {
    #[new]
    fn new(limit: u64) -> Self {
        Self {
            entries: Mutex::default(),
            limit,
        }
    }

    /// Records submitted tasks.
    pub fn record(&self, first: u64, n: usize) {
        let mut entries = lock(&self.entries);
        let end = first + n as u64;
        entries.n_tasks += end - first;
        match entries.ranges.back_mut() {
            Some(last) if last.end == first => last.end = end,
            _ => entries.ranges.push_back(first..end),
        }
        while entries.n_tasks > self.limit {
            let over = entries.n_tasks - self.limit;
            let Some(oldest) = entries.ranges.front_mut() else {
                break;
            };
            let dropped = over.min(oldest.end - oldest.start);
            oldest.start += dropped;
            if oldest.is_empty() {
                entries.ranges.pop_front();
            }
            entries.n_tasks -= dropped;
            entries.has_forgotten = true;
        }
    }

    fn __len__(&self) -> usize {
        lock(&self.entries).n_tasks as usize
    }

    fn seqs(&self) -> Vec<u64> {
        lock(&self.entries)
            .ranges
            .iter()
            .flat_map(Clone::clone)
            .collect()
    }

    /// Those of `seqs` that are in the history, and those that may have been in it before it forgot them.
    fn select(&self, seqs: Vec<u64>) -> Vec<u64> {
        let entries = lock(&self.entries);
        let mut sorted: Vec<&Range<u64>> = entries.ranges.iter().collect();
        sorted.sort_unstable_by_key(|r| r.start);
        let oldest = match entries.ranges.front() {
            Some(first) if entries.has_forgotten => first.start,
            _ => 0,
        };
        let is_in = |seq: u64| {
            let next = sorted.partition_point(|r| r.start <= seq);
            next > 0 && sorted[next - 1].contains(&seq)
        };
        seqs.into_iter()
            .filter(|seq| *seq < oldest || is_in(*seq))
            .collect()
    }

    fn clear(&self) {
        *lock(&self.entries) = Entries::default();
    }
}
