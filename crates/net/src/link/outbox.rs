//! The sending half of a link: one contiguous buffer of frames, and the descriptors that travel with it.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;

use broadleaf_proto::frame::HEADER_BYTES;
use broadleaf_proto::limits::MAX_FRAME_BYTES;
use broadleaf_proto::{DecodeError, FrameHeader, FrameKind};

use crate::error::LinkError;

/// An open frame closes once its body reaches this size.
const FRAME_CLOSE_BYTES: usize = 256 * 1024;
/// Memory kept for the next frames once everything has been sent.
const KEPT_BYTES: usize = 512 * 1024;
/// Sent bytes are cut off the front of a backlog in steps of at least this size.
const COMPACT_BYTES: usize = 1024 * 1024;
/// The same for bytes that were kept until the peer had them.
const COMPACT_KEPT_BYTES: usize = 256 * 1024;
/// The most that a peer may leave unacknowledged: more than the buffers of two sockets hold, and what it reads before it says
/// so. One that leaves more reads without saying so.
const MAX_UNACKNOWLEDGED_BYTES: usize = 64 * 1024 * 1024;

/// Descriptors, and the position in the buffer of the frame they travel with.
#[derive(Debug)]
struct Passenger {
    position: usize,
    fds: Vec<OwnedFd>,
}

/// What is kept of a link that can be resumed.
#[derive(Debug)]
struct Kept {
    /// A position in the buffer, and the number of bytes of the link before it.
    origin: (usize, u64),
    /// Position in the buffer of the first byte that the peer has not acknowledged.
    unacknowledged: usize,
}

/// Frames waiting to be sent.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    /// First what is kept, then what waits.
    buffer: Vec<u8>,
    /// Bytes of `buffer` that the socket has taken.
    sent: usize,
    /// Kind and header position of the frame that records are appended to.
    open: Option<(FrameKind, usize)>,
    passengers: VecDeque<Passenger>,
    frames: u64,
    refused: Option<usize>,
    kept: Option<Kept>,
}

impl Outbox {
    #[inline]
    pub(crate) fn append<R>(
        &mut self,
        kind: FrameKind,
        write: impl FnOnce(&mut Vec<u8>) -> R,
    ) -> R {
        let header = match self.open {
            Some((open, header)) if open == kind => header,
            _ => self.open_frame(kind),
        };
        let start = self.buffer.len();
        let result = write(&mut self.buffer);
        let body_bytes = self.buffer.len() - header - HEADER_BYTES;
        if body_bytes >= FRAME_CLOSE_BYTES {
            self.close_large(kind, header, start);
        }
        result
    }

    #[cold]
    fn close_large(&mut self, kind: FrameKind, header: usize, start: usize) {
        let limit = MAX_FRAME_BYTES as usize;
        let record_bytes = self.buffer.len() - start;
        if record_bytes > limit {
            // No peer accepts it. Forget the record and let `flush` say so.
            self.buffer.truncate(start);
            self.refused = Some(record_bytes);
        } else if self.buffer.len() - header - HEADER_BYTES > limit {
            // It is too large only together with its predecessors: it begins a frame of its own.
            self.buffer.splice(start..start, [0; HEADER_BYTES]);
            let end = self.buffer.len();
            self.patch(kind, header, start, 0);
            self.patch(kind, start, end, 0);
            self.frames += 1;
            self.open = None;
            return;
        }
        self.close_frame();
    }

    fn open_frame(&mut self, kind: FrameKind) -> usize {
        self.close_frame();
        let header = self.buffer.len();
        self.buffer.extend_from_slice(&[0; HEADER_BYTES]);
        self.open = Some((kind, header));
        self.frames += 1;
        header
    }

    fn close_frame(&mut self) {
        if let Some((kind, header)) = self.open.take() {
            self.patch(kind, header, self.buffer.len(), 0);
        }
    }

    fn patch(&mut self, kind: FrameKind, header: usize, end: usize, fd_count: u16) {
        let bytes = FrameHeader {
            body_bytes: (end - header - HEADER_BYTES) as u32,
            kind,
            fd_count,
        }
        .encode();
        self.buffer[header..header + HEADER_BYTES].copy_from_slice(&bytes);
    }

    /// Queues a frame of its own.
    pub(crate) fn send(
        &mut self,
        kind: FrameKind,
        body: &[u8],
        fds: Vec<OwnedFd>,
    ) -> Result<(), LinkError> {
        if body.len() > MAX_FRAME_BYTES as usize {
            return Err(too_large(body.len()));
        }
        let header = self.open_frame(kind);
        self.open = None;
        self.buffer.extend_from_slice(body);
        self.patch(kind, header, self.buffer.len(), fds.len() as u16);
        if !fds.is_empty() {
            self.passengers.push_back(Passenger {
                position: header,
                fds,
            });
        }
        Ok(())
    }

    /// Queues a frame of its own whose body comes in two parts.
    pub(crate) fn send_parts(
        &mut self,
        kind: FrameKind,
        head: &[u8],
        rest: &[u8],
    ) -> Result<(), LinkError> {
        let bytes = head.len() + rest.len();
        if bytes > MAX_FRAME_BYTES as usize {
            return Err(too_large(bytes));
        }
        let header = FrameHeader {
            body_bytes: bytes as u32,
            kind,
            fd_count: 0,
        };
        self.close_frame();
        self.frames += 1;
        self.buffer.reserve(HEADER_BYTES + bytes);
        for part in [&header.encode(), head, rest] {
            self.buffer.extend_from_slice(part);
        }
        Ok(())
    }

    /// Closes the open frame, so that the whole buffer may be sent.
    ///
    /// # Errors
    /// [`LinkError::RecordTooLarge`] if a record was refused since the last time.
    pub(crate) fn seal(&mut self) -> Result<(), LinkError> {
        self.close_frame();
        match self.refused.take() {
            Some(bytes) => Err(too_large(bytes)),
            None => Ok(()),
        }
    }

    /// Closes the open frame; returns the number of frames so far.
    pub(crate) fn mark(&mut self) -> u64 {
        self.close_frame();
        self.frames
    }

    pub(crate) fn queued_bytes(&self) -> usize {
        self.buffer.len() - self.sent
    }

    pub(crate) fn capacity_bytes(&self) -> usize {
        self.buffer.capacity()
    }

    /// Gives its memory back if nothing is in it.
    pub(crate) fn shrink(&mut self) {
        if self.buffer.is_empty() {
            self.buffer = Vec::new();
        }
    }

    pub(crate) fn frames(&self) -> u64 {
        self.frames
    }

    /// The bytes that one call may send, and the descriptors that travel with the first of them.
    pub(crate) fn next_piece(&self) -> (&[u8], &[OwnedFd]) {
        let mut passengers = self.passengers.iter().peekable();
        let fds = match passengers.peek() {
            Some(first) if first.position == self.sent => {
                passengers.next().map_or(&[][..], |p| p.fds.as_slice())
            }
            _ => &[],
        };
        let end = passengers.next().map_or(self.buffer.len(), |p| p.position);
        (&self.buffer[self.sent..end], fds)
    }

    /// Reports that the socket took the first `count` bytes of the last piece, and its descriptors.
    pub(crate) fn advance(&mut self, count: usize) {
        if count == 0 {
            return;
        }
        if self
            .passengers
            .front()
            .is_some_and(|p| p.position == self.sent)
        {
            self.passengers.pop_front();
        }
        self.sent += count;
        if self.kept.is_none() {
            self.drop_front(self.sent, COMPACT_BYTES);
        }
    }

    /// Forgets the first bytes, if they are enough to be worth it.
    fn drop_front(&mut self, bytes: usize, worth_bytes: usize) {
        if bytes == self.buffer.len() {
            self.buffer.clear();
            self.buffer.shrink_to(KEPT_BYTES);
            self.open = None;
        } else if bytes >= worth_bytes && bytes >= self.buffer.len() / 2 {
            self.buffer.drain(..bytes);
            for passenger in &mut self.passengers {
                passenger.position -= bytes;
            }
            self.open = self.open.map(|(kind, header)| (kind, header - bytes));
        } else {
            return;
        }
        self.sent -= bytes;
        if let Some(kept) = &mut self.kept {
            let (position, total) = kept.origin;
            kept.origin = (
                position.saturating_sub(bytes),
                total + bytes.saturating_sub(position) as u64,
            );
            kept.unacknowledged -= bytes;
        }
    }

    // Links that can be resumed: what was sent is kept until the peer has it.

    /// Keeps from now on what is sent. The link's bytes are counted from here.
    pub(crate) fn keep(&mut self) {
        self.close_frame();
        self.kept = Some(Kept {
            origin: (self.buffer.len(), 0),
            unacknowledged: 0,
        });
    }

    /// Where the byte with this number is in the buffer, if it was sent or is the next one; 0 for one that is forgotten.
    fn position_of(&self, kept: &Kept, received: u64) -> Result<usize, DecodeError> {
        let (position, number) = kept.origin;
        let after = usize::try_from(received.saturating_sub(number)).unwrap_or(usize::MAX);
        let found = if received < number {
            0
        } else {
            position.saturating_add(after)
        };
        (found <= self.sent)
            .then_some(found)
            .ok_or(DecodeError::Malformed)
    }

    /// The peer has this many bytes of the link. It may have said that it has more when the link was resumed, before
    /// this arrived.
    ///
    /// # Errors
    /// [`DecodeError::Malformed`] if it was not sent as many.
    pub(crate) fn on_received(&mut self, received: u64) -> Result<(), DecodeError> {
        let Some(kept) = &self.kept else {
            return Err(DecodeError::Malformed);
        };
        let position = self.position_of(kept, received)?;
        if let Some(kept) = &mut self.kept {
            kept.unacknowledged = kept.unacknowledged.max(position);
            let unacknowledged = kept.unacknowledged;
            self.drop_front(unacknowledged, COMPACT_KEPT_BYTES);
        }
        Ok(())
    }

    /// Goes on with the byte after those that the peer has.
    ///
    /// # Errors
    /// [`DecodeError::Malformed`] if it was not sent as many, or has said that it has more.
    pub(crate) fn rewind(&mut self, received: u64) -> Result<(), DecodeError> {
        let Some(kept) = self.kept.as_ref() else {
            return Err(DecodeError::Malformed);
        };
        let position = self.position_of(kept, received)?;
        if position < kept.unacknowledged.max(kept.origin.0) || received < kept.origin.1 {
            return Err(DecodeError::Malformed);
        }
        self.sent = position;
        self.on_received(received)
    }

    /// Whether the peer leaves too much unacknowledged.
    pub(crate) fn keeps_too_much(&self) -> bool {
        self.kept
            .as_ref()
            .is_some_and(|k| self.sent - k.unacknowledged > MAX_UNACKNOWLEDGED_BYTES)
    }
}

fn too_large(bytes: usize) -> LinkError {
    LinkError::RecordTooLarge {
        bytes,
        limit: MAX_FRAME_BYTES as usize,
    }
}
