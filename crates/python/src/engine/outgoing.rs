//! Replies on their way out, and the thread that sends those a long task would hold back.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

use broadleaf_net::{Link, LinkError};
use broadleaf_proto::{FrameKind, control};
use rustix::event::{PollFd, PollFlags};

use crate::clock::wall_ns;
use crate::payload::{DataPlane, TRIM_PERIOD, lock};

/// How long a reply waits behind a task that was expected to be short and is not.
const GUARD_PERIOD: Duration = Duration::from_millis(10);
/// Queue size above which code that writes output waits.
const MAX_QUEUED_BYTES: usize = 4 * 1024 * 1024;

/// What the flusher thread is needed for, in the order of urgency.
#[derive(Default)]
pub(super) struct Flusher {
    need: AtomicU8,
    lock: Mutex<()>,
    changed: Condvar,
}

/// For nothing: it sleeps until somebody needs it.
const ASLEEP: u8 = 0;
/// Free memory ages, and the main thread may run user code for a long time.
const TRIM: u8 = 1;
/// A task that is expected to be short runs, and replies are queued.
const GUARD: u8 = 2;
/// Something is queued that must be sent within the batching delay, while user code runs.
const PROMPT: u8 = 3;

/// The half that the flusher thread shares with the main thread.
pub struct Io {
    pub(super) link: Mutex<Link>,
    /// Wall-clock time of the oldest reply not yet written to the socket; 0 for none. It is the wall clock because a
    /// task's end is read from it anyway, and reading a clock takes a twentieth of the time of an empty task.
    pub(super) unflushed_since_ns: AtomicU64,
    pub(super) flusher: Flusher,
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

    /// A task ended at `completed_ns` after `task_ns`, and its reply was queued. Replies of tiny tasks are batched; that of
    /// a longer task is sent at once.
    pub fn on_reply(
        &self,
        queued_bytes: usize,
        task_ns: u64,
        completed_ns: u64,
    ) -> Result<(), LinkError> {
        let since_ns = self.unflushed_since_ns.load(Ordering::Acquire);
        if since_ns == 0 {
            self.mark_unflushed(completed_ns);
        }
        let is_due = !self.is_short(task_ns)
            || (since_ns != 0 && age_ns(since_ns, completed_ns) >= self.flush_after_ns());
        if is_due || queued_bytes >= self.flush_bytes {
            self.flush()?;
        }
        Ok(())
    }

    /// Whether a task of this length is too short to send its reply by itself.
    pub fn is_short(&self, task_ns: u64) -> bool {
        task_ns < self.flush_after_ns() / 4
    }

    fn flush_after_ns(&self) -> u64 {
        self.flush_after.as_nanos() as u64
    }

    /// The oldest of what is queued is of this time. Ordered before any look at the flusher's need, which it changes
    /// before it looks here: one of the two sees the other.
    fn mark_unflushed(&self, since_ns: u64) {
        self.unflushed_since_ns.store(since_ns, Ordering::SeqCst);
    }

    /// User code is about to run while something may be queued. If the code is not known to be short, that is sent
    /// first; otherwise the flusher sends it if the code is long after all.
    pub fn before_user_code(&self, is_short: bool) {
        if self.unflushed_since_ns.load(Ordering::SeqCst) == 0 {
            return;
        }
        if is_short {
            self.need_flusher(GUARD);
        } else {
            // The main thread gets the same error when it next uses the link.
            let _ = self.flush();
        }
    }

    fn need_flusher(&self, need: u8) {
        if self.flusher.need.load(Ordering::SeqCst) < need {
            let _guard = lock(&self.flusher.lock);
            self.flusher.need.fetch_max(need, Ordering::SeqCst);
            self.flusher.changed.notify_one();
        }
    }

    /// Segments were released, and some may be gone whose memory the next task may need: their end is announced before
    /// any task.
    pub fn on_segments_released(&self) {
        if self.data.has_retired() && self.unflushed_since_ns.load(Ordering::Acquire) == 0 {
            self.mark_unflushed(wall_ns());
        }
        if self.data.needs_trim() {
            self.need_flusher(TRIM);
        }
    }

    /// A running task wrote something, which is queued.
    pub fn on_output(&self) -> Result<(), LinkError> {
        if self.unflushed_since_ns.load(Ordering::Acquire) == 0 {
            self.mark_unflushed(wall_ns());
        }
        self.need_flusher(PROMPT);
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

    /// The main thread sends nothing more: the flusher ends.
    pub fn close(&self) {
        let _guard = lock(&self.flusher.lock);
        self.closed.store(true, Ordering::Release);
        self.flusher.changed.notify_one();
    }

    /// Sends what user code would hold back, and releases memory meanwhile. Sleeps while it is not needed.
    pub fn run_flusher(&self) {
        let mut guard = lock(&self.flusher.lock);
        while !self.closed.load(Ordering::Acquire) {
            let need = self.flusher.need.load(Ordering::SeqCst);
            let pause = match need {
                ASLEEP => {
                    let woken = self.flusher.changed.wait(guard);
                    guard = woken.unwrap_or_else(PoisonError::into_inner);
                    continue;
                }
                TRIM => TRIM_PERIOD,
                GUARD => GUARD_PERIOD,
                _ => self.until_due(),
            };
            if !pause.is_zero() {
                let waited = self.flusher.changed.wait_timeout(guard, pause);
                let (woken, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
                guard = woken;
                if !timeout.timed_out() {
                    // It is needed more urgently, or no more.
                    continue;
                }
            }
            drop(guard);
            if need == TRIM || self.until_due().is_zero() {
                // The main thread gets the same error when it next uses the link.
                let _ = self.flush();
            }
            guard = lock(&self.flusher.lock);
            let rest = if self.data.needs_trim() { TRIM } else { ASLEEP };
            self.flusher.need.store(rest, Ordering::SeqCst);
            if self.unflushed_since_ns.load(Ordering::SeqCst) != 0 {
                self.flusher.need.fetch_max(GUARD, Ordering::SeqCst);
            }
        }
    }

    /// Time until what is queued must be sent; zero if nothing is.
    fn until_due(&self) -> Duration {
        let since_ns = self.unflushed_since_ns.load(Ordering::SeqCst);
        if since_ns == 0 {
            return Duration::ZERO;
        }
        let age_ns = age_ns(since_ns, wall_ns());
        Duration::from_nanos(self.flush_after_ns().saturating_sub(age_ns))
    }
}
