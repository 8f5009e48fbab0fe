//! Blocks of a link: bytes that were sealed before, and pass by its encryption.

use crate::error::LinkError;
use crate::link::Link;
use crate::tls::Block;

impl Link {
    /// Accepts blocks with bodies up to `bytes` from now on; a fresh link accepts none.
    pub fn set_block_limit(&mut self, bytes: u32) {
        if let Some(tls) = &mut self.tls {
            tls.set_block_limit(bytes);
        }
    }

    /// Queues a block: bytes that `write` seals, or that were sealed elsewhere. They pass by this link's encryption, and
    /// their order among the frames is not kept.
    ///
    /// # Errors
    /// [`LinkError::BlockNeedsTls`] before the end of a TLS handshake, and what `write` says; nothing is queued then.
    pub fn send_block(
        &mut self,
        body_bytes: usize,
        write: impl FnOnce(&mut [u8]) -> Result<(), LinkError>,
    ) -> Result<(), LinkError> {
        self.encrypt_frames()?;
        match &mut self.tls {
            Some(tls) if tls.is_established() => tls.send_block(body_bytes, write),
            _ => Err(LinkError::BlockNeedsTls),
        }
    }

    /// Unsays the block that was queued last, if there was no [`Link::flush`] since.
    pub fn take_back_block(&mut self, body_bytes: usize) {
        if let Some(tls) = &mut self.tls {
            tls.take_back_block(body_bytes);
        }
    }

    /// Takes the next whole block, or `None` until [`Link::fill`] brings more. It is to be given back, and all others that
    /// have come taken, before the next fill.
    pub fn take_block(&mut self) -> Option<Block> {
        self.tls.as_mut().and_then(|tls| tls.take_block())
    }

    /// Gives a block's memory back. Frames may follow it.
    ///
    /// # Errors
    /// As [`Link::fill`].
    pub fn return_block(&mut self, block: Block) -> Result<(), LinkError> {
        match &mut self.tls {
            Some(tls) => tls.return_block(block, &mut self.inbox),
            None => Ok(()),
        }
    }

    /// Encrypts the frames that wait, so that blocks without end do not hold them up.
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
