//! The receiving half of a link: a buffer that frames are cut from without copying.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;

use broadleaf_proto::frame::HEADER_BYTES;
use broadleaf_proto::limits::{MAX_FRAME_FDS, MAX_HANDSHAKE_FRAME_BYTES};
use broadleaf_proto::{FrameHeader, FrameKind};
use bytes::{Buf, Bytes, BytesMut};
use smallvec::SmallVec;

use crate::error::LinkError;

/// Maximum number of bytes taken from a socket by one call: few enough to stay in a core's cache until they are used.
pub(crate) const READ_BYTES: usize = 64 * 1024;
/// Size of a fresh buffer on a quiet link, so that many idle links cost little.
const QUIET_CHUNK_BYTES: usize = 16 * 1024;
/// Unfinished frames up to this size move to a new buffer rather than being read in small pieces.
const MOVABLE_BYTES: usize = 64 * 1024;
/// Memory of frames above this size is not reused.
const LARGE_FRAME_BYTES: usize = 256 * 1024;
/// Number of descriptors that may wait for their frames while the caller fills without taking frames.
const MAX_WAITING_FDS: usize = 16 * MAX_FRAME_FDS as usize;

/// One received frame.
#[derive(Debug)]
pub struct Frame {
    /// The kind of the body.
    pub kind: FrameKind,
    /// The body. It shares the link's read buffer: copy out small pieces that live long.
    pub body: Bytes,
    /// Descriptors that came with the frame.
    pub fds: SmallVec<[OwnedFd; 0]>,
}

/// Received bytes and descriptors, not yet taken as frames.
///
/// Memory is taken for a frame only after its header was read and accepted.
#[derive(Debug)]
pub struct Inbox {
    /// Fully initialised; the first `filled` bytes were received.
    buffer: BytesMut,
    filled: usize,
    chunk_bytes: usize,
    /// Whether a read since the last new buffer took all the available space.
    saturated: bool,
    fds: VecDeque<OwnedFd>,
    frame_limit_bytes: u32,
    max_fds: usize,
    frames: u64,
    /// Bytes received so far.
    received: u64,
}

impl Default for Inbox {
    fn default() -> Self {
        Self {
            buffer: BytesMut::new(),
            filled: 0,
            chunk_bytes: QUIET_CHUNK_BYTES,
            saturated: false,
            fds: VecDeque::new(),
            frame_limit_bytes: MAX_HANDSHAKE_FRAME_BYTES,
            max_fds: 1,
            frames: 0,
            received: 0,
        }
    }
}

impl Inbox {
    /// An empty inbox with the limits for a peer that has not identified itself.
    pub fn new() -> Self {
        Self::default()
    }

    /// Accepts bodies up to `bytes` from now on.
    pub fn set_frame_limit(&mut self, bytes: u32) {
        self.frame_limit_bytes = bytes;
    }

    /// Accepts up to `count` descriptors per frame from now on.
    pub fn set_max_fds(&mut self, count: u16) {
        self.max_fds = count.min(MAX_FRAME_FDS).into();
    }

    /// Bytes of memory held for receiving.
    pub fn capacity_bytes(&self) -> usize {
        self.buffer.capacity()
    }

    /// Gives its memory back if nothing is in it.
    pub(crate) fn shrink(&mut self) {
        if self.filled == 0 {
            self.buffer = BytesMut::new();
            self.chunk_bytes = QUIET_CHUNK_BYTES;
        }
    }

    /// Bytes received and not yet taken as frames.
    pub fn filled_bytes(&self) -> usize {
        self.filled
    }

    /// Bytes received so far, taken or not.
    pub(crate) fn received_bytes(&self) -> u64 {
        self.received
    }

    /// Whether these are the first bytes received and not yet taken.
    pub(crate) fn begins_with(&self, bytes: &[u8]) -> bool {
        self.buffer[..self.filled].starts_with(bytes)
    }

    /// Takes everything received, which is no frame; descriptors that came with it are closed.
    pub(crate) fn take_all(&mut self) -> Bytes {
        self.fds.clear();
        self.buffer
            .split_to(std::mem::take(&mut self.filled))
            .freeze()
    }

    /// Frames taken so far.
    pub fn frames(&self) -> u64 {
        self.frames
    }

    /// As [`Inbox::next_frame`], for frames that belong to the link itself and are not counted.
    pub(crate) fn next_proof_frame(&mut self) -> Result<Option<Frame>, LinkError> {
        let frame = self.next_frame()?;
        self.frames -= u64::from(frame.is_some());
        Ok(frame)
    }

    /// Whether the received bytes end inside a frame (false while a whole frame waits).
    pub fn ends_in_frame(&self) -> bool {
        match self.first_frame_bytes() {
            Ok(total) => self.filled > 0 && self.filled < total,
            Err(_) => true,
        }
    }

    /// Size of the first frame as far as it is known: at least the header's.
    fn first_frame_bytes(&self) -> Result<usize, LinkError> {
        Ok(match self.header()? {
            Some(header) => HEADER_BYTES + header.body_bytes as usize,
            None => HEADER_BYTES,
        })
    }

    fn header(&self) -> Result<Option<FrameHeader>, LinkError> {
        let Some(bytes) = self.buffer[..self.filled].first_chunk::<HEADER_BYTES>() else {
            return Ok(None);
        };
        let header = FrameHeader::decode(*bytes, self.frame_limit_bytes)?;
        let claimed = usize::from(header.fd_count);
        if claimed > self.max_fds {
            return Err(self.too_many_fds(claimed));
        }
        Ok(Some(header))
    }

    pub(crate) fn too_many_fds(&self, count: usize) -> LinkError {
        LinkError::TooManyFds {
            count,
            limit: self.max_fds,
        }
    }

    /// Space for the next bytes, never empty; report what was written with [`Inbox::received`].
    ///
    /// # Errors
    /// If the current frame is refused.
    pub fn room(&mut self) -> Result<&mut [u8], LinkError> {
        let total = self.first_frame_bytes()?;
        let room = self.buffer.len() - self.filled;
        let short = room == 0 || (room < self.chunk_bytes / 4 && self.filled < MOVABLE_BYTES);
        if total > self.buffer.len() || short {
            self.fresh_buffer(total);
        }
        let end = self.buffer.len().min(self.filled + READ_BYTES);
        Ok(&mut self.buffer[self.filled..end])
    }

    fn fresh_buffer(&mut self, total: usize) {
        if !self.saturated {
            self.chunk_bytes = (self.chunk_bytes / 2).max(QUIET_CHUNK_BYTES);
        }
        self.saturated = false;
        let bytes = if self.filled >= total || self.filled >= self.chunk_bytes / 2 {
            // Whole frames are waiting, or most of a chunk is already taken: the new bytes are appended.
            total.max(self.filled + self.chunk_bytes)
        } else {
            total.max(self.chunk_bytes)
        };
        // Once the frames cut from it are gone, the memory is reused, unless it has become too large.
        self.buffer.truncate(self.filled);
        if self.buffer.try_reclaim(bytes - self.filled) && self.buffer.capacity() <= 2 * bytes {
            self.buffer.resize(bytes, 0);
            return;
        }
        let mut fresh = BytesMut::zeroed(bytes);
        fresh[..self.filled].copy_from_slice(&self.buffer[..self.filled]);
        self.buffer = fresh;
    }

    /// Reports that the first `count` bytes of the last [`Inbox::room`] were received.
    ///
    /// # Panics
    /// When `count` is above that room.
    pub fn received(&mut self, count: usize) {
        let room = (self.buffer.len() - self.filled).min(READ_BYTES);
        assert!(count <= room, "invariant: no more bytes than room");
        self.filled += count;
        self.received += count as u64;
        // Even a quiet link fills the small space left at the end of a buffer.
        if count == room && room >= self.chunk_bytes / 2 {
            self.saturated = true;
            self.chunk_bytes = (self.chunk_bytes * 2).min(READ_BYTES);
        }
    }

    /// Takes descriptors that came with bytes of the last receive call.
    ///
    /// # Errors
    /// When there are more than allowed; all of them are closed.
    pub fn received_fds(
        &mut self,
        fds: impl IntoIterator<Item = OwnedFd>,
    ) -> Result<(), LinkError> {
        let before = self.fds.len();
        self.fds.extend(fds);
        let count = self.fds.len() - before;
        if count > self.max_fds || self.fds.len() > MAX_WAITING_FDS {
            self.fds.clear();
            return Err(self.too_many_fds(count));
        }
        Ok(())
    }

    /// Copies bytes in, as if received. Memory for them needs no zeroing, and is reused once the frames cut from it are
    /// gone.
    ///
    /// # Errors
    /// If the current frame is refused.
    pub fn push(&mut self, bytes: &[u8]) -> Result<(), LinkError> {
        let total = self.first_frame_bytes()?;
        self.buffer.truncate(self.filled);
        let wanted = total.max(self.filled + bytes.len());
        self.buffer.reserve(wanted - self.filled);
        self.buffer.extend_from_slice(bytes);
        self.received += bytes.len() as u64;
        self.filled = self.buffer.len();
        Ok(())
    }

    /// Takes the next whole frame, or `None` until more is received.
    ///
    /// # Errors
    /// If the bytes are not a frame, or the frame exceeds a limit.
    pub fn next_frame(&mut self) -> Result<Option<Frame>, LinkError> {
        let header = self.header()?;
        let Some(header) = header.filter(|h| self.filled - HEADER_BYTES >= h.body_bytes as usize)
        else {
            // A frame's descriptors come with its first byte, so all of these claim to belong to one frame.
            if self.fds.len() > self.max_fds {
                let error = self.too_many_fds(self.fds.len());
                self.fds.clear();
                return Err(error);
            }
            return Ok(None);
        };
        let claimed = usize::from(header.fd_count);
        if claimed > self.fds.len() {
            return Err(LinkError::MissingFds {
                claimed,
                received: self.fds.len(),
            });
        }
        let total = HEADER_BYTES + header.body_bytes as usize;
        let mut body = self.buffer.split_to(total).freeze();
        body.advance(HEADER_BYTES);
        self.filled -= total;
        self.frames += 1;
        if self.filled == 0 && total > LARGE_FRAME_BYTES {
            // It takes its memory along, which a quiet link would otherwise hold.
            self.buffer = BytesMut::new();
        }
        Ok(Some(Frame {
            kind: header.kind,
            body,
            fds: self.fds.drain(..claimed).collect(),
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Frames that were sent together are read by one call as long as they are small: a reply, say, and the segments
    /// that are given back with it.
    #[test]
    fn small_frames_always_find_room() {
        let mut inbox = Inbox::new();
        let header = FrameHeader {
            kind: FrameKind::Event,
            fd_count: 0,
            body_bytes: 80,
        };
        let frame = [&header.encode()[..], &[7; 80]].concat();
        for n in 0..1_000 {
            let room = inbox.room().unwrap();
            assert!(
                room.len() >= QUIET_CHUNK_BYTES / 4,
                "{} after {n} frames",
                room.len()
            );
            room[..frame.len()].copy_from_slice(&frame);
            inbox.received(frame.len());
            assert_eq!(inbox.next_frame().unwrap().unwrap().body, [7; 80][..]);
        }
        assert!(inbox.capacity_bytes() <= QUIET_CHUNK_BYTES);
    }
}
