//! Replies on their way out, and the thread that sends those a long task would hold back.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex};
use std::time::Duration;

use broadleaf_net::{Link, LinkError};
use broadleaf_proto::{FrameKind, control};
use rustix::event::{PollFd, PollFlags};

use crate::client::wall_ns;
use crate::payload::{DataPlane, lock};

/// How long the flusher keeps ticking after the last reply before it sleeps until it is needed.
const FLUSHER_IDLE_TICKS: u32 = 20;
/// Twice this is the minimum time between two of its checks.
const MIN_TICK: Duration = Duration::from_micros(250);
/// Queue size above which code that writes output waits.
const MAX_QUEUED_BYTES: usize = 4 * 1024 * 1024;

/// The half that the flusher thread shares with the main thread.
pub struct Io {
    pub(super) link: Mutex<Link>,
    /// Wall-clock time of the oldest reply not yet written to the socket; 0 for none. It is the wall clock because a
    /// task's end is read from it anyway, and reading a clock takes a twentieth of the time of an empty task.
    pub(super) unflushed_since_ns: AtomicU64,
    pub(super) flusher_asleep: AtomicBool,
    pub(super) flusher: (Mutex<()>, Condvar),
    pub(super) closed: AtomicBool,
    pub(super) data: DataPlane,
    pub(super) flush_after: Duration,
    pub(super) flush_bytes: usize,
}

/// Time from `since_ns` to `now_ns`; infinite if the clock was set back in between, so that nothing waits for it.
fn age_ns(since_ns: u64, now_ns: u64) -> u64 {
    now_ns.checked_sub(since_ns).unwrap_or(u64::MAX)
}

impl Io {
    /// Writes everything queued to the socket; true if it took all of it.
    pub fn flush(&self) -> Result<bool, LinkError> {
        let mut link = lock(&self.link);
        if let Some(release) = self.data.take_releases() {
            link.send(FrameKind::SegmentRelease, &control::encode(&release), &[])?;
        }
        let all = link.flush()?;
        let since = if all { 0 } else { wall_ns() };
        self.unflushed_since_ns.store(since, Ordering::Release);
        Ok(all)
    }

    /// A task ended at `completed_ns` after `task_ns`, and its reply was queued. Replies of tiny tasks are batched. The
    /// reply of a longer task is sent at once, by the flusher if there are `more` tasks here: a system call that wakes
    /// another process takes as long as a tiny task, and the next task can run in the meantime.
    pub fn on_reply(
        &self,
        queued_bytes: usize,
        task_ns: u64,
        completed_ns: u64,
        more: impl FnOnce() -> bool,
    ) -> Result<(), LinkError> {
        let since_ns = self.unflushed_since_ns.load(Ordering::Acquire);
        let reply_age_ns = if since_ns == 0 {
            self.unflushed_since_ns
                .store(completed_ns, Ordering::Release);
            0
        } else {
            age_ns(since_ns, completed_ns)
        };
        let flush_after_ns = self.flush_after.as_nanos() as u64;
        let is_due = if task_ns < flush_after_ns / 4 {
            reply_age_ns >= flush_after_ns
        } else {
            !more() || reply_age_ns >= 2 * self.tick().as_nanos() as u64
        };
        if is_due || queued_bytes >= self.flush_bytes {
            self.flush()?;
        }
        Ok(())
    }

    /// Time between two checks by the flusher.
    fn tick(&self) -> Duration {
        self.flush_after.max(MIN_TICK) * 2
    }

    /// User code is running, or about to run, while something is queued: it may take long, so the flusher must be
    /// awake.
    pub fn before_user_code(&self) {
        if self.unflushed_since_ns.load(Ordering::Acquire) != 0
            && self.flusher_asleep.load(Ordering::Acquire)
        {
            drop(lock(&self.flusher.0));
            self.flusher.1.notify_one();
        }
    }

    /// Segments may be gone whose memory the next task may need, so their end is announced before any task.
    pub fn on_segments_retired(&self) {
        if self.data.has_retired() && self.unflushed_since_ns.load(Ordering::Acquire) == 0 {
            self.unflushed_since_ns.store(wall_ns(), Ordering::Release);
        }
    }

    /// A running task wrote something, which is queued.
    pub fn on_output(&self) -> Result<(), LinkError> {
        if self.unflushed_since_ns.load(Ordering::Acquire) == 0 {
            self.unflushed_since_ns.store(wall_ns(), Ordering::Release);
        }
        self.before_user_code();
        if lock(&self.link).queued_bytes() >= self.flush_bytes {
            self.flush()?;
        }
        Ok(())
    }

    /// Whether `await_room` need not wait.
    pub fn has_room(&self) -> bool {
        lock(&self.link).queued_bytes() < MAX_QUEUED_BYTES
    }

    /// Waits while more than `MAX_QUEUED_BYTES` are queued: code that writes faster than the node reads is slowed down.
    pub fn await_room(&self) -> Result<(), LinkError> {
        loop {
            let socket = {
                let link = lock(&self.link);
                if link.queued_bytes() < MAX_QUEUED_BYTES {
                    return Ok(());
                }
                link.as_fd().try_clone_to_owned()?
            };
            // The flush notices a signal or a closed socket.
            let _ = rustix::event::poll(&mut [PollFd::new(&socket, PollFlags::OUT)], None);
            self.flush()?;
        }
    }

    /// Waits until everything queued has been written to the socket, where it outlives this process.
    pub fn drain(&self) -> Result<(), LinkError> {
        if lock(&self.link).queued_bytes() == 0 {
            return Ok(());
        }
        while !self.flush()? {
            let socket = lock(&self.link).as_fd().try_clone_to_owned()?;
            // The flush notices a signal or a closed socket.
            let _ = rustix::event::poll(&mut [PollFd::new(&socket, PollFlags::OUT)], None);
        }
        Ok(())
    }

    /// Sends replies that a long task would hold back.
    pub fn run_flusher(&self) {
        let tick = self.tick();
        let mut idle_ticks = 0;
        while !self.closed.load(Ordering::Acquire) {
            if idle_ticks >= FLUSHER_IDLE_TICKS {
                let guard = lock(&self.flusher.0);
                self.flusher_asleep.store(true, Ordering::Release);
                if self.unflushed_since_ns.load(Ordering::Acquire) == 0 {
                    // A missed notification costs at most one second, and only for a reply behind a long task.
                    drop(self.flusher.1.wait_timeout(guard, Duration::from_secs(1)));
                }
                self.flusher_asleep.store(false, Ordering::Release);
                idle_ticks = 0;
                if self.data.needs_trim() {
                    // The main thread may run user code for a long time, while free memory ages.
                    let _ = self.flush();
                }
            }
            std::thread::sleep(tick);
            let since = self.unflushed_since_ns.load(Ordering::Acquire);
            if since == 0 {
                idle_ticks += 1;
            } else if age_ns(since, wall_ns()) >= self.flush_after.as_nanos() as u64 {
                idle_ticks = 0;
                // The main thread gets the same error when it next uses the link.
                let _ = self.flush();
            }
        }
    }
}
