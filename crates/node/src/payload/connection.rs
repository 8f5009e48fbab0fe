//! A payload connection: what it serves, and how much may wait on it.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use broadleaf_net::{Link, LinkError};
use broadleaf_proto::relay::PayloadCommand;
use broadleaf_proto::{FrameKind, HostId, ObjectId, control};

use super::object::Object;

/// Time between two signs of life to a host that waits for more of an object.
pub(super) const WAITING: Duration = Duration::from_millis(250);
/// How long a host may ask for an object that this host has not heard of: the command may still be
/// on its way.
pub(super) const UNKNOWN: Duration = Duration::from_secs(5);

/// Number of objects that one host may be sent at a time.
const MAX_STREAMS: usize = 4096;

/// An object being sent.
#[derive(Debug)]
struct Stream {
    object: ObjectId,
    pull: u32,
    offset_bytes: u64,
    /// When anything was last sent for it.
    spoke: Instant,
    asked: Instant,
}

/// See the module.
#[derive(Debug)]
pub struct Connection {
    /// The link that carries the bytes.
    pub link: Link,
    /// The peer at the other end, once that is proven.
    pub host: Option<HostId>,
    /// Whether both ends have said hello.
    pub is_up: bool,
    /// When a byte last arrived.
    pub heard: Instant,
    /// When the connection was opened.
    pub opened: Instant,
    /// Whether the poller watches for writability.
    pub watches_write: bool,
    /// Whether the poller has reported it since.
    pub may_write: bool,
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
            may_write: false,
            received_bytes: 0,
            streams: VecDeque::new(),
        }
    }

    /// Receives once; bytes of the current block go into `target`.
    ///
    /// # Errors
    /// The connection is unusable.
    pub fn fill(&mut self, target: Option<&mut [u8]>, now: Instant) -> Result<(), LinkError> {
        match target {
            Some(target) => self.link.fill_block(target)?,
            None => self.link.fill()?,
        };
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
    /// The connection is unusable.
    pub fn say(&mut self, command: &PayloadCommand) -> Result<(), LinkError> {
        let body = control::encode(command);
        self.link.send(FrameKind::PayloadCommand, &body, &[])
    }

    /// The other end wants an object from an offset on.
    pub fn pull(&mut self, object: ObjectId, offset_bytes: u64, pull: u32, now: Instant) {
        self.cancel(object);
        if self.streams.len() >= MAX_STREAMS {
            return; // It turns to another source if it hears nothing.
        }
        self.streams.push_back(Stream {
            object,
            pull,
            offset_bytes,
            spoke: now,
            asked: now,
        });
    }

    /// It no longer wants the object.
    pub fn cancel(&mut self, object: ObjectId) {
        self.streams.retain(|s| s.object != object);
    }

    /// Whether this connection serves anything.
    pub fn is_serving(&self) -> bool {
        !self.streams.is_empty()
    }

    /// Whether the peer will want a chunk that it has not received yet.
    pub fn wants(&self, object: ObjectId, offset_bytes: u64) -> bool {
        let wants = |s: &Stream| s.object == object && s.offset_bytes <= offset_bytes;
        self.streams.iter().any(wants)
    }

    /// Sends one chunk of each available object in turn, until the socket is full or `turn_bytes`
    /// were sent; returns whether the latter happened. The socket's own buffer limits how far the
    /// sender runs ahead of the receiver.
    ///
    /// The connection is unusable.
    pub fn pump(
        &mut self,
        objects: &mut BTreeMap<ObjectId, Object>,
        turn_bytes: usize,
        now: Instant,
    ) -> Result<bool, LinkError> {
        if self.watches_write && !self.may_write {
            return Ok(false);
        }
        self.may_write = false;
        let mut sent_bytes = 0;
        while self.link.flush()? && self.link.queued_bytes() == 0 {
            if sent_bytes >= turn_bytes {
                return Ok(true);
            }
            match self.send_next(objects, now)? {
                0 => break,
                chunk_bytes => sent_bytes += chunk_bytes,
            }
        }
        Ok(false)
    }

    /// Sends one chunk; returns its size.
    fn send_next(
        &mut self,
        objects: &mut BTreeMap<ObjectId, Object>,
        now: Instant,
    ) -> Result<usize, LinkError> {
        for _ in 0..self.streams.len() {
            let Some(mut stream) = self.streams.pop_front() else {
                break;
            };
            let object = objects.get_mut(&stream.object);
            let (mut sent_bytes, mut is_done) = (0, false);
            if let Some(object) = object {
                let (pull, offset_bytes) = (stream.pull, stream.offset_bytes);
                sent_bytes = object.send_chunk(&mut self.link, pull, offset_bytes)?;
                if sent_bytes > 0 {
                    stream.offset_bytes += sent_bytes as u64;
                    stream.spoke = now;
                }
                is_done = object.is_complete() && stream.offset_bytes >= object.have_bytes();
            }
            if !is_done {
                self.streams.push_back(stream);
            }
            if sent_bytes > 0 {
                return Ok(sent_bytes);
            }
        }
        Ok(0)
    }

    /// Tells waiting hosts that their object is still on its way, or that it will not arrive.
    ///
    /// The connection is unusable.
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
            let is_starved = known.is_none_or(|o| o.arrived_bytes() <= stream.offset_bytes);
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

#[cfg(test)]
#[allow(clippy::unwrap_used)] // a test fails by panicking
mod tests {
    use broadleaf_shm::Segment;

    use super::super::tests::{CHUNK, OBJECT};
    use super::*;

    #[test]
    fn a_turn_is_over_before_a_socket_that_takes_everything_is_full() {
        let data = vec![7; 2 * CHUNK as usize];
        let (segment, _) = Segment::create(data.len() as u64, &data).unwrap();
        let bytes = segment.map_readonly(0, data.len() as u64).unwrap();
        let mut objects =
            BTreeMap::from([(OBJECT, Object::exported(OBJECT, bytes, None, CHUNK, None))]);
        let (near, _far) = Link::pair().unwrap();
        let now = Instant::now();
        let mut connection = Connection::new(near, None, true);
        connection.pull(OBJECT, 0, 1, now);
        let mut chunks_after = |turn_bytes| {
            let is_turn_over = connection.pump(&mut objects, turn_bytes, now).unwrap();
            (
                is_turn_over,
                connection.link.counters().bytes_out / u64::from(CHUNK),
            )
        };
        assert_eq!(chunks_after(1), (true, 1));
        assert_eq!(chunks_after(CHUNK as usize + 1), (false, 2));
        assert_eq!(chunks_after(1), (false, 2));
    }
}
