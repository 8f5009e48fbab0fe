//! Blocks of a link: bytes that are already sealed and bypass its encryption.

use std::io::IoSlice;

use broadleaf_proto::{Block, SealedHead};

use crate::error::LinkError;
use crate::link::Link;

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
