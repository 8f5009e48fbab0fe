//! The socket of a connection: written and read under one lock, polled without it.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use broadleaf_net::{Link, LinkError};
use pyo3::Python;
use rustix::event::{PollFd, PollFlags};
use smallvec::SmallVec;

use crate::forks::Sockets;
use crate::payload::lock;

/// A link that any thread may use, until it is shut down.
pub struct Wire {
    /// Dropped before the descriptors are closed.
    sockets: Arc<Sockets>,
    link: Mutex<Option<Link>>,
    poll_fd: Mutex<Option<Arc<OwnedFd>>>,
    /// Readable while there is an event that does not come over the socket; `None` until there can be one.
    doorbell: OnceLock<OwnedFd>,
}

impl Wire {
    /// Takes over a link.
    pub fn new(py: Python<'_>, link: Link) -> std::io::Result<Self> {
        let poll_fd = Arc::new(link.as_fd().try_clone_to_owned()?);
        Ok(Self {
            sockets: Sockets::register(py, &[link.as_fd(), poll_fd.as_fd()]),
            link: Mutex::new(Some(link)),
            poll_fd: Mutex::new(Some(poll_fd)),
            doorbell: OnceLock::new(),
        })
    }

    /// Uses the link under its lock.
    pub fn with<R>(
        &self,
        operate: impl FnOnce(&mut Link) -> Result<R, LinkError>,
    ) -> Result<R, LinkError> {
        operate(lock(&self.link).as_mut().ok_or(LinkError::Closed)?)
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
        self.poll_beside(&fd, flags, None, timeout).0
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
        self.sockets.on_closing();
        if let Some(fd) = lock(&self.poll_fd).take() {
            // Wakes threads that still poll the descriptor; a socket that the peer closed no longer needs this.
            let _ = rustix::net::shutdown(&fd, rustix::net::Shutdown::Both);
        }
        drop(lock(&self.link).take());
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
