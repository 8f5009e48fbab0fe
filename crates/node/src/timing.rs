//! When the node must wake up without a message from anybody.

use std::time::Duration;

use broadleaf_core::Nanos;
use broadleaf_shm::give_back_heap;

use crate::node::Node;

/// Time between two checks of free segments.
const TRIM_PERIOD_NS: Nanos = 1_000_000_000;
/// Time between two checks of connection buffers: a connection that carried nothing in between is
/// idle.
const IDLE_PERIOD_NS: Nanos = 5_000_000_000;

impl Node {
    /// Frees the node's own segments that nobody has used for a while.
    pub(crate) fn trim(&mut self) {
        if self.trim_due_ns.is_some_and(|due| due <= self.now_ns) {
            self.trim_due_ns = None;
            for id in self.objects.trim() {
                self.retire(id);
            }
        }
        // Segments that had to be dropped: their memory is free once everyone who knows them has
        // closed them.
        for id in self.objects.take_retired() {
            self.retire(id);
        }
        if self.trim_due_ns.is_none() && self.objects.needs_trim() {
            self.trim_due_ns = Some(self.now_ns + TRIM_PERIOD_NS);
        }
    }

    /// A connection holds the memory of large frames, so it will be checked again.
    #[inline]
    pub(crate) fn watch_for_idleness(&mut self) {
        if self.idle_due_ns.is_none() {
            self.idle_due_ns = Some(self.now_ns + IDLE_PERIOD_NS);
        }
    }

    /// Has idle connections release the memory of large frames.
    pub(crate) fn shrink_idle(&mut self) {
        if self.idle_due_ns.is_none_or(|due| due > self.now_ns) {
            return;
        }
        self.idle_due_ns = None;
        let links = self.peers.iter_mut().map(|(_, peer)| &mut peer.link);
        let (mut freed_bytes, mut again) = (0, false);
        for link in links {
            freed_bytes += link.shrink_if_idle();
            again |= link.holds_much();
        }
        if freed_bytes > 0 {
            give_back_heap();
        }
        if again {
            self.watch_for_idleness();
        }
    }

    /// How long the node may sleep; `None` until an event arrives.
    pub(crate) fn next_wait(&mut self) -> Option<Duration> {
        self.read_clock();
        let deadlines = [
            self.role.next_deadline(),
            self.interrupts.next_due(),
            self.lane.next_deadline(),
            self.trim_due_ns,
            self.idle_due_ns,
            self.arrivals.next_deadline(),
            self.liveness.next_tick(),
            self.held_clients.next_tick(),
            self.next_redial(),
        ];
        let due = deadlines
            .into_iter()
            .flatten()
            .map(|at| Duration::from_nanos(at.saturating_sub(self.now_ns)));
        due.min()
    }
}
