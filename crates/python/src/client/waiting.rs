//! Steps of threads that wait for replies: one of them reads the socket, the others follow it.

use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use broadleaf_client::{Looks, Reading, Role};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd};
use smallvec::SmallVec;

use super::shared::{Incoming, Shared, Step};
use super::wire::poll;
use crate::payload::lock;

/// What the calling thread must look at while it waits for the connection: the main thread runs the handlers of Python's
/// signals.
pub fn looks_of_this_thread() -> Looks {
    let is_main = rustix::thread::gettid() == rustix::process::getpid();
    if is_main {
        Looks::EverySlice
    } else {
        Looks::Never
    }
}

/// Something that a thread waits for beside other descriptors: rung, it stays audible until it is heard, also by who
/// listens only later.
#[derive(Default)]
pub struct Bell(Mutex<Ring>);

#[derive(Default)]
enum Ring {
    /// Nobody has listened yet, and it was not rung.
    #[default]
    Silent,
    /// Nobody has listened yet.
    Rung,
    Audible(Arc<OwnedFd>),
}

impl Bell {
    /// What the thread polls. `None` if there are no descriptors left.
    fn listen(&self) -> Option<Arc<OwnedFd>> {
        let mut ring = lock(&self.0);
        let count = match &*ring {
            Ring::Audible(bell) => return Some(Arc::clone(bell)),
            Ring::Rung => 1,
            Ring::Silent => 0,
        };
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let bell = Arc::new(eventfd(count, flags).ok()?);
        *ring = Ring::Audible(Arc::clone(&bell));
        Some(bell)
    }

    /// Wakes the listener.
    fn ring(&self) {
        let mut ring = lock(&self.0);
        if let Ring::Audible(bell) = &*ring {
            // The counter of an eventfd overflows only after 2^64 writes; a full one is audible anyway.
            let _ = rustix::io::write(bell, &1_u64.to_ne_bytes());
        } else {
            *ring = Ring::Rung;
        }
    }

    fn hear(bell: &OwnedFd) {
        let mut count = [0; 8];
        let _ = rustix::io::read(bell, &mut count);
    }

    /// Gives its descriptor back.
    pub fn close(&self) {
        *lock(&self.0) = Ring::Silent;
    }
}

/// A wait of one or more steps. While a step lasts, its thread reads the socket or follows another one that does.
pub struct Waiting<'a>(pub &'a Shared);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.leave_to_others();
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
        let role = lock(&self.reading).begin(looks);
        // Without the lock: it may run code of Python's.
        let is_done = is_done();
        match role {
            Role::Reader => {
                if !is_done && self.await_reply(longest, looks) {
                    self.read_or_lose(incoming);
                }
            }
            Role::Follower(news) => {
                if !is_done {
                    self.follow(news, longest);
                }
            }
        }
        self.end_step(role, looks);
        Step::Progress
    }

    fn end_step(&self, role: Role, looks: Looks) {
        let is_followed = lock(&self.reading).end(role, looks);
        if is_followed {
            self.tell_followers();
        }
    }

    /// Sleeps until the reader has read, or has left its role to others, since there were these news.
    fn follow(&self, news: u64, longest: Option<Duration>) {
        let reading = lock(&self.reading);
        if !reading.is_unchanged(news) {
            return;
        }
        match longest {
            None => drop(self.progress.wait(reading)),
            Some(longest) => drop(self.progress.wait_timeout(reading, longest)),
        }
    }

    pub(super) fn tell_followers(&self) {
        self.progress.notify_all();
        self.beside_bell.ring();
    }

    /// Something that threads wait for has changed, although nothing was read.
    pub fn on_changed(&self) {
        self.change_reading(Reading::on_changed);
    }

    pub(super) fn change_reading(&self, change: impl FnOnce(&mut Reading)) {
        change(&mut lock(&self.reading));
        self.reader_bell.ring();
        self.tell_followers();
    }

    /// A thread of the foreground stops reading, for now or for good. If another must, the background thread is told.
    pub fn leave_to_others(&self) {
        // A step that ended before the background thread left the socket is one that it did not see.
        if !self.parked.load(Ordering::Acquire) {
            return;
        }
        let has_callbacks = self.callbacks.load(Ordering::Acquire) > 0;
        let is_needed = lock(&self.reading).stop(has_callbacks);
        if is_needed {
            self.wake_background();
        }
    }

    /// Waits, on a closed connection, until what was unresolved has ended as lost: another thread may be doing that. In a
    /// child of the process that made the connection nobody is.
    pub fn await_lost(&self) {
        if self.owner.is_elsewhere() {
            return;
        }
        let reading = lock(&self.reading);
        drop(
            self.progress
                .wait_while(reading, |reading| !reading.is_lost()),
        );
    }

    /// Maximum time that a thread sleeps at once, if there is one; how its step ends if the deadline has passed.
    fn longest_sleep(deadline: Option<Instant>, looks: Looks) -> Result<Option<Duration>, Step> {
        let left = deadline.map(|at| at.saturating_duration_since(Instant::now()));
        let left_ns = left.map(|left| u64::try_from(left.as_nanos()).unwrap_or(u64::MAX));
        let longest_ns = looks.longest_sleep_ns(left_ns).ok_or(Step::TimedOut)?;
        Ok(longest_ns.map(Duration::from_nanos))
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
        let due_ns = self.tuning.spin.until(
            self.sent_ns.load(Ordering::Acquire),
            self.outstanding.load(Ordering::Acquire),
            self.n_engines.load(Ordering::Relaxed),
        );
        while due_ns > 0 && self.now_ns() < due_ns {
            let ready = self.wire.poll(PollFlags::IN, Some(Duration::ZERO));
            if !ready.is_empty() {
                return true;
            }
            std::thread::yield_now();
        }
        if looks == Looks::EverySlice {
            return !self.wire.poll(PollFlags::IN, longest).is_empty();
        }
        let Some(socket) = self.wire.poll_fd() else {
            return true;
        };
        let Some(bell) = self.reader_bell.listen() else {
            let deaf = Duration::from_nanos(Looks::DEAF_NS);
            let longest = longest.map_or(deaf, |longest| longest.min(deaf));
            return !self.wire.poll(PollFlags::IN, Some(longest)).is_empty();
        };
        let rung = PollFd::new(&bell, PollFlags::IN);
        let (seen, rung) = (self.wire).poll_beside(&socket, PollFlags::IN, Some(rung), longest);
        if !rung.is_empty() {
            Bell::hear(&bell);
        }
        !seen.is_empty()
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
        let role = lock(&self.reading).begin(Looks::EverySlice);
        if role == Role::Reader {
            if !is_done() {
                let (seen, _) = self
                    .wire
                    .poll_beside(&socket, PollFlags::IN, Some(other), longest);
                if !seen.is_empty() {
                    self.read_or_lose(incoming);
                }
            }
        } else {
            if !is_done() {
                let mut fds = SmallVec::<[PollFd<'_>; 2]>::from_iter([other]);
                fds.extend((bell.as_deref()).map(|bell| PollFd::new(bell, PollFlags::IN)));
                poll(&mut fds, longest);
            }
            if let Some(bell) = bell {
                Bell::hear(&bell);
            }
        }
        self.end_step(role, Looks::EverySlice);
        Step::Progress
    }
}
