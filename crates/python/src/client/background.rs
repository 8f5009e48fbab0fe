//! The background thread of a connection: reads while nobody waits, and writes what a submitter held back.

use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;
use std::time::Duration;

use broadleaf_shm::touch_heap;
use rustix::event::{PollFd, PollFlags};

use super::incoming::far::FarValues;
use super::shared::{Incoming, Shared};
use super::wire::poll;
use crate::payload::TRIM_PERIOD;

/// How often a thread that left the socket to callers checks whether they still read it. Each check wakes
/// this thread, which delays a round trip on the same core.
const LOOK_PERIOD: Duration = Duration::from_millis(100);
/// How often it checks while a caller waits for long that may run a signal's handler, which may wait for a callback.
const HANDLER_LOOK_PERIOD: Duration = Duration::from_secs(1);

/// With this many unfinished tasks per engine or more, further tasks may be batched longer: the engines have work in
/// the meantime, and each batch costs a wake-up in every process.
const BACKLOG_TASKS: u64 = 64;
/// The factor by which the delay is longer.
const BACKLOG_LINGERS: u32 = 10;

/// Heap of this thread that is touched before the first results arrive.
const RESULT_BYTES: usize = 64 * 1024;

impl Shared {
    /// The batching delay, if `n_sent` of all submitted tasks have been sent.
    fn linger(&self, n_sent: u64) -> Duration {
        let n_ended = self
            .counters
            .submitted
            .load(Ordering::Relaxed)
            .saturating_sub(self.outstanding.load(Ordering::Relaxed));
        let n_engines = self.n_engines.load(Ordering::Relaxed);
        if n_sent.saturating_sub(n_ended) >= BACKLOG_TASKS * n_engines.max(1) {
            self.tuning.linger * BACKLOG_LINGERS
        } else {
            self.tuning.linger
        }
    }

    /// The background thread's loop until the connection is closed; `wake_background` writes to `wake_fd`, and `tell` passes
    /// events to Python.
    pub fn run_background(&self, wake_fd: &OwnedFd, tell: &dyn Fn(Incoming)) {
        let Some(socket) = self.wire.poll_fd() else {
            return;
        };
        touch_heap(RESULT_BYTES);
        let mut watching = true;
        let mut n_sent = 0;
        while !self.is_closed() {
            // While callers read, this thread only checks once whether that has ended, and then sleeps until the caller
            // that reads stops. Anyone who needs it sooner, for a callback or a submission, wakes it.
            let timeout = if watching {
                let needs_trim = self.far.as_ref().is_some_and(FarValues::needs_trim);
                (needs_trim || self.data.has_segments()).then_some(TRIM_PERIOD)
            } else if self.asleep.load(Ordering::SeqCst) {
                (self.lookers.load(Ordering::Relaxed) > 0).then_some(HANDLER_LOOK_PERIOD)
            } else {
                Some(LOOK_PERIOD)
            };
            let wake = PollFd::new(wake_fd, PollFlags::IN);
            let (socket_seen, woken) = if watching {
                let seen = self
                    .wire
                    .poll_beside(&socket, PollFlags::IN, Some(wake), timeout);
                (seen.0, !seen.1.is_empty())
            } else {
                let mut fds = [wake];
                poll(&mut fds, timeout);
                (PollFlags::empty(), !fds[0].revents().is_empty())
            };
            let readable = !socket_seen.is_empty();
            let idle = watching && !woken && !readable;
            if woken {
                let mut count = [0; 8];
                let _ = rustix::io::read(wake_fd, &mut count);
            }
            let mut incoming = Incoming::default();
            let mut result = Ok(());
            if self.armed.load(Ordering::Acquire) {
                std::thread::sleep(self.linger(n_sent));
                self.armed.store(false, Ordering::Release);
                n_sent = self.counters.submitted.load(Ordering::Relaxed);
                result = self.flush().map(drop);
            } else if idle {
                // Releases what was dropped in the meantime, and frees unused memory.
                result = self.flush().map(drop);
                if let Some(far) = &self.far {
                    far.trim(&self.data);
                }
            }
            // Said before the look at who waits: whoever stops after that has seen it.
            self.asleep.store(!watching && !woken, Ordering::SeqCst);
            let nobody_waits = self.foreground.load(Ordering::SeqCst) == 0;
            if nobody_waits {
                self.asleep.store(false, Ordering::SeqCst);
            }
            watching = nobody_waits;
            self.parked.store(!watching, Ordering::Release);
            if readable && nobody_waits && result.is_ok() {
                result = self.try_read(&mut incoming).map(drop);
            }
            if let Err(error) = result {
                self.on_lost(&error, &mut incoming);
            }
            if !incoming.is_empty() {
                tell(incoming);
            }
        }
    }
}
