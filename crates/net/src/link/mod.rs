//! A nonblocking, framed connection for one thread at a time.

pub(crate) mod inbox;
pub(crate) mod outbox;
pub(crate) mod prove;
pub(crate) mod resume;
pub(crate) mod socket;

use std::io::{self, IoSlice};
use std::net::TcpStream;
use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use broadleaf_proto::limits::MAX_FRAME_FDS;
use broadleaf_proto::{Block, FrameKind, SealedHead};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use smallvec::SmallVec;

use crate::error::{LinkError, is_lost};
use crate::link::inbox::{Frame, Inbox};
use crate::link::outbox::Outbox;
use crate::link::resume::Resumable;
use crate::link::socket::{Received, Socket};
use crate::local::{PeerCredentials, credentials};
use crate::proof::Proving;
use crate::tls::{ClientTls, PeerKey, ServerTls, Session};

/// What [`Link::wait`] saw.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Readiness {
    /// The socket is readable (or at its end), writable, or both.
    Ready {
        /// [`Link::fill`] will not block.
        readable: bool,
        /// [`Link::flush`] will not block.
        writable: bool,
    },
    /// The time is over.
    TimedOut,
    /// A signal arrived: check what its handler did, then wait again.
    Interrupted,
}

/// A connection: a nonblocking stream with framing, optional TLS and descriptor passing.
///
/// To receive, call [`Link::fill`] once, then [`Link::next_frame`] until it returns none. To send, call
/// [`Link::append`] or [`Link::send`] for any number of frames, then [`Link::flush`].
#[derive(Debug)]
pub struct Link {
    pub(crate) socket: Socket,
    pub(crate) inbox: Inbox,
    pub(crate) outbox: Outbox,
    counters: LinkCounters,
    drained: bool,
    pub(crate) tls: Option<Box<Session>>,
    /// The proof of keys without TLS, until it is done and sent.
    pub(crate) proving: Option<Box<Proving>>,
    pub(crate) proven: Option<PeerKey>,
    pub(crate) resumable: Option<Box<Resumable>>,
    /// Bytes sent and received at the last check; see [`Link::shrink_if_idle`].
    pub(crate) looked_bytes: u64,
}

impl Link {
    fn new(socket: Socket, tls: Option<Session>) -> Self {
        Self {
            socket,
            inbox: Inbox::new(),
            outbox: Outbox::default(),
            counters: LinkCounters::default(),
            drained: false,
            tls: tls.map(Box::new),
            proving: None,
            proven: None,
            resumable: None,
            looked_bytes: 0,
        }
    }

    /// A link over a unix socket; makes it nonblocking and asks for large buffers.
    ///
    /// # Errors
    /// When a socket option cannot be set.
    pub fn unix(stream: UnixStream) -> io::Result<Self> {
        Ok(Self::new(Socket::unix(stream)?, None))
    }

    /// A link over plaintext TCP; makes it nonblocking and turns Nagle's algorithm off.
    ///
    /// # Errors
    /// When a socket option cannot be set.
    pub fn tcp(stream: TcpStream) -> io::Result<Self> {
        Ok(Self::new(Socket::tcp(stream)?, None))
    }

    /// The dialing end of TLS over TCP. The handshake runs inside [`Link::flush`] and [`Link::fill`]; frames may be
    /// queued at once and are sent when it is done.
    ///
    /// # Errors
    /// When a socket option cannot be set or TLS cannot start.
    pub fn tls_client(stream: TcpStream, tls: &ClientTls) -> io::Result<Self> {
        Ok(Self::new(Socket::tcp(stream)?, Some(Session::client(tls)?)))
    }

    /// The listening end of TLS over TCP; see [`Link::tls_client`].
    ///
    /// # Errors
    /// When a socket option cannot be set or TLS cannot start.
    pub fn tls_server(stream: TcpStream, tls: &ServerTls) -> io::Result<Self> {
        Ok(Self::new(Socket::tcp(stream)?, Some(Session::server(tls)?)))
    }

    /// Two connected links in one process.
    ///
    /// # Errors
    /// When the process is out of descriptors.
    pub fn pair() -> io::Result<(Self, Self)> {
        let (a, b) = UnixStream::pair()?;
        Ok((Self::unix(a)?, Self::unix(b)?))
    }

    /// Receives once, up to about 64 KiB; returns how many bytes of frames arrived, 0 if it would block.
    ///
    /// Take the frames before the next call: bytes that are not taken stay in memory.
    ///
    /// # Errors
    /// [`LinkError::Closed`] at the end of the connection, [`LinkError::ClosedInFrame`] if it cuts off a
    /// frame, and the errors for bytes that are not a frame.
    pub fn fill(&mut self) -> Result<usize, LinkError> {
        if self.resumable.is_some() {
            return self.fill_resumable();
        }
        self.fill_any()
    }

    fn fill_resumable(&mut self) -> Result<usize, LinkError> {
        if self.is_suspended() {
            self.drained = true;
            return Ok(0);
        }
        match self.fill_any() {
            Ok(count) => {
                self.acknowledge_received()?;
                Ok(count)
            }
            Err(error) if self.outlives(&error) => {
                self.drained = true;
                Ok(0)
            }
            Err(error) => Err(error),
        }
    }

    fn fill_any(&mut self) -> Result<usize, LinkError> {
        if self.tls.is_some() {
            return self.fill_tls();
        }
        let mut fds = SmallVec::new();
        let room = self.inbox.room()?;
        let room_bytes = room.len();
        let received = self.socket.receive(room, &mut fds);
        let has_fds = !fds.is_empty();
        if has_fds && !matches!(received, Ok(Received::TooManyFds)) {
            self.inbox.received_fds(fds)?;
        }
        let count = self.count_received(received)?;
        self.inbox.received(count);
        // The kernel ends a receive call after descriptors, even if more data is waiting.
        self.drained = count < room_bytes && !has_fds;
        if self.begins_tls() {
            self.take_up_tls()?;
            return if self.drained { Ok(0) } else { self.fill_tls() };
        }
        if self.proving.is_some() {
            self.prove()?;
        }
        Ok(count)
    }

    /// As `fill`. Handshake records are not frames, so it continues until it finds frames or the end of the received
    /// data, and sends the handshake's replies.
    fn fill_tls(&mut self) -> Result<usize, LinkError> {
        loop {
            let Some(tls) = &mut self.tls else {
                return Ok(0);
            };
            let (before, was_established) = (self.inbox.filled_bytes(), tls.is_established());
            let room = tls.room();
            let room_bytes = room.len();
            let received = self.socket.receive(room, &mut SmallVec::new());
            let count = self.count_received(received)?;
            self.drained = count < room_bytes;
            let Some(tls) = &mut self.tls else {
                return Ok(0);
            };
            let result = tls.received(count, &mut self.inbox);
            if !was_established || result.is_err() {
                // Answers of the handshake, data that waited for its end, or the alert that explains a failure. After a
                // failure this is a courtesy, so the first error is the one to report.
                let flushed = self.flush();
                result?;
                flushed?;
            }
            let frame_bytes = self.inbox.filled_bytes() - before;
            let has_block = self.tls.as_ref().is_some_and(|tls| tls.block().is_some());
            if frame_bytes > 0 || has_block || self.drained {
                let closed = self.tls.as_ref().is_some_and(|tls| tls.peer_closed());
                return if closed && frame_bytes == 0 {
                    Err(self.end())
                } else {
                    Ok(frame_bytes)
                };
            }
        }
    }

    pub(crate) fn count_received(
        &mut self,
        received: io::Result<Received>,
    ) -> Result<usize, LinkError> {
        self.counters.reads += 1;
        match received {
            Ok(Received::WouldBlock) => Ok(0),
            Ok(Received::End) => Err(self.end()),
            Ok(Received::TooManyFds) => Err(self.inbox.too_many_fds(MAX_FRAME_FDS as usize + 1)),
            Ok(Received::Bytes(count)) => {
                self.counters.bytes_in += count as u64;
                Ok(count)
            }
            Err(error) => Err(self.failure(error)),
        }
    }

    fn failure(&self, error: io::Error) -> LinkError {
        if !is_lost(&error) {
            return LinkError::Io(error);
        }
        match self.end() {
            LinkError::Closed | LinkError::ClosedInFrame => LinkError::Lost(error),
            in_handshake => in_handshake,
        }
    }

    fn end(&self) -> LinkError {
        if self.inbox.ends_in_frame() {
            LinkError::ClosedInFrame
        } else if self.proving.is_some() || self.tls.is_some() && self.inbox.frames() == 0 {
            LinkError::ClosedInHandshake
        } else {
            LinkError::Closed
        }
    }

    /// Whether the last [`Link::fill`] saw the end of the received data: with edge-triggered polling, fill again until
    /// this is true.
    pub fn is_drained(&self) -> bool {
        self.drained
    }

    /// Takes the next whole frame, or `None` until [`Link::fill`] brings more.
    ///
    /// # Errors
    /// If the bytes are not a frame, or the frame exceeds a limit.
    pub fn next_frame(&mut self) -> Result<Option<Frame>, LinkError> {
        while let Some(frame) = self.inbox.next_frame()? {
            if let Some(frame) = self.take_received(frame)? {
                return Ok(Some(frame));
            }
        }
        Ok(None)
    }

    /// Appends a record to the open outgoing frame of that kind, or opens one. A frame closes when
    /// another kind is appended, when it reaches 256 KiB, and at [`Link::flush`].
    ///
    /// A record above `MAX_FRAME_BYTES` is dropped, and the next flush reports it.
    #[inline]
    pub fn append<R>(&mut self, kind: FrameKind, write: impl FnOnce(&mut Vec<u8>) -> R) -> R {
        self.outbox.append(kind, write)
    }

    /// Queues a frame of its own. Descriptors are duplicated, and travel with its first byte.
    ///
    /// # Errors
    /// [`LinkError::RecordTooLarge`], [`LinkError::TooManyFds`], [`LinkError::FdsNeedUnixSocket`], or
    /// [`LinkError::Io`] if the process is out of descriptors. The link stays usable.
    pub fn send(
        &mut self,
        kind: FrameKind,
        body: &[u8],
        fds: &[BorrowedFd<'_>],
    ) -> Result<(), LinkError> {
        let limit = usize::from(MAX_FRAME_FDS);
        if fds.len() > limit {
            return Err(LinkError::TooManyFds {
                count: fds.len(),
                limit,
            });
        }
        if !fds.is_empty() && !self.is_local() {
            return Err(LinkError::FdsNeedUnixSocket);
        }
        let owned = fds
            .iter()
            .map(BorrowedFd::try_clone_to_owned)
            .collect::<io::Result<_>>()?;
        self.outbox.send(kind, body, owned)
    }

    /// Queues a frame of its own whose body is `head` and then `rest`, which thus need not be joined first.
    ///
    /// # Errors
    /// [`LinkError::RecordTooLarge`]; the link stays usable.
    pub fn send_parts(
        &mut self,
        kind: FrameKind,
        head: &[u8],
        rest: &[u8],
    ) -> Result<(), LinkError> {
        self.outbox.send_parts(kind, head, rest)
    }

    /// Closes the open frame; returns the number of frames queued so far. What is queued from here on comes after them.
    pub fn mark(&mut self) -> u64 {
        self.outbox.mark()
    }

    /// The number of frames taken so far: once it is what the peer's [`Link::mark`] was, all that it had queued by then
    /// has been taken.
    pub fn frames_taken(&self) -> u64 {
        self.inbox.frames()
    }

    /// Sends what is queued, with one call if the socket takes everything; true if nothing is left.
    ///
    /// # Errors
    /// [`LinkError::Closed`] when the peer is gone; [`LinkError::RecordTooLarge`].
    pub fn flush(&mut self) -> Result<bool, LinkError> {
        self.outbox.seal()?;
        if self.is_suspended() {
            return Ok(self.outbox.queued_bytes() == 0);
        }
        if self.outbox.keeps_too_much() {
            return Err(LinkError::Unacknowledged);
        }
        match self.flush_any() {
            Err(error) if self.outlives(&error) => Ok(self.outbox.queued_bytes() == 0),
            result => result,
        }
    }

    fn flush_any(&mut self) -> Result<bool, LinkError> {
        if self.tls.is_some() {
            return self.flush_tls();
        }
        if self.proving.is_some() && !self.flush_proof()? {
            return Ok(self.queued_bytes() == 0);
        }
        while self.outbox.queued_bytes() > 0 {
            let (bytes, fds) = self.outbox.next_piece();
            let piece_bytes = bytes.len();
            let sent = self.socket.send(bytes, fds);
            let count = self.count_sent(sent)?;
            self.outbox.advance(count);
            if count < piece_bytes {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn flush_tls(&mut self) -> Result<bool, LinkError> {
        while let Some(tls) = &mut self.tls {
            if tls.outgoing().is_empty() && self.outbox.queued_bytes() > 0 {
                let (bytes, _) = self.outbox.next_piece();
                let count = tls.encrypt(bytes, &mut self.inbox)?;
                self.outbox.advance(count);
            }
            let bytes = tls.outgoing();
            let piece_bytes = bytes.len();
            if piece_bytes == 0 {
                break;
            }
            let sent = self.socket.send(bytes, &[]);
            let count = self.count_sent(sent)?;
            if let Some(tls) = &mut self.tls {
                tls.sent(count);
            }
            if count < piece_bytes {
                return Ok(false);
            }
        }
        Ok(self.outbox.queued_bytes() == 0)
    }

    pub(crate) fn count_sent(
        &mut self,
        sent: io::Result<Option<usize>>,
    ) -> Result<usize, LinkError> {
        self.counters.writes += 1;
        let count = sent.map_err(|error| self.failure(error))?.unwrap_or(0);
        self.counters.bytes_out += count as u64;
        Ok(count)
    }

    /// Bytes queued that the socket has not yet taken.
    pub fn queued_bytes(&self) -> usize {
        let of_tls = self.tls.as_ref().map_or(0, |tls| tls.outgoing().len());
        let of_proof = self.proving.as_ref().map_or(0, |p| p.outgoing().len());
        self.outbox.queued_bytes() + of_tls + of_proof
    }

    /// Whether [`Link::flush`] has something to do once the socket is writable. While a TLS
    /// handshake waits for the peer this is false, whatever is queued.
    pub fn wants_write(&self) -> bool {
        if self.is_suspended() {
            return false;
        }
        match &self.tls {
            Some(tls) => {
                !tls.outgoing().is_empty() || tls.is_established() && self.outbox.queued_bytes() > 0
            }
            None => match &self.proving {
                Some(proving) => proving.wants_write(self.outbox.queued_bytes()),
                None => self.outbox.queued_bytes() > 0,
            },
        }
    }

    /// Whether frames can be sent: false until the keys are proven. Only its first [`Link::fill`] after that tells the
    /// dialing side whether the listener accepted its key.
    pub fn is_established(&self) -> bool {
        match &self.tls {
            Some(tls) => tls.is_established(),
            None => self.proving.as_ref().is_none_or(|p| p.peer.is_some()),
        }
    }

    /// Which key the peer proved to hold, once it has.
    pub fn peer_key(&self) -> Option<PeerKey> {
        let over_tls = self.tls.as_ref().and_then(|tls| tls.peer());
        over_tls.or(self.proven)
    }

    /// Accepts frames with bodies up to `bytes` from now on, or once the peer has proven its key; a new link accepts
    /// `MAX_HANDSHAKE_FRAME_BYTES`.
    pub fn set_frame_limit(&mut self, bytes: u32) {
        match self.proving.as_mut().filter(|p| p.peer.is_none()) {
            Some(proving) => proving.frame_limit_bytes = Some(bytes),
            None => self.inbox.set_frame_limit(bytes),
        }
    }

    /// Accepts up to `count` descriptors per frame from now on (at most `MAX_FRAME_FDS`), or once the peer has proven
    /// its key; a new link accepts one.
    pub fn set_max_fds(&mut self, count: u16) {
        match self.proving.as_mut().filter(|p| p.peer.is_none()) {
            Some(proving) => proving.max_fds = Some(count),
            None => self.inbox.set_max_fds(count),
        }
    }

    /// The socket, for polling.
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Whether the peer is on this host and can take descriptors: it is at a unix socket, and does not speak TLS. One
    /// that does is on another host, and what is at the socket forwards its bytes.
    pub fn is_local(&self) -> bool {
        matches!(self.socket, Socket::Unix(_)) && self.tls.is_none()
    }

    /// Who is at the other end of a unix socket.
    pub fn peer_credentials(&self) -> Option<PeerCredentials> {
        let Socket::Unix(stream) = &self.socket else {
            return None;
        };
        credentials(stream).ok()
    }

    /// What the link has done so far.
    pub fn counters(&self) -> LinkCounters {
        LinkCounters {
            frames_in: self.inbox.frames(),
            frames_out: self.outbox.frames(),
            ..self.counters
        }
    }

    /// Bytes of memory held for receiving.
    pub fn read_capacity_bytes(&self) -> usize {
        self.inbox.capacity_bytes()
    }

    /// Bytes of memory held for frames that wait to be sent, or that the peer may have to be sent again.
    pub fn held_for_sending_bytes(&self) -> usize {
        self.outbox.capacity_bytes()
    }

    /// Bytes of memory held for sending encrypted data or a block.
    pub fn send_capacity_bytes(&self) -> usize {
        self.tls.as_ref().map_or(0, |tls| tls.send_capacity_bytes())
    }

    /// Blocks until the socket is readable or, with `for_write` while [`Link::wants_write`], writable; for at most
    /// `timeout`, or forever. Answer a readable link with [`Link::fill`].
    ///
    /// # Errors
    /// If poll fails, which happens only after a programming error or when memory is exhausted.
    pub fn wait(
        &mut self,
        for_write: bool,
        timeout: Option<Duration>,
    ) -> Result<Readiness, LinkError> {
        let mut events = PollFlags::IN;
        if for_write && self.wants_write() {
            events |= PollFlags::OUT;
        }
        let timeout = timeout.map(|t| Timespec {
            tv_sec: i64::try_from(t.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: t.subsec_nanos().into(),
        });
        let mut fds = [PollFd::from_borrowed_fd(self.socket.as_fd(), events)];
        match rustix::event::poll(&mut fds, timeout.as_ref()) {
            Ok(0) => Ok(Readiness::TimedOut),
            Ok(_) => {
                let seen = fds[0].revents();
                let ended = seen.intersects(PollFlags::HUP | PollFlags::ERR);
                Ok(Readiness::Ready {
                    readable: seen.contains(PollFlags::IN) || ended,
                    writable: seen.contains(PollFlags::OUT) || ended,
                })
            }
            Err(Errno::INTR) => Ok(Readiness::Interrupted),
            Err(error) => Err(LinkError::Io(error.into())),
        }
    }
}

/// What a link has done so far. System calls are counted even if they would have blocked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkCounters {
    /// Receive calls.
    pub reads: u64,
    /// Send calls.
    pub writes: u64,
    /// Bytes received from the socket.
    pub bytes_in: u64,
    /// Bytes taken by the socket.
    pub bytes_out: u64,
    /// Frames taken by [`Link::next_frame`](crate::Link::next_frame).
    pub frames_in: u64,
    /// Frames begun by [`Link::append`](crate::Link::append), [`Link::send`](crate::Link::send) and
    /// [`Link::send_parts`](crate::Link::send_parts).
    pub frames_out: u64,
}

// Blocks: bytes that are already sealed and bypass the encryption.

impl Link {
    /// Accepts blocks of up to `bytes` from now on; a new link accepts none.
    pub fn set_block_limit(&mut self, bytes: u32) {
        if let Some(tls) = &mut self.tls {
            tls.set_block_limit(bytes);
        }
    }

    /// Queues a block that `write` seals. It bypasses this link's encryption, and its order among the frames is not
    /// preserved.
    ///
    /// # Errors
    /// [`LinkError::BlockNeedsTls`] before the end of a TLS handshake, and any error of `write`; then nothing
    /// is queued.
    pub fn send_block(
        &mut self,
        len_bytes: usize,
        write: impl FnOnce(&mut [u8]) -> Result<SealedHead, LinkError>,
    ) -> Result<(), LinkError> {
        self.encrypt_frames()?;
        match &mut self.tls {
            Some(tls) if tls.is_established() => tls.send_block(len_bytes, write),
            _ => Err(LinkError::BlockNeedsTls),
        }
    }

    /// Sends a block that was sealed elsewhere, directly from its memory as far as the socket takes it; the rest is
    /// queued.
    ///
    /// # Errors
    /// As [`Link::send_block`] and [`Link::flush`].
    pub fn pass_block(&mut self, head: &SealedHead, ciphertext: &[u8]) -> Result<(), LinkError> {
        self.encrypt_frames()?;
        if !self.tls.as_ref().is_some_and(|tls| tls.is_established()) {
            return Err(LinkError::BlockNeedsTls);
        }
        let block = Block {
            head: *head,
            len_bytes: ciphertext.len() as u32,
        };
        let header = block.encode_header();
        let mut sent_bytes = 0;
        if self.queued_bytes() == 0 {
            let parts = [IoSlice::new(&header), IoSlice::new(ciphertext)];
            let sent = self.socket.send_parts(&parts);
            sent_bytes = self.count_sent(sent)?;
        }
        if let Some(tls) = &mut self.tls {
            tls.send_raw(&header[sent_bytes.min(header.len())..]);
            tls.send_raw(&ciphertext[sent_bytes.saturating_sub(header.len())..]);
        }
        Ok(())
    }

    /// The block in progress, from the arrival of its header until [`Link::take_block`] reached its end.
    pub fn block(&self) -> Option<Block> {
        self.tls.as_ref().and_then(|tls| tls.block())
    }

    /// Receives once for the block in progress, if any of it is missing, directly into `target`, which has the block's
    /// length and is the same for all of it.
    ///
    /// # Errors
    /// As [`Link::fill`].
    ///
    /// # Panics
    /// When `target` is shorter than the block.
    pub fn fill_block(&mut self, target: &mut [u8]) -> Result<usize, LinkError> {
        let room = self.tls.as_mut().and_then(|tls| tls.block_room(target));
        let Some(mut room) = room else {
            return Ok(0);
        };
        let received = self.socket.receive_parts(&mut room);
        let count = self.count_received(received)?;
        if let Some(tls) = &mut self.tls {
            tls.block_received(count);
        }
        Ok(count)
    }

    /// Moves what has arrived of the block in progress into `target`, as in [`Link::fill_block`]; returns whether that
    /// was the end of it. Then frames may follow, or another block.
    ///
    /// # Errors
    /// As [`Link::fill`].
    ///
    /// # Panics
    /// As [`Link::fill_block`].
    pub fn take_block(&mut self, target: &mut [u8]) -> Result<bool, LinkError> {
        match &mut self.tls {
            Some(tls) => tls.take_block(target, &mut self.inbox),
            None => Ok(false),
        }
    }

    /// Encrypts the waiting frames, so that an endless series of blocks does not hold them up.
    fn encrypt_frames(&mut self) -> Result<(), LinkError> {
        self.outbox.seal()?;
        while let Some(tls) = &mut self.tls
            && self.outbox.queued_bytes() > 0
        {
            let (bytes, _) = self.outbox.next_piece();
            match tls.encrypt(bytes, &mut self.inbox)? {
                0 => break,
                count => self.outbox.advance(count),
            }
        }
        Ok(())
    }
}

// Idle links give back the memory of large frames.

/// The memory that a link may keep, however long it is idle.
const QUIET_BYTES: usize = 128 * 1024;

impl Link {
    /// Whether it holds more memory than an idle link may keep.
    #[inline]
    pub fn holds_much(&self) -> bool {
        self.inbox.capacity_bytes() + self.outbox.capacity_bytes() > QUIET_BYTES
    }

    /// Gives its buffers back if nothing was sent or received since the last call. Returns how many bytes it freed.
    pub fn shrink_if_idle(&mut self) -> usize {
        let counters = self.counters();
        let travelled_bytes = counters.bytes_in.wrapping_add(counters.bytes_out);
        let is_idle = std::mem::replace(&mut self.looked_bytes, travelled_bytes) == travelled_bytes;
        if !is_idle || !self.holds_much() {
            return 0;
        }
        let held_bytes = self.inbox.capacity_bytes() + self.outbox.capacity_bytes();
        self.inbox.shrink();
        self.outbox.shrink();
        held_bytes - self.inbox.capacity_bytes() - self.outbox.capacity_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use broadleaf_proto::FrameKind;
    use broadleaf_proto::limits::MAX_FRAME_BYTES;

    fn exchange(from: &mut Link, to: &mut Link, body: &[u8]) {
        from.send(FrameKind::Event, body, &[]).unwrap();
        let mut frame = None;
        while frame.is_none() {
            from.flush().unwrap();
            to.fill().unwrap();
            frame = to.next_frame().unwrap();
        }
        assert_eq!(frame.unwrap().body, body);
    }

    #[test]
    fn a_link_that_held_a_large_frame_gives_its_memory_back_when_idle() {
        let (mut a, mut b) = Link::pair().unwrap();
        b.set_frame_limit(MAX_FRAME_BYTES);
        a.set_frame_limit(MAX_FRAME_BYTES);
        exchange(&mut a, &mut b, &vec![7; 3 << 20]);
        assert!(a.holds_much());
        assert_eq!(a.shrink_if_idle(), 0, "something has just travelled");
        exchange(&mut a, &mut b, &[7; 100]);
        assert_eq!(a.shrink_if_idle(), 0, "and again");
        assert!(a.shrink_if_idle() > QUIET_BYTES);
        assert!(!a.holds_much());
        exchange(&mut a, &mut b, &vec![8; 1 << 20]);
        exchange(&mut b, &mut a, &vec![9; 1 << 20]);
    }

    #[test]
    fn what_waits_to_be_sent_or_taken_stays() {
        let (mut a, mut b) = Link::pair().unwrap();
        b.set_frame_limit(MAX_FRAME_BYTES);
        let body = vec![7; 8 << 20];
        a.send(FrameKind::Event, &body, &[]).unwrap();
        a.flush().unwrap();
        b.fill().unwrap();
        for link in [&mut a, &mut b] {
            link.shrink_if_idle();
            assert_eq!(link.shrink_if_idle(), 0);
        }
        let mut frame = None;
        while frame.is_none() {
            a.flush().unwrap();
            b.fill().unwrap();
            frame = b.next_frame().unwrap();
        }
        assert_eq!(frame.unwrap().body, body);
    }
}
