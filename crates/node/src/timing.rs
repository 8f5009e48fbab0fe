//! When the node must wake though nobody has spoken to it.

use std::time::{Duration, Instant};

use broadleaf_core::Nanos;

use crate::node::Node;

/// Time between two looks at free segments.
const TRIM_PERIOD_NS: Nanos = 1_000_000_000;

impl Node {
    /// Frees the node's own segments that nobody has used for a while.
    pub(crate) fn trim(&mut self) {
        if self.trim_due_ns.is_some_and(|due| due <= self.now_ns) {
            self.trim_due_ns = None;
            for id in self.objects.trim() {
                self.retire(id);
            }
        }
        // What had to give way: its memory is free when all who know it have closed it.
        for id in self.objects.take_retired() {
            self.retire(id);
        }
        if self.trim_due_ns.is_none() && self.objects.needs_trim() {
            self.trim_due_ns = Some(self.now_ns + TRIM_PERIOD_NS);
        }
    }

    /// How long the node may sleep; `None` until something comes.
    pub(crate) fn next_wait(&mut self) -> Option<Duration> {
        self.read_clock();
        let deadlines = [
            self.decider.next_deadline(),
            self.interrupts.due_ns(),
            self.trim_due_ns,
            self.arrivals.next_deadline(),
        ];
        let due = deadlines
            .into_iter()
            .flatten()
            .map(|at| Duration::from_nanos(at.saturating_sub(self.now_ns)));
        let beat = self
            .heartbeat_at()
            .map(|at| at.saturating_duration_since(Instant::now()));
        due.chain(beat).min()
    }
}
