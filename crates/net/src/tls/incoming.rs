//! Received bytes of a TLS connection: records, and the blocks between them.

use std::io::IoSliceMut;

use broadleaf_proto::{Block, DecodeError};

use crate::link::inbox::READ_BYTES;

/// Ciphertext buffer of a quiet link: room for the largest record and most of another.
const QUIET_BYTES: usize = 32 * 1024;

/// See the module.
pub(super) struct Incoming {
    /// Initialised, and empty until something arrives; `buffer[start..end]` came from the socket and is not yet used.
    buffer: Vec<u8>,
    start: usize,
    end: usize,
    /// Maximum length of a block's ciphertext; 0 if no blocks are accepted.
    block_limit_bytes: usize,
    /// The block in progress, and how much of its ciphertext has been taken.
    block: Option<(Block, usize)>,
    /// Whether a block was received last, so that another is likely to follow.
    follows_block: bool,
}

impl Incoming {
    pub(super) fn new() -> Self {
        Self {
            buffer: Vec::new(),
            start: 0,
            end: 0,
            block_limit_bytes: 0,
            block: None,
            follows_block: false,
        }
    }

    pub(super) fn set_block_limit(&mut self, bytes: usize) {
        self.block_limit_bytes = bytes;
    }

    fn bytes(&self) -> &[u8] {
        &self.buffer[self.start..self.end]
    }

    /// Space for the next bytes, never empty. After a block it is only for the header of another, whose bytes then need
    /// not be moved.
    pub(super) fn room(&mut self) -> &mut [u8] {
        if self.start > 0 {
            self.buffer.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        }
        if self.end == self.buffer.len() {
            let larger = (self.end * 2).min(self.end + READ_BYTES);
            self.buffer.resize(larger.max(QUIET_BYTES), 0);
        }
        let mut end = self.buffer.len();
        if self.follows_block && self.end < Block::HEADER_BYTES {
            end = Block::HEADER_BYTES;
        }
        &mut self.buffer[self.end..end]
    }

    /// Reports that `count` bytes were received into that space.
    pub(super) fn received(&mut self, count: usize) {
        self.end += count;
        if self.end == self.buffer.len() && self.end < READ_BYTES {
            self.buffer.resize(self.end * 2, 0);
        }
    }

    /// The TLS records at the front: up to a block if blocks are accepted, and otherwise everything received.
    pub(super) fn records(&mut self, is_established: bool) -> &mut [u8] {
        let mut at = self.start;
        if !is_established || self.block_limit_bytes == 0 {
            at = self.end;
        } else if self.block.is_none() {
            while at < self.end && self.buffer[at] != Block::MARK {
                // Type, version, and a length of two bytes (RFC 8446, section 5.1).
                let header = self.buffer[at..self.end].first_chunk::<5>();
                let Some([_, _, _, length @ ..]) = header else {
                    at = self.end;
                    break;
                };
                at += 5 + usize::from(u16::from_be_bytes(*length));
            }
        }
        let end = at.min(self.end);
        &mut self.buffer[self.start..end]
    }

    /// Drops records that were read.
    pub(super) fn discard(&mut self, count: usize) {
        self.start += count;
    }

    /// Reads the header of the block at the front, if it is complete.
    pub(super) fn begin_block(&mut self) -> Result<(), DecodeError> {
        if self.block.is_none() && self.block_limit_bytes > 0 {
            let header = self.bytes().first_chunk::<{ Block::HEADER_BYTES }>();
            if let Some(header) = header.filter(|header| header[0] == Block::MARK) {
                let block = Block::decode_header(header, self.block_limit_bytes)?;
                self.block = Some((block, 0));
                self.start += Block::HEADER_BYTES;
            }
        }
        self.follows_block &= self
            .bytes()
            .first()
            .is_none_or(|first| *first == Block::MARK);
        Ok(())
    }

    pub(super) fn block(&self) -> Option<Block> {
        self.block.map(|(block, _)| block)
    }

    /// Moves the received part of the block in progress to `target`; returns whether it is complete.
    pub(super) fn move_block(&mut self, target: &mut [u8]) -> bool {
        let Some((block, taken)) = &mut self.block else {
            return false;
        };
        let count = (block.len_bytes as usize - *taken).min(self.end - self.start);
        target[*taken..][..count].copy_from_slice(&self.buffer[self.start..][..count]);
        self.start += count;
        *taken += count;
        *taken == block.len_bytes as usize
    }

    /// Continues after the block in progress.
    pub(super) fn end_block(&mut self) {
        self.block = None;
        self.follows_block = true;
    }

    /// Space for the rest of the block in progress, after [`Incoming::move_block`], and for the header of the next, so
    /// that of many blocks only the first is received elsewhere and moved.
    pub(super) fn block_room<'a>(&'a mut self, target: &'a mut [u8]) -> [IoSliceMut<'a>; 2] {
        (self.start, self.end) = (0, 0);
        let (len_bytes, taken) = self
            .block
            .map_or((0, 0), |(block, taken)| (block.len_bytes as usize, taken));
        [
            IoSliceMut::new(&mut target[taken..len_bytes]),
            IoSliceMut::new(&mut self.buffer[..Block::HEADER_BYTES]),
        ]
    }

    /// Reports that `count` bytes were received into [`Incoming::block_room`].
    pub(super) fn block_received(&mut self, count: usize) {
        if let Some((block, taken)) = &mut self.block {
            let of_block = count.min(block.len_bytes as usize - *taken);
            *taken += of_block;
            self.end = count - of_block;
        }
    }
}
