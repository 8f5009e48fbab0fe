//! Steps of threads that wait for replies: one of them reads the socket, the others follow it.

use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd};
use smallvec::SmallVec;

use super::shared::{Incoming, Shared, Step};
use super::wire::poll;
use crate::payload::lock;

/// Maximum time that the main thread, which runs the handlers of Python's signals, goes without checking them. The kernel
/// may give a signal to another thread, or in the instant before this one sleeps.
const SIGNAL_SLICE: Duration = Duration::from_millis(100);

/// Whether a waiting thread must also look at something that nobody wakes it for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Looks {
    /// It sleeps until something happens to the connection.
    Never,
    /// It looks after a slice: at Python's signals, or at a condition that any code may make true.
    EverySlice,
}

impl Looks {
    /// What the calling thread must look at while it waits for the connection.
    pub fn of_this_thread() -> Self {
        let is_main = rustix::thread::gettid() == rustix::process::getpid();
        if is_main {
            Self::EverySlice
        } else {
            Self::Never
        }
    }

    fn longest(self) -> Option<Duration> {
        (self == Self::EverySlice).then_some(SIGNAL_SLICE)
    }
}

/// Something that a thread waits for beside other descriptors: rung, it stays audible until it is heard.
#[derive(Default)]
pub struct Bell(Mutex<Option<Arc<OwnedFd>>>);

impl Bell {
    /// What the thread polls. `None` if there are no descriptors left.
    fn listen(&self) -> Option<Arc<OwnedFd>> {
        let mut bell = lock(&self.0);
        if bell.is_none() {
            let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
            *bell = eventfd(0, flags).ok().map(Arc::new);
        }
        bell.clone()
    }

    /// Wakes the listener; nobody has listened yet if there is no descriptor.
    fn ring(&self) {
        if let Some(bell) = lock(&self.0).as_ref() {
            // The counter of an eventfd overflows only after 2^64 writes; a full one is audible anyway.
            let _ = rustix::io::write(bell, &1_u64.to_ne_bytes());
        }
    }

    fn hear(bell: &OwnedFd) {
        let mut count = [0; 8];
        let _ = rustix::io::read(bell, &mut count);
    }

    /// Gives its descriptor back.
    pub fn close(&self) {
        lock(&self.0).take();
    }
}

/// A wait of one or more steps. While a step lasts, its thread reads the socket or follows another one that does.
pub struct Waiting<'a> {
    shared: &'a Shared,
    looks: Looks,
}

impl<'a> Waiting<'a> {
    /// The calling thread begins to wait.
    pub fn start(shared: &'a Shared, looks: Looks) -> Self {
        if looks == Looks::EverySlice {
            shared.lookers.fetch_add(1, Ordering::Relaxed);
        }
        Self { shared, looks }
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if self.looks == Looks::EverySlice {
            self.shared.lookers.fetch_sub(1, Ordering::Relaxed);
        }
        self.shared.leave_to_others();
    }
}

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
        looks: Looks,
        is_done: &dyn Fn() -> bool,
        incoming: &mut Incoming,
    ) -> Step {
        if self.is_closed() {
            return Step::Progress;
        }
        let longest = match Self::longest_sleep(deadline, looks) {
            Ok(longest) => longest,
            Err(step) => return step,
        };
        self.foreground.fetch_add(1, Ordering::SeqCst);
        let before = *lock(&self.generation);
        if let Ok(role) = self.reader.try_lock() {
            if !is_done() && self.await_reply(longest, looks) {
                self.read_or_lose(incoming);
            }
            drop(role);
            self.on_role_free(1);
        } else {
            // Without the lock: it may run code of Python's.
            if !is_done() {
                self.follow(before, longest);
            }
            self.foreground.fetch_sub(1, Ordering::SeqCst);
        }
        Step::Progress
    }

    /// Sleeps until the reader has read, or has left its role to others, since `before`.
    fn follow(&self, before: u64, longest: Option<Duration>) {
        let guard = lock(&self.generation);
        if *guard != before {
            return;
        }
        match longest {
            None => drop(self.progress.wait(guard)),
            Some(longest) => drop(self.progress.wait_timeout(guard, longest)),
        }
    }

    /// The reader's role is free again, perhaps after a read: the threads that wait check what they wait for, and one of
    /// them takes it. The caller was `n_own` of those in the foreground.
    ///
    /// A thread enters the foreground before it tries to get the role, and this is called after the role was given up. So
    /// either it is counted here, or it gets the role.
    pub(super) fn on_role_free(&self, n_own: usize) {
        if self.foreground.fetch_sub(n_own, Ordering::SeqCst) > n_own {
            self.tell_followers();
        }
    }

    fn tell_followers(&self) {
        *lock(&self.generation) += 1;
        self.progress.notify_all();
        self.beside_bell.ring();
    }

    /// Something that threads wait for has changed, although nothing was read.
    pub fn on_changed(&self) {
        self.reader_bell.ring();
        self.tell_followers();
    }

    /// A thread of the foreground stops reading, for now or for good. If another must, the background thread is told.
    pub fn leave_to_others(&self) {
        let is_needed =
            self.parked.load(Ordering::Acquire) && self.callbacks.load(Ordering::Acquire) > 0;
        if is_needed || self.asleep.swap(false, Ordering::SeqCst) {
            self.wake_background();
        }
    }

    /// Waits, on a closed connection, until what was unresolved has ended as lost: another thread may be doing that. In a
    /// child of the process that made the connection nobody is.
    pub fn await_lost(&self) {
        while !self.lost.load(Ordering::Acquire) && !self.owner.is_elsewhere() {
            let guard = lock(&self.generation);
            if !self.lost.load(Ordering::Acquire) {
                drop(self.progress.wait(guard));
            }
        }
    }

    /// Maximum time that a thread sleeps at once, if there is one; how its step ends if the deadline has passed.
    fn longest_sleep(deadline: Option<Instant>, looks: Looks) -> Result<Option<Duration>, Step> {
        let left = deadline.map(|at| at.saturating_duration_since(Instant::now()));
        if left.is_some_and(|left| left.is_zero()) {
            return Err(Step::TimedOut);
        }
        Ok([left, looks.longest()].into_iter().flatten().min())
    }

    /// Reads, with the reader's role.
    fn read_or_lose(&self, incoming: &mut Incoming) {
        if let Err(error) = self.read(incoming) {
            self.on_lost(&error, incoming);
        }
    }

    /// Waits until the socket can be read, and returns whether it can. A reply from idle engines arrives in less time than
    /// it takes to wake a sleeping thread, so this thread polls for it first, and lets others run in between.
    fn await_reply(&self, longest: Option<Duration>, looks: Looks) -> bool {
        if self.outstanding.load(Ordering::Acquire) <= self.spin_limit() {
            let due_ns = self.sent_ns.load(Ordering::Acquire) + self.tuning.spin.as_nanos() as u64;
            while (self.epoch.elapsed().as_nanos() as u64) < due_ns {
                let ready = self.wire.poll(PollFlags::IN, Some(Duration::ZERO));
                if !ready.is_empty() {
                    return true;
                }
                std::thread::yield_now();
            }
        }
        if looks == Looks::EverySlice {
            return !self.wire.poll(PollFlags::IN, longest).is_empty();
        }
        let Some(socket) = self.wire.poll_fd() else {
            return true;
        };
        let Some(bell) = self.reader_bell.listen() else {
            let longest = longest.unwrap_or(SIGNAL_SLICE).min(SIGNAL_SLICE);
            return !self.wire.poll(PollFlags::IN, Some(longest)).is_empty();
        };
        let rung = PollFd::new(&bell, PollFlags::IN);
        let (seen, rung) = (self.wire).poll_beside(&socket, PollFlags::IN, Some(rung), longest);
        if !rung.is_empty() {
            Bell::hear(&bell);
        }
        !seen.is_empty()
    }

    /// Number of tasks that can run at the same time: with more of them somebody else needs the processor.
    fn spin_limit(&self) -> u64 {
        self.n_engines.load(Ordering::Relaxed).min(self.n_cores)
    }

    /// As [`Shared::wait_step`] on an engine's main thread, but also ends when `other` is ready.
    pub fn wait_step_beside(
        &self,
        deadline: Option<Instant>,
        is_done: &dyn Fn() -> bool,
        incoming: &mut Incoming,
        other: PollFd<'_>,
    ) -> Step {
        let longest = match Self::longest_sleep(deadline, Looks::EverySlice) {
            Ok(longest) => longest,
            Err(step) => return step,
        };
        let Some(socket) = self.wire.poll_fd() else {
            return Step::Progress;
        };
        // Before the look at what it waits for: what changes after that is heard.
        let bell = self.beside_bell.listen();
        self.foreground.fetch_add(1, Ordering::SeqCst);
        if let Ok(role) = self.reader.try_lock() {
            if !is_done() {
                let (seen, _) = self
                    .wire
                    .poll_beside(&socket, PollFlags::IN, Some(other), longest);
                if !seen.is_empty() {
                    self.read_or_lose(incoming);
                }
            }
            drop(role);
            self.on_role_free(1);
        } else {
            if !is_done() {
                let mut fds = SmallVec::<[PollFd<'_>; 2]>::from_iter([other]);
                fds.extend((bell.as_deref()).map(|bell| PollFd::new(bell, PollFlags::IN)));
                poll(&mut fds, longest);
            }
            if let Some(bell) = bell {
                Bell::hear(&bell);
            }
            self.foreground.fetch_sub(1, Ordering::SeqCst);
        }
        Step::Progress
    }
}
