//! Chunks that come in: taken, passed on, refused.

use std::time::Instant;

use broadleaf_net::LinkError;
use broadleaf_net::tls::Block;
use broadleaf_proto::{Chunk, DecodeError, ObjectId, SealedHead};

use super::News;
use super::object::{Object, Rejection};
use super::plane::PlaneThread;

impl PlaneThread {
    pub(super) fn on_chunk(&mut self, token: usize, chunk: &Chunk, now: Instant) {
        let id = chunk.object;
        if self.is_wanted(token, id, chunk.pull)
            && let Some(object) = self.objects.get_mut(&id)
        {
            let accepted = object.accept(chunk);
            self.on_accepted(token, id, chunk.bytes.len(), accepted, now);
        }
    }

    pub(super) fn on_block(
        &mut self,
        token: usize,
        mut block: Block,
        now: Instant,
    ) -> Result<(), LinkError> {
        if !self.connections[token].is_up {
            return Err(DecodeError::Malformed.into());
        }
        let (head, sealed) = SealedHead::split(block.body())?;
        let (id, len_bytes) = (head.object, sealed.len());
        let accepted = self
            .is_wanted(token, id, head.pull)
            .then(|| self.open(&head, sealed, now));
        // Before anything is done that may end the connection.
        let returned = self.connections[token].link.return_block(block);
        if let Some(accepted) = accepted {
            self.on_accepted(token, id, len_bytes, accepted, now);
        }
        returned
    }

    /// Whether a chunk answers the present pull: it was not dropped while it was on the way, nor the pull given up.
    fn is_wanted(&self, token: usize, object: ObjectId, pull: u32) -> bool {
        let fetch = self.fetches.get(&object);
        fetch.is_some_and(|f| f.connection == Some(token) && f.pull == pull)
    }

    /// Takes a sealed chunk, and passes it on as it is to who is up to there.
    fn open(
        &mut self,
        head: &SealedHead,
        sealed: &mut [u8],
        now: Instant,
    ) -> Result<(), Rejection> {
        let object = self.objects.get_mut(&head.object);
        let object = object
            .filter(|o| o.is_next(head))
            .ok_or(Rejection::OutOfPlace)?;
        let mut passed = Vec::new();
        for (token, connection) in &mut self.connections {
            // A connection that fails is found out by its next event.
            if connection.pass_on(head, sealed, now).unwrap_or(false) {
                passed.push(token);
            }
        }
        let accepted = object.accept_sealed(head, sealed);
        if accepted.is_err() {
            for token in passed {
                self.connections[token].take_back(head, sealed.len());
            }
        }
        accepted
    }

    /// After a chunk of a present pull was taken, or not.
    fn on_accepted(
        &mut self,
        token: usize,
        id: ObjectId,
        len_bytes: usize,
        accepted: Result<(), Rejection>,
        now: Instant,
    ) {
        let (Some(fetch), Some(object)) = (self.fetches.get_mut(&id), self.objects.get_mut(&id))
        else {
            return;
        };
        fetch.on_chunk(len_bytes, accepted == Err(Rejection::Corrupt), now);
        match accepted {
            Ok(()) => {}
            Err(Rejection::NoMemory(reason)) => return self.fail(id, reason),
            Err(Rejection::OutOfPlace) => return self.next_source(id, now),
            Err(Rejection::Corrupt) if fetch.is_corrupt_again() => {
                self.cancel_at(Some(token), id);
                return self.next_source(id, now);
            }
            Err(Rejection::Corrupt) => {
                fetch.ask_again(now);
                return self.ask(id, now);
            }
        }
        let is_complete = object.is_complete();
        if let Some(progress) = fetch.report(object.have_bytes(), is_complete, false, now) {
            self.side.tell(News::Progress(progress));
        }
        if is_complete {
            self.finish(id);
        }
    }

    fn finish(&mut self, id: ObjectId) {
        self.fetches.remove(&id);
        let lease = self.objects.get(&id).and_then(Object::lease);
        let segment = lease.and_then(|lease| Some((lease.id(), lease.segment()?)));
        let Some((segment, memory)) = segment else {
            return;
        };
        match memory.fd().try_clone_to_owned() {
            Ok(fd) => {
                let segment_bytes = memory.len();
                self.side.tell(News::Ready {
                    object: id,
                    segment,
                    fd,
                    segment_bytes,
                });
            }
            Err(error) => self.fail(id, error.to_string()),
        }
    }
}
