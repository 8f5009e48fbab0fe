//! The socket of a connection: written and read under one lock, polled without it.
//!
//! A link to a controller on another host outlives its connection. What threads poll then is not the socket but a poller
//! that watches it, so that it stays the same when the socket is another one.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use broadleaf_net::{Link, LinkError};
use broadleaf_proto::resume::Received;
use pyo3::Python;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{PollFd, PollFlags};
use smallvec::SmallVec;

use crate::forks::Sockets;
use crate::payload::lock;

/// How long a thread waits at once for a link that may be suspended and be closed meanwhile.
const SUSPENDED_SLICE: Duration = Duration::from_millis(500);

/// A link that any thread may use, until it is shut down.
pub struct Wire {
    /// Dropped before the descriptors are closed.
    sockets: Mutex<Arc<Sockets>>,
    link: Mutex<Option<Link>>,
    poll_fd: Mutex<Option<Arc<OwnedFd>>>,
    /// For a link that outlives its connection: ready while the socket can be written.
    writable: Option<Arc<OwnedFd>>,
    /// Called when the connection breaks.
    on_broken: OnceLock<Box<dyn Fn() + Send + Sync>>,
    /// Readable while there is an event that does not come over the socket; `None` until there can be one.
    doorbell: OnceLock<OwnedFd>,
}

/// A poller that watches one socket at a time.
fn poller(socket: BorrowedFd<'_>, flags: EventFlags) -> std::io::Result<Arc<OwnedFd>> {
    let poller = epoll::create(CreateFlags::CLOEXEC)?;
    epoll::add(&poller, socket, EventData::new_u64(0), flags)?;
    Ok(Arc::new(poller))
}

impl Wire {
    /// Takes over a link.
    pub fn new(py: Python<'_>, link: Link) -> std::io::Result<Self> {
        let is_resumable = link.is_resumable();
        let poll_fd = if is_resumable {
            poller(link.as_fd(), EventFlags::IN)?
        } else {
            Arc::new(link.as_fd().try_clone_to_owned()?)
        };
        let writable = is_resumable.then(|| poller(link.as_fd(), EventFlags::OUT));
        Ok(Self {
            sockets: Mutex::new(Sockets::register(py, &[link.as_fd(), poll_fd.as_fd()])),
            link: Mutex::new(Some(link)),
            poll_fd: Mutex::new(Some(poll_fd)),
            writable: writable.transpose()?,
            on_broken: OnceLock::new(),
            doorbell: OnceLock::new(),
        })
    }

    /// Uses the link under its lock.
    pub fn with<R>(
        &self,
        operate: impl FnOnce(&mut Link) -> Result<R, LinkError>,
    ) -> Result<R, LinkError> {
        let mut link = lock(&self.link);
        let link = link.as_mut().ok_or(LinkError::Closed)?;
        if self.writable.is_none() {
            return operate(link);
        }
        let was_suspended = link.is_suspended();
        let result = operate(link);
        if link.is_suspended() && !was_suspended {
            self.unwatch(link);
            if let Some(on_broken) = self.on_broken.get() {
                on_broken();
            }
        }
        result
    }

    /// What to do when the connection of a link that outlives it breaks; called under the lock.
    pub fn on_broken(&self, what: impl Fn() + Send + Sync + 'static) {
        // This fails only if one has been set before.
        let _ = self.on_broken.set(Box::new(what));
    }

    fn unwatch(&self, link: &Link) {
        let watches = lock(&self.poll_fd)
            .iter()
            .chain(&self.writable)
            .cloned()
            .collect::<SmallVec<[_; 2]>>();
        for poller in watches {
            // This can only fail for a descriptor that is not registered.
            let _ = epoll::delete(&poller, link.as_fd());
        }
    }

    /// Goes on over another connection, of which the controller has said what it had received.
    ///
    /// # Errors
    /// Those of the new connection, and of [`Link::resume`].
    pub fn resume(&self, mut fresh: Link, theirs: Received, idle_s: u64) -> Result<(), LinkError> {
        fresh.keep_alive(idle_s);
        // Before the link's lock: who has the interpreter may wait for that.
        let registered = Python::try_attach(|py| {
            let poll_fd = self.poll_fd();
            let both = std::iter::once(fresh.as_fd()).chain(poll_fd.as_deref().map(AsFd::as_fd));
            Sockets::register(py, &both.collect::<SmallVec<[_; 2]>>())
        });
        let mut link = lock(&self.link);
        let link = link.as_mut().ok_or(LinkError::Closed)?;
        fresh.answer_received(link.received())?;
        if let Some(registered) = registered {
            let former = std::mem::replace(&mut *lock(&self.sockets), registered);
            former.on_closing();
        }
        link.suspend();
        self.unwatch(link);
        link.resume(fresh, theirs)?;
        for (poller, flags) in [
            (self.poll_fd(), EventFlags::IN),
            (self.writable.clone(), EventFlags::OUT),
        ] {
            if let Some(poller) = poller {
                let data = EventData::new_u64(0);
                epoll::add(&poller, link.as_fd(), data, flags).map_err(std::io::Error::from)?;
            }
        }
        Ok(())
    }

    /// The descriptor to poll; it stays valid for its holder when the wire is shut down.
    pub fn poll_fd(&self) -> Option<Arc<OwnedFd>> {
        lock(&self.poll_fd).clone()
    }

    /// Makes pollers watch that descriptor as well.
    pub fn ring_by(&self, doorbell: OwnedFd) {
        // This fails only if one has been set before.
        let _ = self.doorbell.set(doorbell);
    }

    /// Waits until the socket is ready, or something else can be read; a wire that is shut down is always ready.
    pub fn poll(&self, flags: PollFlags, timeout: Option<Duration>) -> PollFlags {
        let Some(fd) = self.poll_fd() else {
            return PollFlags::IN | PollFlags::HUP;
        };
        match &self.writable {
            Some(writable) if flags.contains(PollFlags::OUT) => {
                let timeout = timeout.unwrap_or(SUSPENDED_SLICE).min(SUSPENDED_SLICE);
                let other = PollFd::new(writable, PollFlags::IN);
                let (seen, written) =
                    self.poll_beside(&fd, PollFlags::IN, Some(other), Some(timeout));
                if written.is_empty() {
                    seen
                } else {
                    seen | PollFlags::OUT
                }
            }
            _ => self.poll_beside(&fd, flags, None, timeout).0,
        }
    }

    /// As `poll`, with a descriptor obtained earlier; also ends when `other` is ready, and reports on both.
    pub fn poll_beside(
        &self,
        fd: &OwnedFd,
        flags: PollFlags,
        other: Option<PollFd<'_>>,
        timeout: Option<Duration>,
    ) -> (PollFlags, PollFlags) {
        let mut fds = SmallVec::<[PollFd<'_>; 3]>::new();
        fds.push(PollFd::new(fd, flags));
        let doorbell = self
            .doorbell
            .get()
            .filter(|_| flags.contains(PollFlags::IN));
        fds.extend(doorbell.map(|doorbell| PollFd::new(doorbell, PollFlags::IN)));
        let n = fds.len();
        fds.extend(other);
        poll(&mut fds, timeout);
        let seen = |fds: &[PollFd<'_>]| {
            fds.iter()
                .fold(PollFlags::empty(), |all, fd| all | fd.revents())
        };
        (seen(&fds[..n]), seen(&fds[n..]))
    }

    /// Closes the connection and gives its descriptors back.
    pub fn shut_down(&self) {
        lock(&self.sockets).on_closing();
        let poll_fd = lock(&self.poll_fd).take();
        let link = lock(&self.link).take();
        if let Some(link) = &link {
            // Wakes threads that still poll the descriptor; a socket that the peer closed no longer needs this.
            let _ = rustix::net::shutdown(link.as_fd(), rustix::net::Shutdown::Both);
        }
        drop((link, poll_fd));
    }
}

/// `poll(2)`; an interruption by a signal counts as nothing ready.
pub(super) fn poll(fds: &mut [PollFd<'_>], timeout: Option<Duration>) {
    let timespec = timeout.map(|t| rustix::time::Timespec {
        tv_sec: t.as_secs() as i64,
        tv_nsec: i64::from(t.subsec_nanos()),
    });
    if rustix::event::poll(fds, timespec.as_ref()).is_err() {
        for fd in fds {
            fd.clear_revents();
        }
    }
}
