//! A link that outlives its connection: see [`broadleaf_proto::resume`].
//!
//! [`Link::make_resumable`] begins to count, [`Link::suspend`] lets go of a connection that broke, and [`Link::resume`] goes
//! on over another one. Frames may be queued meanwhile.

use std::time::{Duration, Instant};

use broadleaf_proto::control::{self, Hello, Refusal};
use broadleaf_proto::resume::{Received, SessionKey};
use broadleaf_proto::{DecodeError, FrameKind, limits};

use crate::error::LinkError;
use crate::link::inbox::Frame;
use crate::link::socket::Socket;
use crate::link::{Link, Readiness};
use crate::seal::{SealError, fill_with_random};

/// The peer is told how much arrived after this many bytes.
const TELL_BYTES: u64 = 64 * 1024;

/// What a link that can be resumed knows of itself.
#[derive(Debug)]
pub(crate) struct Resumable {
    /// Bytes that had been received and taken when counting began.
    before: u64,
    /// What the peer was last told.
    told: u64,
    /// The connection broke.
    is_suspended: bool,
    /// A connection that breaks suspends the link instead of failing the call that noticed.
    is_patient: bool,
    /// The peer has said that it does not come back.
    is_over: bool,
}

/// A key that nobody can guess.
///
/// # Errors
/// [`SealError::NoRandomness`].
pub fn generate_session_key() -> Result<SessionKey, SealError> {
    let mut key = [0; 16];
    fill_with_random(&mut key)?;
    Ok(SessionKey(key))
}

impl Link {
    /// Makes the link resumable. Both sides do so after the same frames: the welcome is the last one that is not counted.
    /// Such a link carries no descriptors and no blocks.
    pub fn make_resumable(&mut self) {
        self.outbox.keep();
        let taken = self.inbox.received_bytes() - self.inbox.filled_bytes() as u64;
        self.resumable = Some(Box::new(Resumable {
            before: taken,
            told: 0,
            is_suspended: false,
            is_patient: false,
            is_over: false,
        }));
    }

    /// Whether the link outlives its connection: not once the peer has said that it closes it.
    pub fn is_resumable(&self) -> bool {
        self.resumable.as_ref().is_some_and(|r| !r.is_over)
    }

    /// From now on a connection that breaks suspends the link: what is sent waits, and nothing is received.
    pub fn be_patient(&mut self) {
        if let Some(resumable) = &mut self.resumable {
            resumable.is_patient = true;
        }
    }

    /// Has the system find out that the network or the peer's host is gone, and say so as a broken connection: after
    /// `idle_s` seconds without anything, it asks twice in as many seconds; what was sent is confirmed in time or not
    /// at all. It costs this process no wake-up.
    pub fn keep_alive(&self, idle_s: u64) {
        use rustix::net::sockopt;
        let (socket, second) = (self.socket.as_fd(), Duration::from_secs(1));
        if matches!(self.socket, Socket::Unix(_)) {
            return;
        }
        // Without these, a broken connection is noticed later.
        let _ = sockopt::set_socket_keepalive(socket, true);
        let _ = sockopt::set_tcp_keepidle(socket, Duration::from_secs(idle_s));
        let _ = sockopt::set_tcp_keepintvl(socket, second);
        let _ = sockopt::set_tcp_keepcnt(socket, 2);
        let limit_ms = u32::try_from(1000 * (idle_s + 2)).unwrap_or(u32::MAX);
        let _ = sockopt::set_tcp_user_timeout(socket, limit_ms);
    }

    /// Tells the peer that this side closes the link and does not come back.
    pub fn say_goodbye(&mut self) {
        if self.is_resumable() && self.send(FrameKind::Goodbye, &[], &[]).is_ok() {
            // A peer that does not get it learns it when it wants to resume the link.
            let _ = self.flush();
        }
    }

    /// After an error of a call: whether the link is suspended instead.
    pub(crate) fn outlives(&mut self, error: &LinkError) -> bool {
        let is_patient = self.resumable.as_ref().is_some_and(|r| r.is_patient);
        let outlives = is_patient && self.is_resumable() && error.is_closed();
        if outlives {
            self.suspend();
        }
        outlives
    }

    /// Whether the link has no connection at the moment: nothing is sent or received.
    pub fn is_suspended(&self) -> bool {
        self.resumable.as_ref().is_some_and(|r| r.is_suspended)
    }

    /// Lets go of the connection; [`Link::as_fd`] is of no use until [`Link::resume`]. Without effect on a link that cannot
    /// be resumed.
    pub fn suspend(&mut self) {
        if let Some(resumable) = &mut self.resumable {
            resumable.is_suspended = true;
            // The peer may have gone long ago.
            let _ = rustix::net::shutdown(self.socket.as_fd(), rustix::net::Shutdown::Both);
        }
    }

    /// Bytes of this link that have arrived, for the peer to go on.
    pub fn received(&self) -> Received {
        let before = self.resumable.as_ref().map_or(0, |r| r.before);
        Received(self.inbox.received_bytes() - before)
    }

    /// Goes on over another connection, with the first byte that the peer lacks. The frames of the handshake have been taken
    /// from it and sent on it.
    ///
    /// # Errors
    /// [`LinkError::Decode`] if the peer claims to have received what it was not sent, or had confirmed more before. The
    /// link stays as it was.
    pub fn resume(&mut self, fresh: Link, peer: Received) -> Result<(), LinkError> {
        let mut fresh = fresh;
        self.outbox.rewind(peer.0)?;
        let arrived = fresh.inbox.take_all();
        self.socket = fresh.socket;
        self.tls = fresh.tls;
        self.proving = fresh.proving;
        self.proven = fresh.proven;
        self.drained = fresh.drained;
        let told = self.received().0;
        if let Some(resumable) = &mut self.resumable {
            resumable.is_suspended = false;
            resumable.told = told;
        }
        self.inbox.push(&arrived)
    }

    /// Tells the peer how much arrived, if that is worth a frame by now.
    pub(crate) fn acknowledge_received(&mut self) -> Result<(), LinkError> {
        let received = self.received();
        let is_due = |r: &Resumable| received.0 - r.told >= TELL_BYTES;
        if self.resumable.as_deref().is_some_and(is_due) {
            self.outbox
                .send(FrameKind::Received, &received.encode(), Vec::new())?;
            if let Some(resumable) = &mut self.resumable {
                resumable.told = received.0;
            }
        }
        Ok(())
    }

    /// Handles a frame that belongs to the link itself; returns any other one.
    pub(crate) fn take_received(&mut self, frame: Frame) -> Result<Option<Frame>, LinkError> {
        let Some(resumable) = &mut self.resumable else {
            return Ok(Some(frame));
        };
        match frame.kind {
            FrameKind::Received => self.outbox.on_received(Received::decode(&frame.body)?.0)?,
            FrameKind::Goodbye => resumable.is_over = true,
            _ => return Ok(Some(frame)),
        }
        Ok(None)
    }
}

/// The dialling side of a link that broke: says hello on a new connection, and waits for the answer. Returns the connection
/// and how much the listener has received; then the dialler sends its own [`Received`], and calls [`Link::resume`].
///
/// # Errors
/// [`LinkError::Refused`] if the listener does not know the link (any longer), [`LinkError::Io`] with `TimedOut` if it does
/// not answer by the deadline, and those of the connection.
pub fn ask_to_resume(
    mut fresh: Link,
    hello: &Hello,
    deadline: Instant,
) -> Result<(Link, Received), LinkError> {
    fresh.send(FrameKind::Hello, &control::encode(hello), &[])?;
    fresh.set_frame_limit(limits::MAX_FRAME_BYTES);
    loop {
        fresh.flush()?;
        if let Some(frame) = fresh.next_frame()? {
            return match frame.kind {
                FrameKind::Received => Ok((fresh, Received::decode(&frame.body)?)),
                FrameKind::Refused => {
                    let refusal: Refusal = control::decode(&frame.body)?;
                    Err(LinkError::Refused(refusal))
                }
                kind => Err(DecodeError::UnknownKind(kind as u8).into()),
            };
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(LinkError::Io(std::io::ErrorKind::TimedOut.into()));
        }
        let for_write = fresh.wants_write();
        if let Readiness::Ready { readable: true, .. } = fresh.wait(for_write, Some(left))? {
            fresh.fill()?;
        }
    }
}

impl Link {
    /// Answers on a new connection how much has arrived of the link that it is to carry on. It is 16 bytes, so a
    /// connection that does not take them at once is not worth keeping.
    ///
    /// # Errors
    /// Those of [`Link::flush`]; [`LinkError::Io`] with `WouldBlock` if it was not sent.
    pub fn answer_received(&mut self, received: Received) -> Result<(), LinkError> {
        self.send(FrameKind::Received, &received.encode(), &[])?;
        if self.flush()? {
            Ok(())
        } else {
            Err(LinkError::Io(std::io::ErrorKind::WouldBlock.into()))
        }
    }
}
