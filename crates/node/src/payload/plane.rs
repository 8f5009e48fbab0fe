//! The thread of the payload plane.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use broadleaf_core::admission::Admission;
use broadleaf_core::transfer::streams::Streams;
use broadleaf_net::seal::{ObjectKey, SealError};
use broadleaf_net::{Frame, LinkError};
use broadleaf_proto::relay::PayloadCommand;
use broadleaf_proto::{Chunk, DecodeError, FrameKind, HostId, ObjectId, control};
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;
use slab::Slab;

use super::connection::Connection;
use super::cores::Cores;
use super::fetch::Fetching;
use super::mover::Mover;
use super::object::Object;
use super::{NodeSide, PlaneCommand, PlaneEvent, Setup, silence, watch};
use crate::connections::arrivals::waiting_limit;

const ORDERS: u64 = u64::MAX;
pub(super) const LISTENER: u64 = u64::MAX - 1;
pub(super) const MOVER: u64 = u64::MAX - 2;

/// Time between two checks for stalled transfers, while any is under way.
const TICK: Duration = Duration::from_millis(50);
/// Number of bytes sent on one connection before the next one has its turn. If a network takes more than a core
/// encrypts, its socket is never full.
const TURN_BYTES: usize = 1024 * 1024;
/// How long a connection may take to be accepted.
const HELLO: Duration = Duration::from_secs(5);

/// See the module.
pub(super) struct PlaneThread {
    pub(super) setup: Setup,
    pub(super) side: NodeSide,
    pub(super) poller: OwnedFd,
    pub(super) connections: Slab<Connection>,
    pub(super) objects: BTreeMap<ObjectId, Object>,
    pub(super) fetches: BTreeMap<ObjectId, Fetching>,
    pub(super) mover: Mover,
    pub(super) streams: Streams,
    /// By host: until when no further connections are opened to it.
    pub(super) not_before: BTreeMap<HostId, Instant>,
    /// Buffer for blocks that nobody wants.
    pub(super) unwanted: Vec<u8>,
    /// Hosts that do not answer at the moment.
    pub(super) away: BTreeSet<HostId>,
    last_tick: Instant,
    pub(super) last_dialled: Option<Instant>,
    /// Connections that others have opened without introducing themselves yet.
    pub(super) admission: Admission,
    /// Whether nobody is accepted until the next tick.
    pub(super) is_shut: bool,
}

impl PlaneThread {
    pub(super) fn new(setup: Setup, side: NodeSide) -> std::io::Result<Self> {
        let poller = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        watch(&poller, side.doorbell.as_fd(), ORDERS)?;
        if let Some(listener) = &setup.listener {
            watch(&poller, listener.as_fd(), LISTENER)?;
        }
        Ok(Self {
            streams: Streams::new(setup.streams),
            not_before: BTreeMap::new(),
            setup,
            side,
            poller,
            connections: Slab::new(),
            objects: BTreeMap::new(),
            fetches: BTreeMap::new(),
            mover: Mover::new(),
            unwanted: Vec::new(),
            away: BTreeSet::new(),
            last_tick: Instant::now(),
            last_dialled: None,
            admission: Admission::new(waiting_limit(), 0),
            is_shut: false,
        })
    }

    /// Runs until it is told to stop.
    pub(super) fn run(mut self) {
        // Payload yields to everything else on the processor. Without permission for that, it runs anyway.
        let _ = rustix::process::nice(self.setup.niceness.into());
        let mut cores = Cores::new(self.setup.cores);
        let mut events = Vec::with_capacity(64);
        let mut has_more = false;
        loop {
            self.keep_controller();
            let longest = if has_more { Duration::ZERO } else { TICK };
            let timeout = (has_more || self.is_busy()).then_some(rustix::time::Timespec {
                tv_sec: 0,
                tv_nsec: i64::from(longest.subsec_nanos()),
            });
            events.clear();
            let room = rustix::buffer::spare_capacity(&mut events);
            match epoll::wait(&self.poller, room, timeout.as_ref()) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(_) => return, // Waiting is impossible; the node's own poller fails in the same way.
            }
            let now = Instant::now();
            for event in &events {
                match event.data.u64() {
                    ORDERS => {
                        silence(&self.side.doorbell);
                        if !self.obey(now) {
                            return;
                        }
                    }
                    LISTENER => self.accept(now),
                    MOVER => self.on_mover_ready(now),
                    token => self.on_ready(token as usize, event.flags, now),
                }
            }
            has_more = self.pump_all(now);
            if !self.open_all(now) {
                // Corrupt chunks are requested again.
                has_more |= self.pump_all(now);
            }
            has_more |= self.make_room(now);
            self.pump_mover(now);
            if now.duration_since(self.last_tick) >= TICK {
                self.last_tick = now;
                self.on_tick(now);
                self.on_stream_tick(now);
                self.on_mover_tick(now);
                self.listen_again();
                if self.moves_payload() {
                    cores.on_tick(now);
                }
            }
            // Sends what was queued since: the next event may be far off.
            has_more |= self.connections.iter().any(|(_, c)| c.has_unsent());
        }
    }

    fn is_busy(&self) -> bool {
        let is_owed = self.setup.dialer.is_some() && self.find(HostId::CONTROLLER).is_none();
        is_owed
            || self.is_shut
            || self.moves_payload()
            || self
                .connections
                .iter()
                .any(|(_, c)| !c.is_up || c.extra.is_some())
    }

    fn moves_payload(&self) -> bool {
        !self.fetches.is_empty()
            || self.mover.is_busy()
            || self.connections.iter().any(|(_, c)| c.is_serving())
    }

    fn obey(&mut self, now: Instant) -> bool {
        while let Ok(order) = self.side.orders.try_recv() {
            match order {
                PlaneCommand::Provide {
                    object,
                    bytes,
                    chunk_bytes,
                    memory,
                } => {
                    // Without a key, the object is refused to those who ask for it.
                    if let Ok(key) = self.key_of(object) {
                        let exported = Object::exported(object, bytes, memory, chunk_bytes, key);
                        self.objects.insert(object, exported);
                    }
                }
                PlaneCommand::Fetch { fetch, lease } => self.fetch(fetch, lease, now),
                PlaneCommand::Drop(object) => self.drop_object(object, now),
                PlaneCommand::Adopt { link, host } => {
                    if let Some(token) = self.add(Connection::new(*link, Some(host), true)) {
                        // Messages may have arrived together with the hello.
                        self.take_frames(token, now);
                    }
                }
                PlaneCommand::Mover { link, mover } => self.adopt_mover(*link, mover, now),
                PlaneCommand::Away { host, is_away } => self.on_away(host, is_away, now),
                PlaneCommand::Close(fds) => drop(fds),
                PlaneCommand::Stop => return false,
            }
        }
        true
    }

    // Objects

    pub(super) fn key_of(&self, object: ObjectId) -> Result<Option<ObjectKey>, SealError> {
        let secret = self.setup.secret.as_ref();
        secret.map(|s| ObjectKey::new(s, object)).transpose()
    }

    fn drop_object(&mut self, id: ObjectId, now: Instant) {
        self.leave_joined(id);
        if let Some(fetch) = self.fetches.remove(&id) {
            self.cancel_at(fetch.connection, id);
        }
        for (_, connection) in &mut self.connections {
            connection.cancel(id);
        }
        self.drop_at_mover(id, now);
        let lease = self.objects.remove(&id).and_then(Object::into_lease);
        if let Some(lease) = lease.and_then(|lease| self.mover.hold(id, lease)) {
            self.side.tell(PlaneEvent::Dropped(lease));
        }
    }

    // Connections

    fn on_ready(&mut self, token: usize, flags: EventFlags, now: Instant) {
        let Some(connection) = self.connections.get_mut(token) else {
            return;
        };
        connection.may_write |= flags.contains(EventFlags::OUT);
        if flags.intersects(EventFlags::IN | EventFlags::HUP | EventFlags::ERR) {
            if self.fill(token, now).is_err() {
                self.close(token, now);
                return;
            }
            self.take_frames(token, now);
        }
    }

    fn take_frames(&mut self, token: usize, now: Instant) {
        loop {
            let Some(connection) = self.connections.get_mut(token) else {
                return;
            };
            let result = match connection.link.next_frame() {
                Ok(Some(frame)) => self.on_frame(token, frame, now),
                Ok(None) => match connection.link.block() {
                    None => return,
                    Some(block) => match self.take_block(token, &block, now) {
                        Ok(false) => return,
                        Ok(true) => Ok(()),
                        Err(error) => Err(error),
                    },
                },
                Err(error) => Err(error),
            };
            if result.is_err() {
                self.close(token, now);
                return;
            }
        }
    }

    fn on_frame(&mut self, token: usize, frame: Frame, now: Instant) -> Result<(), LinkError> {
        let is_up = self.connections[token].is_up;
        match frame.kind {
            FrameKind::Hello if !is_up => self.on_hello(token, &frame),
            FrameKind::Welcome if !is_up => {
                self.on_welcome(token, now);
                Ok(())
            }
            FrameKind::PayloadCommand if is_up => {
                match control::decode(&frame.body)? {
                    PayloadCommand::Pull {
                        object,
                        offset_bytes,
                        pull,
                        round_trip_ns,
                        landing,
                    } => {
                        self.end_sending(token, Some(object), now);
                        let buffer_bytes = self.setup.socket_buffer_bytes;
                        self.connections[token].fit_buffer(round_trip_ns, buffer_bytes);
                        if let Some(landing) = landing {
                            self.connections[token].cancel(object);
                            self.on_mover_pull(token, (object, pull), offset_bytes, landing, now);
                        } else {
                            self.connections[token].pull(object, offset_bytes, pull, now);
                        }
                    }
                    PayloadCommand::Join {
                        object,
                        pull,
                        round_trip_ns,
                    } => self.on_join(token, (object, pull), round_trip_ns, now),
                    PayloadCommand::Dial { connections } => self.on_dial(token, connections, now),
                    PayloadCommand::Cancel { object } => {
                        self.connections[token].cancel(object);
                        self.end_sending(token, Some(object), now);
                    }
                    PayloadCommand::NoMover { object, pull } => {
                        self.on_no_mover(token, object, pull, now);
                    }
                    PayloadCommand::Refuse { object, pull } => {
                        let fetch = self.fetches.get(&object);
                        if fetch.is_some_and(|f| f.connection == Some(token) && f.pull == pull) {
                            self.next_source(object, now);
                        }
                    }
                    PayloadCommand::Waiting { object, .. } => {
                        let now_ns = self.mover.ns(now);
                        self.mover.flows.on_waiting(now_ns, object);
                    }
                }
                Ok(())
            }
            FrameKind::Chunk if is_up && self.setup.secret.is_none() => {
                self.on_chunk(token, &Chunk::decode(frame.body)?, now);
                Ok(())
            }
            kind => Err(DecodeError::UnknownKind(kind as u8).into()),
        }
    }

    /// Sends on every connection; returns whether one has more to send than its turn allowed.
    fn pump_all(&mut self, now: Instant) -> bool {
        let mut has_more = false;
        let mut failed = Vec::new();
        for (token, connection) in &mut self.connections {
            let Ok(is_turn_over) = connection.pump(&mut self.objects, TURN_BYTES, now) else {
                failed.push(token);
                continue;
            };
            has_more |= is_turn_over;
            let wants_write = connection.link.wants_write();
            if wants_write != connection.watches_write {
                connection.watches_write = wants_write;
                let flags = if wants_write {
                    EventFlags::IN | EventFlags::OUT
                } else {
                    EventFlags::IN
                };
                let data = EventData::new_u64(token as u64);
                // This can only fail for a descriptor that is not registered, and this one is.
                let _ = epoll::modify(&self.poller, connection.link.as_fd(), data, flags);
            }
        }
        for token in failed {
            self.close(token, now);
        }
        has_more
    }

    /// Drops a connection, and has the fetches that used it continue elsewhere.
    pub(super) fn close(&mut self, token: usize, now: Instant) {
        let Some(gone) = self.connections.try_remove(token) else {
            return;
        };
        self.admission.on_gone(token);
        self.end_sending(token, None, now);
        self.on_stream_gone(token, &gone, now);
        let is_refused = !gone.is_up && gone.extra.is_none();
        let used = |f: &Fetching| {
            f.connection == Some(token)
                || is_refused && f.connection.is_none() && f.source().map(|s| s.host) == gone.host
        };
        let orphans: Vec<ObjectId> = self
            .fetches
            .iter()
            .filter(|(_, f)| used(f))
            .map(|(id, _)| *id)
            .collect();
        for id in orphans {
            self.next_source(id, now);
        }
    }

    fn on_tick(&mut self, now: Instant) {
        let mut failed = Vec::new();
        for (token, connection) in &mut self.connections {
            let is_late = !connection.is_up && now.duration_since(connection.opened) > HELLO;
            if is_late || connection.on_tick(&self.objects, now).is_err() {
                failed.push(token);
            }
        }
        let mut silent = Vec::new();
        let mut unasked = Vec::new();
        for (id, fetch) in &mut self.fetches {
            let object = self.objects.get(id);
            let have_bytes = object.map_or(0, Object::have_bytes);
            if let Some(progress) = fetch.report(have_bytes, false, false, now) {
                self.side.tell(PlaneEvent::Progress(progress));
            }
            let connections = fetch.connections().filter_map(|t| self.connections.get(t));
            let heard = connections.map(|c| c.heard).max();
            if self.mover.flows.is_receiving(*id) {
                continue; // Its flow is checked separately.
            }
            if object.is_some_and(Object::has_gap) {
                continue; // One connection may be silent because another has not brought its part.
            }
            if fetch.is_silent(heard, now) {
                silent.push(*id);
            } else if fetch.connection.is_none() {
                unasked.push(*id);
            }
        }
        for id in silent {
            let fetch = self.fetches.get(&id);
            let asked: Vec<usize> = fetch.map_or(Vec::new(), |f| f.connections().collect());
            if asked.is_empty() {
                self.next_source(id, now);
            }
            // Connections that say nothing at all are of no use to anybody.
            failed.extend(asked);
        }
        failed.sort_unstable();
        failed.dedup();
        for token in failed {
            self.close(token, now);
        }
        for id in unasked {
            self.ask(id, now);
        }
    }
}
