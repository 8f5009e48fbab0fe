//! Steps of threads that wait for replies: one of them reads the socket, the others follow it.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use rustix::event::{PollFd, PollFlags};

use super::shared::{Incoming, Shared, Step};
use super::wire::poll;
use crate::payload::lock;

/// Maximum time that a waiting thread goes without checking Python's signals.
pub(super) const SIGNAL_SLICE: Duration = Duration::from_millis(100);
/// Maximum time that a second waiting thread relies on the reader to wake it.
const FOLLOWER_SLICE: Duration = Duration::from_millis(20);

/// When a timeout is over. `ValueError` for one that is no number of seconds.
pub(super) fn deadline_after(seconds: f64) -> PyResult<Instant> {
    let duration = Duration::try_from_secs_f64(seconds.max(0.0))
        .map_err(|_| PyValueError::new_err("timeout must be a finite number of seconds"))?;
    Instant::now()
        .checked_add(duration)
        .ok_or_else(|| PyValueError::new_err("timeout is too long"))
}

impl Shared {
    /// One step of a waiting thread: reads the socket itself, or follows the thread that does.
    pub fn wait_step(
        &self,
        deadline: Option<Instant>,
        is_done: &dyn Fn() -> bool,
        incoming: &mut Incoming,
    ) -> Step {
        if self.is_closed() {
            return Step::Progress;
        }
        let Some(slice) = Self::slice_until(deadline) else {
            return Step::TimedOut;
        };
        self.foreground.fetch_add(1, Ordering::AcqRel);
        let before = *lock(&self.generation);
        if let Ok(role) = self.reader.try_lock() {
            if !is_done() {
                let readable = self.await_reply(slice);
                if !readable.is_empty() {
                    self.read_or_lose(incoming);
                }
            }
            drop(role);
        } else {
            let guard = lock(&self.generation);
            if *guard == before && !is_done() {
                drop(self.progress.wait_timeout(guard, slice.min(FOLLOWER_SLICE)));
            }
        }
        self.stop_waiting();
        Step::Progress
    }

    /// Waits, on a closed connection, until what was unresolved has ended as lost: another thread may be doing that. In a
    /// child of the process that made the connection nobody is.
    pub fn await_lost(&self) {
        while !self.lost.load(Ordering::Acquire) && !self.owner.is_elsewhere() {
            let guard = lock(&self.generation);
            if !self.lost.load(Ordering::Acquire) {
                drop(self.progress.wait_timeout(guard, FOLLOWER_SLICE));
            }
        }
    }

    /// Maximum time that a thread sleeps at once; `None` if the deadline has passed.
    fn slice_until(deadline: Option<Instant>) -> Option<Duration> {
        let left = deadline.map(|at| at.saturating_duration_since(Instant::now()));
        let slice = left.map_or(SIGNAL_SLICE, |left| left.min(SIGNAL_SLICE));
        (!slice.is_zero()).then_some(slice)
    }

    /// Reads, with the reader's role.
    fn read_or_lose(&self, incoming: &mut Incoming) {
        if let Err(error) = self.read(incoming) {
            self.on_lost(&error, incoming);
        }
    }

    /// A thread has stopped waiting: another takes the reader's role.
    fn stop_waiting(&self) {
        if self.foreground.fetch_sub(1, Ordering::AcqRel) > 1 {
            self.progress.notify_all();
        }
    }

    /// Waits until the socket can be read. A reply from idle engines arrives in less time than it takes to wake a
    /// sleeping thread, so this thread polls for it first, and lets others run in between.
    fn await_reply(&self, longest: Duration) -> PollFlags {
        if self.outstanding.load(Ordering::Acquire) <= self.spin_limit() {
            let due_ns = self.sent_ns.load(Ordering::Acquire) + self.tuning.spin.as_nanos() as u64;
            while (self.epoch.elapsed().as_nanos() as u64) < due_ns {
                let ready = self.wire.poll(PollFlags::IN, Some(Duration::ZERO));
                if !ready.is_empty() {
                    return ready;
                }
                std::thread::yield_now();
            }
        }
        self.wire.poll(PollFlags::IN, Some(longest))
    }

    /// Number of tasks that can run at the same time: with more of them somebody else needs the processor.
    fn spin_limit(&self) -> u64 {
        self.n_engines.load(Ordering::Relaxed).min(self.n_cores)
    }

    /// As [`Shared::wait_step`], but also ends when `other` is ready.
    pub fn wait_step_beside(
        &self,
        deadline: Option<Instant>,
        is_done: &dyn Fn() -> bool,
        incoming: &mut Incoming,
        other: PollFd<'_>,
    ) -> Step {
        let Some(slice) = Self::slice_until(deadline) else {
            return Step::TimedOut;
        };
        let Some(socket) = self.wire.poll_fd() else {
            return Step::Progress;
        };
        self.foreground.fetch_add(1, Ordering::AcqRel);
        if let Ok(role) = self.reader.try_lock() {
            if !is_done() {
                let (seen, _) =
                    self.wire
                        .poll_beside(&socket, PollFlags::IN, Some(other), Some(slice));
                if !seen.is_empty() {
                    self.read_or_lose(incoming);
                }
            }
            drop(role);
        } else {
            poll(&mut [other], Some(slice.min(FOLLOWER_SLICE)));
        }
        self.stop_waiting();
        Step::Progress
    }
}
