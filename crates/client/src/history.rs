//! The numbers of the tasks that a client or a view submitted last.

use std::collections::VecDeque;
use std::ops::Range;

/// The numbers of the last tasks submitted, oldest first.
#[derive(Debug)]
pub struct History {
    /// Oldest first. Consecutive numbers form one range.
    ranges: VecDeque<Range<u64>>,
    n_tasks: u64,
    has_forgotten: bool,
    limit: u64,
}

impl History {
    /// It remembers up to `limit` tasks.
    pub fn new(limit: u64) -> Self {
        Self {
            ranges: VecDeque::new(),
            n_tasks: 0,
            has_forgotten: false,
            limit,
        }
    }

    /// Records submitted tasks.
    #[inline]
    pub fn record(&mut self, first: u64, n: usize) {
        let end = first + n as u64;
        self.n_tasks += end - first;
        match self.ranges.back_mut() {
            Some(last) if last.end == first => last.end = end,
            _ => self.ranges.push_back(first..end),
        }
        while self.n_tasks > self.limit {
            let over = self.n_tasks - self.limit;
            let Some(oldest) = self.ranges.front_mut() else {
                break;
            };
            let dropped = over.min(oldest.end - oldest.start);
            oldest.start += dropped;
            if oldest.is_empty() {
                self.ranges.pop_front();
            }
            self.n_tasks -= dropped;
            self.has_forgotten = true;
        }
    }

    /// Number of tasks that it remembers.
    pub fn len(&self) -> usize {
        self.n_tasks as usize
    }

    /// Whether it remembers none.
    pub fn is_empty(&self) -> bool {
        self.n_tasks == 0
    }

    /// The tasks that it remembers, oldest first.
    pub fn seqs(&self) -> Vec<u64> {
        self.ranges.iter().flat_map(Clone::clone).collect()
    }

    /// Those of `seqs` that are in the history, and those that may have been in it before it forgot them.
    pub fn select(&self, seqs: Vec<u64>) -> Vec<u64> {
        let mut sorted: Vec<&Range<u64>> = self.ranges.iter().collect();
        sorted.sort_unstable_by_key(|r| r.start);
        let oldest = match self.ranges.front() {
            Some(first) if self.has_forgotten => first.start,
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

    /// Forgets all.
    pub fn clear(&mut self) {
        *self = Self::new(self.limit);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_tasks_are_remembered_in_ranges() {
        let mut history = History::new(5);
        history.record(0, 2);
        history.record(2, 1);
        history.record(10, 2);
        assert_eq!(history.seqs(), [0, 1, 2, 10, 11]);
        assert_eq!(history.ranges.len(), 2);
        assert_eq!(history.select(vec![11, 5, 1]), [11, 1]);
        history.record(20, 3);
        assert_eq!(history.seqs(), [10, 11, 20, 21, 22]);
        assert_eq!(history.len(), 5);
        assert_eq!(history.select(vec![1, 15]), [1], "it may have been");
        history.record(30, 100);
        assert_eq!(history.seqs(), [125, 126, 127, 128, 129]);
        history.clear();
        assert!(history.is_empty());
        assert_eq!(history.select(vec![1]), []);
    }
}
