//! The background thread of a connection: reads while nobody waits, and writes what a submitter held back.

use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;
use std::time::Duration;

use broadleaf_client::{Background, Linger};
use broadleaf_shm::touch_heap;
use rustix::event::{PollFd, PollFlags};

use super::incoming::far::FarValues;
use super::shared::{Incoming, Shared};
use super::wire::poll;
use crate::payload::{TRIM_PERIOD, lock};

/// Heap of this thread that is touched before the first results arrive.
const RESULT_BYTES: usize = 64 * 1024;

impl Shared {
    fn linger(&self, linger: &Linger) -> Duration {
        Duration::from_nanos(linger.delay_ns(
            self.counters.submitted.load(Ordering::Relaxed),
            self.outstanding.load(Ordering::Relaxed),
            self.n_engines.load(Ordering::Relaxed),
        ))
    }

    /// The background thread's loop until the connection is closed; `wake_background` writes to `wake_fd`, and `tell` passes
    /// events to Python.
    pub fn run_background(&self, wake_fd: &OwnedFd, tell: &dyn Fn(Incoming)) {
        let Some(socket) = self.wire.poll_fd() else {
            return;
        };
        touch_heap(RESULT_BYTES);
        let mut linger = Linger::new(self.tuning.linger_ns);
        while !self.is_closed() {
            let needs_trim =
                self.data.has_segments() || self.far.as_ref().is_some_and(FarValues::needs_trim);
            let chores_ns = needs_trim.then_some(TRIM_PERIOD.as_nanos() as u64);
            let (watching, timeout_ns) = {
                let reading = lock(&self.reading);
                let watching = reading.background() == Background::Watches;
                (watching, reading.background_sleep_ns(chores_ns))
            };
            let timeout = timeout_ns.map(Duration::from_nanos);
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
            // Who asks for that wakes this thread.
            if woken && lock(&self.batch).is_armed() {
                std::thread::sleep(self.linger(&linger));
                lock(&self.batch).disarm();
                linger.on_sending(self.counters.submitted.load(Ordering::Relaxed));
                result = self.flush().map(drop);
            } else if idle {
                // Releases what was dropped in the meantime, and frees unused memory.
                result = self.flush().map(drop);
                if let Some(far) = &self.far {
                    far.trim(&self.data);
                }
            }
            let nobody_waits = {
                let mut reading = lock(&self.reading);
                let watches = reading.background_turn(woken) == Background::Watches;
                self.parked.store(!watches, Ordering::Release);
                watches
            };
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
