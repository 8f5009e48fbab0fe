//! A payload connection: what it serves, and how much may wait on it.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use broadleaf_core::transfer::cost::may_limit;
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
    /// The next chunk's offset, shared by the connections over which the pull is answered.
    offset_bytes: Arc<AtomicU64>,
    /// When anything was last sent for it.
    spoke: Instant,
    asked: Instant,
}

impl Stream {
    fn offset_bytes(&self) -> u64 {
        // All connections belong to one thread.
        self.offset_bytes.load(Ordering::Relaxed)
    }
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
    /// Shortest time between a question and its answer.
    round_trip: Option<Duration>,
    /// Size of the send buffer; `None` while the kernel chooses it.
    buffer_bytes: Option<usize>,
    received_bytes: u64,
    /// Received bytes when [`Connection::take_received`] was last called.
    taken_bytes: u64,
    streams: VecDeque<Stream>,
    /// If this side dialled it although it had one to that host: when it was last seen in use.
    pub extra: Option<Instant>,
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
            round_trip: None,
            buffer_bytes: None,
            received_bytes: 0,
            taken_bytes: 0,
            streams: VecDeque::new(),
            extra: None,
        }
    }

    /// The other end answered after this time.
    pub fn on_round_trip(&mut self, took: Duration) {
        self.round_trip = Some(self.round_trip.map_or(took, |before| before.min(took)));
    }

    /// Measures how long the two kernels took to connect, when the first byte leaves: no process had to answer.
    fn on_connected(&mut self, now: Instant) -> Result<(), LinkError> {
        let is_dialling = !self.is_up && self.host.is_some() && self.round_trip.is_none();
        if !is_dialling {
            return Ok(());
        }
        self.link.flush()?;
        if self.link.counters().bytes_out > 0 {
            let took = now.duration_since(self.opened);
            self.on_round_trip(took.max(Duration::from_nanos(1)));
        }
        Ok(())
    }

    /// The shortest round trip so far; 0 while none was measured.
    pub fn round_trip_ns(&self) -> u64 {
        self.round_trip.map_or(0, |trip| trip.as_nanos() as u64)
    }

    /// The other end has measured a round trip. Unless a send buffer of this size would leave so long a link idle, no
    /// more than that will wait here. Otherwise the kernel goes on choosing the size: it stops once one is set.
    pub fn fit_buffer(&mut self, round_trip_ns: u64, buffer_bytes: usize) {
        let is_enough = round_trip_ns > 0 && may_limit(buffer_bytes, round_trip_ns);
        if self.buffer_bytes.is_some() || !is_enough {
            return;
        }
        self.buffer_bytes = Some(buffer_bytes);
        let socket = self.link.as_fd();
        // The kernel's size works too, only with longer queues.
        let _ = rustix::net::sockopt::set_socket_send_buffer_size(socket, buffer_bytes);
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

    /// Bytes received since the last call.
    pub fn take_received(&mut self) -> u64 {
        let before = std::mem::replace(&mut self.taken_bytes, self.received_bytes);
        self.received_bytes - before
    }

    /// Queues a command for the other end.
    ///
    /// # Errors
    /// The connection is unusable.
    pub fn say(&mut self, command: &PayloadCommand) -> Result<(), LinkError> {
        let body = control::encode(command);
        self.link.send(FrameKind::PayloadCommand, &body, &[])
    }

    /// Whether there is something to write that the poller does not watch for.
    pub fn has_unsent(&self) -> bool {
        self.link.wants_write() && !self.watches_write
    }

    /// The other end wants an object from an offset on.
    pub fn pull(&mut self, object: ObjectId, offset_bytes: u64, pull: u32, now: Instant) {
        self.join(object, Arc::new(AtomicU64::new(offset_bytes)), pull, now);
    }

    /// The offset that a pull has reached, if it is answered here.
    pub fn cursor(&self, object: ObjectId, pull: u32) -> Option<&Arc<AtomicU64>> {
        let is_it = |s: &&Stream| s.object == object && s.pull == pull;
        self.streams.iter().find(is_it).map(|s| &s.offset_bytes)
    }

    /// The other end wants chunks from an offset on that another connection shares.
    pub fn join(
        &mut self,
        object: ObjectId,
        offset_bytes: Arc<AtomicU64>,
        pull: u32,
        now: Instant,
    ) {
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

    /// The other end no longer wants the object.
    pub fn cancel(&mut self, object: ObjectId) {
        self.streams.retain(|s| s.object != object);
    }

    /// Whether this connection serves anything.
    pub fn is_serving(&self) -> bool {
        !self.streams.is_empty()
    }

    /// Whether the peer will want a chunk that it has not received yet.
    pub fn wants(&self, object: ObjectId, offset_bytes: u64) -> bool {
        let wants = |s: &Stream| s.object == object && s.offset_bytes() <= offset_bytes;
        self.streams.iter().any(wants)
    }

    /// Sends one chunk of each available object in turn, until the socket is full or `turn_bytes`
    /// were sent; returns whether the latter happened. The socket's own buffer limits how far the
    /// sender runs ahead of the receiver.
    ///
    /// # Errors
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
        self.on_connected(now)?;
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
                let (pull, mut offset_bytes) = (stream.pull, stream.offset_bytes());
                sent_bytes = object.send_chunk(&mut self.link, pull, offset_bytes)?;
                if sent_bytes > 0 {
                    offset_bytes += sent_bytes as u64;
                    stream.offset_bytes.store(offset_bytes, Ordering::Relaxed);
                    stream.spoke = now;
                }
                is_done = object.is_complete() && offset_bytes >= object.have_bytes();
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
    /// # Errors
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
            let is_starved = known.is_none_or(|o| o.arrived_bytes() <= stream.offset_bytes());
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
    fn what_waits_is_limited_once_a_round_trip_proves_short() {
        let (near, _far) = Link::pair().unwrap();
        let mut connection = Connection::new(near, None, true);
        let mut buffer_after = |round_trip_ns| {
            connection.fit_buffer(round_trip_ns, 64 * 1024);
            rustix::net::sockopt::socket_send_buffer_size(connection.link.as_fd()).unwrap()
        };
        let chosen_by_kernel = buffer_after(0);
        assert_ne!(chosen_by_kernel, 128 * 1024);
        assert_eq!(buffer_after(20_000_000), chosen_by_kernel);
        assert_eq!(buffer_after(100_000), 128 * 1024, "Linux doubles it");
    }

    #[test]
    fn the_shortest_round_trip_counts() {
        let (near, _far) = Link::pair().unwrap();
        let mut connection = Connection::new(near, None, true);
        assert_eq!(connection.round_trip_ns(), 0);
        for ms in [30, 20, 25] {
            connection.on_round_trip(Duration::from_millis(ms));
        }
        assert_eq!(connection.round_trip_ns(), 20_000_000);
    }

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
