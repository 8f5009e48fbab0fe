//! Replies on their way out, and the thread that sends those a long task would hold back.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

use broadleaf_engine::{Before, Flushing, Turn};
use broadleaf_net::{Link, LinkError};
use broadleaf_proto::{FrameKind, control};
use rustix::event::{PollFd, PollFlags};

use crate::clock::wall_ns;
use crate::payload::{DataPlane, lock};

/// Wakes the flusher thread.
#[derive(Default)]
pub(super) struct Alarm {
    lock: Mutex<()>,
    changed: Condvar,
}

impl Alarm {
    /// The flusher has the lock from its look at what it is needed for until it sleeps.
    fn ring(&self) {
        drop(lock(&self.lock));
        self.changed.notify_one();
    }
}

/// The half that the flusher thread shares with the main thread.
pub struct Io {
    pub(super) link: Mutex<Link>,
    /// Its clock is the wall clock because a task's end is read from it anyway, and reading a clock takes a twentieth of the
    /// time of an empty task.
    pub(super) flushing: Flushing,
    pub(super) alarm: Alarm,
    pub(super) closed: AtomicBool,
    pub(super) data: DataPlane,
}

impl Io {
    /// Writes everything queued to the socket; true if it took all of it.
    pub fn flush(&self) -> Result<bool, LinkError> {
        let mut link = lock(&self.link);
        if let Some(release) = self.data.take_releases() {
            link.send(FrameKind::SegmentRelease, &control::encode(&release), &[])?;
        }
        let all = link.flush()?;
        self.flushing.on_flushed((!all).then(wall_ns));
        Ok(all)
    }

    /// A task ended at `completed_ns` after `task_ns`, and its reply was queued.
    pub fn on_reply(
        &self,
        queued_bytes: usize,
        task_ns: u64,
        completed_ns: u64,
    ) -> Result<(), LinkError> {
        if (self.flushing).on_reply(queued_bytes, task_ns, completed_ns) {
            self.flush()?;
        }
        Ok(())
    }

    /// User code is about to run while something may be queued.
    pub fn before_user_code(&self, is_short: bool) {
        match self.flushing.before_user_code(is_short) {
            Before::Nothing => {}
            Before::Send => {
                // The main thread gets the same error when it next uses the link.
                if self.flush().is_ok_and(|all| !all) && self.flushing.on_rest() {
                    self.alarm.ring();
                }
            }
            Before::WakeFlusher => self.alarm.ring(),
        }
    }

    /// Segments were released, and some may be gone whose memory the next task may need: their end is announced before
    /// any task.
    pub fn on_segments_released(&self) {
        if self.data.has_retired() {
            self.flushing.on_queued(wall_ns);
        }
        if self.data.needs_trim() && self.flushing.on_free_memory() {
            self.alarm.ring();
        }
    }

    /// A running task wrote something, which is queued.
    pub fn on_output(&self) -> Result<(), LinkError> {
        if self.flushing.on_output(wall_ns) {
            self.alarm.ring();
        }
        if (self.flushing).is_full(lock(&self.link).queued_bytes()) {
            self.flush()?;
        }
        Ok(())
    }

    /// Whether `await_room` need not wait.
    pub fn has_room(&self) -> bool {
        Flushing::has_room(lock(&self.link).queued_bytes())
    }

    /// Waits while too much is queued: code that writes faster than the node reads is slowed down.
    pub fn await_room(&self) -> Result<(), LinkError> {
        loop {
            let socket = {
                let link = lock(&self.link);
                if Flushing::has_room(link.queued_bytes()) {
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
        self.closed.store(true, Ordering::Release);
        self.alarm.ring();
    }

    /// Sends what user code would hold back, and releases memory meanwhile. Sleeps while it is not needed.
    pub fn run_flusher(&self) {
        let mut guard = lock(&self.alarm.lock);
        while !self.closed.load(Ordering::Acquire) {
            let turn = self.flushing.turn(wall_ns());
            let (Turn::Trim(pause_ns) | Turn::Check(pause_ns)) = turn else {
                let woken = self.alarm.changed.wait(guard);
                guard = woken.unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            if pause_ns > 0 {
                let pause = Duration::from_nanos(pause_ns);
                let waited = self.alarm.changed.wait_timeout(guard, pause);
                let (woken, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
                guard = woken;
                if !timeout.timed_out() {
                    continue;
                }
            }
            drop(guard);
            if matches!(turn, Turn::Trim(_)) || self.flushing.is_due(wall_ns()) {
                // The main thread gets the same error when it next uses the link.
                let _ = self.flush();
            }
            self.flushing.on_done();
            if self.data.needs_trim() {
                // It is this thread that would be woken.
                let _ = self.flushing.on_free_memory();
            }
            guard = lock(&self.alarm.lock);
        }
    }
}
