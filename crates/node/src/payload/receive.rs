//! Chunks that arrive: accepted, passed on, or rejected.

use std::collections::BTreeMap;
use std::time::Instant;

use broadleaf_net::LinkError;
use broadleaf_proto::{Block, Chunk, DecodeError, ObjectId};

use super::PlaneEvent;
use super::connection::Connection;
use super::fetch::Fetching;
use super::object::{Object, Rejection};
use super::plane::PlaneThread;

/// Bytes that may stay sealed for a slower child; beyond that they are opened, and sealed again for
/// that host.
const SEALED_BYTES: u64 = 4 * 1024 * 1024;

/// Whether a chunk answers the current pull, which was neither dropped nor abandoned while the
/// chunk was on its way.
fn is_wanted(
    fetches: &BTreeMap<ObjectId, Fetching>,
    token: usize,
    object: ObjectId,
    pull: u32,
) -> bool {
    let fetch = fetches.get(&object);
    fetch.is_some_and(|f| f.is_from(token, pull))
}

/// The memory for a block's bytes: the object's own, or a buffer to discard if nobody wants them.
fn target<'a>(
    fetches: &BTreeMap<ObjectId, Fetching>,
    objects: &'a mut BTreeMap<ObjectId, Object>,
    unwanted: &'a mut Vec<u8>,
    token: usize,
    block: &Block,
) -> &'a mut [u8] {
    let head = &block.head;
    if let Some(fetch) = fetches.get(&head.object)
        && fetch.is_from(token, head.pull)
        && let Some(object) = objects.get_mut(&head.object)
        && let Ok(target) = object.sealed_target(block, fetch.accepts())
    {
        return target;
    }
    unwanted.resize(block.len_bytes as usize, 0);
    unwanted
}

impl PlaneThread {
    /// Receives once, and once more if that was only the header of a block.
    pub(super) fn fill(&mut self, token: usize, now: Instant) -> Result<(), LinkError> {
        let connection = &mut self.connections[token];
        if connection.link.block().is_none() {
            connection.fill(None, now)?;
        }
        let Some(block) = connection.link.block() else {
            return Ok(());
        };
        if is_wanted(&self.fetches, token, block.head.object, block.head.pull) {
            self.on_answer(token, block.head.object, now);
        }
        let target = target(
            &self.fetches,
            &mut self.objects,
            &mut self.unwanted,
            token,
            &block,
        );
        self.connections[token].fill(Some(target), now)
    }

    fn on_answer(&mut self, token: usize, object: ObjectId, now: Instant) {
        let fetch = self.fetches.get_mut(&object);
        if let Some(took) = fetch.and_then(|f| f.on_answer(now)) {
            self.connections[token].on_round_trip(took);
            self.widen(object, now);
        }
    }

    /// Handles the received part of a block; returns whether that completes it.
    pub(super) fn take_block(
        &mut self,
        token: usize,
        block: &Block,
        now: Instant,
    ) -> Result<bool, LinkError> {
        let connection = &mut self.connections[token];
        if !connection.is_up {
            return Err(DecodeError::Malformed.into());
        }
        let target = target(
            &self.fetches,
            &mut self.objects,
            &mut self.unwanted,
            token,
            block,
        );
        if !connection.link.take_block(target)? {
            return Ok(false);
        }
        let id = block.head.object;
        if is_wanted(&self.fetches, token, id, block.head.pull)
            && let Some(fetch) = self.fetches.get_mut(&id)
            && let Some(object) = self.objects.get_mut(&id)
        {
            fetch.on_chunk(block.len_bytes as usize, now);
            if let Err(rejection) = object.on_sealed(block, fetch.accepts()) {
                self.on_rejected(id, rejection, now);
            }
        }
        Ok(true)
    }

    /// Accepts a chunk that was sent without encryption.
    pub(super) fn on_chunk(&mut self, token: usize, chunk: &Chunk, now: Instant) {
        let id = chunk.object;
        if is_wanted(&self.fetches, token, id, chunk.pull) {
            self.on_answer(token, id, now);
        }
        if is_wanted(&self.fetches, token, id, chunk.pull)
            && let Some(fetch) = self.fetches.get_mut(&id)
            && let Some(object) = self.objects.get_mut(&id)
        {
            fetch.on_chunk(chunk.bytes.len(), now);
            match object.accept(chunk, fetch.accepts()) {
                Ok(()) => self.on_checked(id, now),
                Err(rejection) => self.on_rejected(id, rejection, now),
            }
        }
    }

    /// Opens sealed chunks that no child still wants sealed; returns whether all of them were
    /// correct.
    pub(super) fn open_all(&mut self, now: Instant) -> bool {
        let mut was_right = true;
        let ids: Vec<ObjectId> = self.fetches.keys().copied().collect();
        for id in ids {
            while let Some(object) = self.objects.get_mut(&id)
                && let Some((offset_bytes, sealed_bytes)) = object.sealed()
            {
                let may_wait = sealed_bytes <= SEALED_BYTES && !object.has_arrived();
                let wants = |c: &Connection| c.wants(id, offset_bytes);
                if may_wait && self.connections.iter().any(|(_, c)| wants(c)) {
                    break;
                }
                match object.open_next() {
                    Ok(()) => self.on_checked(id, now),
                    Err(rejection) => {
                        was_right = false;
                        self.on_rejected(id, rejection, now);
                    }
                }
            }
        }
        was_right
    }

    /// Called after a chunk proved correct.
    fn on_checked(&mut self, id: ObjectId, now: Instant) {
        let Some(fetch) = self.fetches.get_mut(&id) else {
            return;
        };
        fetch.on_checked(false);
        self.on_here(id, now);
    }

    /// Called after more of an object has arrived.
    pub(super) fn on_here(&mut self, id: ObjectId, now: Instant) {
        let (Some(fetch), Some(object)) = (self.fetches.get_mut(&id), self.objects.get(&id)) else {
            return;
        };
        let is_complete = object.is_complete();
        if let Some(progress) = fetch.report(object.have_bytes(), is_complete, false, now) {
            self.side.tell(PlaneEvent::Progress(progress));
        }
        if is_complete {
            self.finish(id);
        }
    }

    /// Called after a chunk of a current pull was rejected.
    fn on_rejected(&mut self, id: ObjectId, rejection: Rejection, now: Instant) {
        let Some(fetch) = self.fetches.get_mut(&id) else {
            return;
        };
        match rejection {
            Rejection::NoMemory(reason) => self.fail(id, reason),
            Rejection::OutOfPlace => self.next_source(id, now),
            Rejection::Corrupt => {
                fetch.on_checked(true);
                if fetch.is_corrupt_again() {
                    let asked = fetch.connection;
                    self.cancel_at(asked, id);
                    self.next_source(id, now);
                } else {
                    fetch.ask_again(now);
                    self.ask(id, now);
                }
            }
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
                self.side.tell(PlaneEvent::Ready {
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
