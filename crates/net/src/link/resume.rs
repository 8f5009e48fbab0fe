//! A link that outlives its connection: see [`broadleaf_proto::resume`].
//!
//! [`Link::make_resumable`] begins to count, [`Link::suspend`] lets go of a connection that broke, and [`Link::resume`] goes
//! on over another one. Frames may be queued meanwhile.

use std::time::Instant;

use broadleaf_proto::control::{self, Hello, Refusal};
use broadleaf_proto::resume::{Received, SessionKey};
use broadleaf_proto::{DecodeError, FrameKind, limits};

use crate::error::LinkError;
use crate::link::inbox::Frame;
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
        }));
    }

    /// Whether [`Link::make_resumable`] was called.
    pub fn is_resumable(&self) -> bool {
        self.resumable.is_some()
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
        if self.resumable.is_none() || frame.kind != FrameKind::Received {
            return Ok(Some(frame));
        }
        self.outbox.on_received(Received::decode(&frame.body)?.0)?;
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
