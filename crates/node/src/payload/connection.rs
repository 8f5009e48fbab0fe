//! A payload connection: what it serves, and how much of it may wait.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use broadleaf_net::{Link, LinkError};
use broadleaf_proto::relay::PayloadCommand;
use broadleaf_proto::{FrameKind, HostId, ObjectId, SealedHead, control};

use super::object::Object;

/// Bytes that may be encoded and not yet taken by the socket: with the socket's own buffer, the
/// credit of the receiver.
const OUTBOX_BYTES: usize = 64 * 1024;
/// The same of chunks passed on, each of which was paid for with a copy instead of an encryption.
const PASSED_BYTES: usize = 256 * 1024;
/// Time between two words to one who waits for more of an object.
const WAITING: Duration = Duration::from_millis(250);
/// Time that one may ask for an object that this host has not heard of: its order may come yet.
const UNKNOWN: Duration = Duration::from_secs(5);

/// An object on its way out.
#[derive(Debug)]
struct Stream {
    object: ObjectId,
    pull: u32,
    offset_bytes: u64,
    /// When anything was last sent for it.
    spoke: Instant,
    asked: Instant,
}

impl Stream {
    fn on_sent(&mut self, bytes: usize, now: Instant) {
        self.offset_bytes += bytes as u64;
        self.spoke = now;
    }
}

/// See the module.
#[derive(Debug)]
pub struct Connection {
    /// The bytes' way.
    pub link: Link,
    /// Who is at the other end, once that is proven.
    pub host: Option<HostId>,
    /// Whether both have said hello.
    pub is_up: bool,
    /// When a byte last came in.
    pub heard: Instant,
    /// When it was opened.
    pub opened: Instant,
    /// Whether the poller watches for room to write.
    pub watches_write: bool,
    received_bytes: u64,
    streams: VecDeque<Stream>,
}

impl Connection {
    /// A connection that was just opened.
    pub fn new(link: Link, host: Option<HostId>, is_up: bool) -> Self {
        let now = Instant::now();
        Self {
            link,
            host,
            is_up,
            heard: now,
            opened: now,
            watches_write: false,
            received_bytes: 0,
            streams: VecDeque::new(),
        }
    }

    /// Receives once.
    ///
    /// # Errors
    /// When the connection is of no more use.
    pub fn fill(&mut self, now: Instant) -> Result<(), LinkError> {
        self.link.fill()?;
        let received_bytes = self.link.counters().bytes_in;
        if received_bytes != self.received_bytes {
            self.received_bytes = received_bytes;
            self.heard = now;
        }
        Ok(())
    }

    /// Says something.
    ///
    /// # Errors
    /// When the connection is of no more use.
    pub fn say(&mut self, command: &PayloadCommand) -> Result<(), LinkError> {
        let body = control::encode(command);
        self.link.send(FrameKind::PayloadCommand, &body, &[])
    }

    /// The other end wants an object from an offset on.
    pub fn pull(&mut self, object: ObjectId, offset_bytes: u64, pull: u32, now: Instant) {
        self.cancel(object);
        self.streams.push_back(Stream {
            object,
            pull,
            offset_bytes,
            spoke: now,
            asked: now,
        });
    }

    /// It wants no more of it.
    pub fn cancel(&mut self, object: ObjectId) {
        self.streams.retain(|s| s.object != object);
    }

    /// Whether it serves anything.
    pub fn is_serving(&self) -> bool {
        !self.streams.is_empty()
    }

    /// Sends what there is and may be sent, a chunk of each object in turn.
    ///
    /// # Errors
    /// When the connection is of no more use.
    pub fn pump(
        &mut self,
        objects: &mut BTreeMap<ObjectId, Object>,
        now: Instant,
    ) -> Result<(), LinkError> {
        loop {
            while self.link.queued_bytes() < OUTBOX_BYTES && self.send_next(objects, now)? {}
            if !self.link.flush()? || self.link.queued_bytes() > 0 {
                return Ok(());
            }
            if !self.has_next(objects) {
                return Ok(());
            }
        }
    }

    fn has_next(&self, objects: &BTreeMap<ObjectId, Object>) -> bool {
        self.streams.iter().any(|s| {
            let have = objects.get(&s.object).map_or(0, Object::have_bytes);
            have > s.offset_bytes
        })
    }

    fn send_next(
        &mut self,
        objects: &mut BTreeMap<ObjectId, Object>,
        now: Instant,
    ) -> Result<bool, LinkError> {
        for _ in 0..self.streams.len() {
            let Some(mut stream) = self.streams.pop_front() else {
                break;
            };
            let object = objects.get_mut(&stream.object);
            let (mut sent, mut is_done) = (false, false);
            if let Some(object) = object {
                let (pull, offset_bytes) = (stream.pull, stream.offset_bytes);
                let sent_bytes = object.send_chunk(&mut self.link, pull, offset_bytes)?;
                if sent_bytes > 0 {
                    sent = true;
                    stream.on_sent(sent_bytes, now);
                }
                is_done = object.is_complete() && stream.offset_bytes >= object.have_bytes();
            }
            if !is_done {
                self.streams.push_back(stream);
            }
            if sent {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Queues a sealed chunk as it came, where it is what comes next here and there is room; whether it did.
    ///
    /// # Errors
    /// When the connection is of no more use.
    pub fn pass_on(
        &mut self,
        head: &SealedHead,
        sealed: &[u8],
        now: Instant,
    ) -> Result<bool, LinkError> {
        let is_next =
            |s: &&mut Stream| s.object == head.object && s.offset_bytes == head.offset_bytes;
        let has_room = self.link.queued_bytes() < PASSED_BYTES;
        let Some(stream) = self.streams.iter_mut().find(is_next).filter(|_| has_room) else {
            return Ok(false);
        };
        let head = SealedHead {
            pull: stream.pull,
            ..*head
        };
        self.link
            .send_block(SealedHead::BYTES + sealed.len(), |block| {
                let (front, body) = block.split_at_mut(SealedHead::BYTES);
                front.copy_from_slice(&head.encode());
                body.copy_from_slice(sealed);
                Ok(())
            })?;
        stream.on_sent(sealed.len(), now);
        Ok(true)
    }

    /// Unsays what was just passed on.
    pub fn take_back(&mut self, head: &SealedHead, len_bytes: usize) {
        self.link.take_back_block(SealedHead::BYTES + len_bytes);
        for stream in self.streams.iter_mut().filter(|s| s.object == head.object) {
            stream.offset_bytes = head.offset_bytes;
        }
    }

    /// Tells those who wait that they wait for good reason, and those who wait for nothing so.
    ///
    /// # Errors
    /// When the connection is of no more use.
    pub fn on_tick(
        &mut self,
        objects: &BTreeMap<ObjectId, Object>,
        now: Instant,
    ) -> Result<(), LinkError> {
        let mut words = Vec::new();
        let is_idle = self.link.queued_bytes() == 0;
        self.streams.retain_mut(|stream| {
            let (object, pull) = (stream.object, stream.pull);
            let known = objects.get(&object);
            if known.is_none() && now.duration_since(stream.asked) > UNKNOWN {
                words.push(PayloadCommand::Refuse { object, pull });
                return false;
            }
            let is_starved = known.is_none_or(|o| o.have_bytes() <= stream.offset_bytes);
            if is_idle && is_starved && now.duration_since(stream.spoke) >= WAITING {
                stream.spoke = now;
                words.push(PayloadCommand::Waiting { object, pull });
            }
            true
        });
        for word in &words {
            self.say(word)?;
        }
        Ok(())
    }
}
