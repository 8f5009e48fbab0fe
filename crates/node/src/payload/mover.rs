//! The connection to this host's mover, which receives and sends objects by MPI: carries out what [`Flows`] decides.

use std::collections::BTreeMap;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::Instant;

use broadleaf_core::transfer::flows::{Direction, Flows};
use broadleaf_net::{Link, LinkError};
use broadleaf_proto::mover::{Landing, MoverCommand, MoverEvent, MoverRank};
use broadleaf_proto::relay::PayloadCommand;
use broadleaf_proto::{DecodeError, FrameKind, ObjectId, control};
use broadleaf_shm::Lease;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::process::{Pid, PidfdFlags, Signal};

use super::PlaneEvent;
use super::connection::{UNKNOWN, WAITING};
use super::fetch::Fetching;
use super::object::Object;
use super::plane::{MOVER, PlaneThread};
use super::watch;

/// An object that another host wants by MPI.
#[derive(Debug)]
struct Wanted {
    /// The connection on which it was requested.
    token: usize,
    object: ObjectId,
    pull: u32,
    offset_bytes: u64,
    landing: Landing,
    /// Its flow, once the object is known here.
    flow: Option<u32>,
    /// When anything was last sent or reported for it.
    spoke: Instant,
    asked: Instant,
}

#[derive(Debug)]
struct Process {
    link: Link,
    /// Used to kill the mover: its process id may belong to another process by then.
    pidfd: Option<OwnedFd>,
    watches_write: bool,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Mover {
    pub(super) flows: Flows,
    process: Option<Process>,
    wanted: Vec<Wanted>,
    /// Memory of dropped objects that MPI may still read or write.
    held: BTreeMap<ObjectId, Lease>,
    epoch: Instant,
}

impl Mover {
    pub(super) fn new() -> Self {
        Self {
            flows: Flows::default(),
            process: None,
            wanted: Vec::new(),
            held: BTreeMap::new(),
            epoch: Instant::now(),
        }
    }

    pub(super) fn ns(&self, now: Instant) -> u64 {
        now.duration_since(self.epoch).as_nanos() as u64
    }

    /// Whether any transfer is under way.
    pub(super) fn is_busy(&self) -> bool {
        self.flows.is_busy() || !self.wanted.is_empty()
    }

    /// Holds the memory of a dropped object while MPI may use it, and returns it otherwise.
    pub(super) fn hold(&mut self, object: ObjectId, lease: Lease) -> Option<Lease> {
        if self.flows.holds(object) {
            self.held.insert(object, lease);
            return None;
        }
        Some(lease)
    }

    fn command(&mut self, command: &MoverCommand, fds: &[BorrowedFd<'_>]) -> bool {
        let Some(process) = &mut self.process else {
            return false;
        };
        let body = control::encode(command);
        process
            .link
            .send(FrameKind::MoverCommand, &body, fds)
            .is_ok()
    }

    fn stop_flows(&mut self, flows: Vec<u32>) {
        for flow in flows {
            // If the mover cannot be told, its next event shows that it is gone.
            self.command(&MoverCommand::Stop { flow }, &[]);
        }
    }

    fn kill(&self) {
        if let Some(pidfd) = self.process.as_ref().and_then(|p| p.pidfd.as_ref()) {
            // If it is gone already, its connection shows that.
            let _ = rustix::process::pidfd_send_signal(pidfd, Signal::KILL);
        }
    }
}

impl PlaneThread {
    /// A mover has said hello.
    pub(super) fn adopt_mover(&mut self, link: Link, mover: MoverRank, now: Instant) {
        let pid = link
            .peer_credentials()
            .and_then(|peer| Pid::from_raw(peer.pid?))
            // One that stands still is killed, and that is never this process.
            .filter(|pid| *pid != rustix::process::getpid());
        let pidfd = pid.and_then(|pid| rustix::process::pidfd_open(pid, PidfdFlags::empty()).ok());
        if self.mover.process.is_some() || watch(&self.poller, link.as_fd(), MOVER).is_err() {
            self.side.tell(PlaneEvent::MoverGone);
            return;
        }
        self.mover.process = Some(Process {
            link,
            pidfd,
            watches_write: false,
        });
        self.mover.flows.on_mover(mover);
        self.take_from_mover(now);
    }

    pub(super) fn on_mover_ready(&mut self, now: Instant) {
        let filled = match &mut self.mover.process {
            Some(process) => process.link.fill().map(drop),
            None => return,
        };
        // What it reported before it died still counts.
        self.take_from_mover(now);
        if filled.is_err() {
            self.lose_mover(now);
        }
    }

    fn take_from_mover(&mut self, now: Instant) {
        loop {
            let Some(process) = &mut self.mover.process else {
                return;
            };
            let event = match process.link.next_frame() {
                Ok(None) => return,
                Ok(Some(frame)) if frame.kind == FrameKind::MoverEvent => {
                    control::decode::<MoverEvent>(&frame.body).map_err(LinkError::from)
                }
                Ok(Some(frame)) => Err(DecodeError::UnknownKind(frame.kind as u8).into()),
                Err(error) => Err(error),
            };
            let taken = match event {
                Ok(MoverEvent::Moved { flow, end_bytes }) => self.on_moved(flow, end_bytes, now),
                Ok(MoverEvent::Ended { flow }) => {
                    self.on_ended(flow, now);
                    true
                }
                Err(_) => false,
            };
            if !taken {
                // A mover that reports such things might write anywhere.
                self.mover.kill();
                self.lose_mover(now);
                return;
            }
        }
    }

    fn on_moved(&mut self, flow: u32, end_bytes: u64, now: Instant) -> bool {
        let now_ns = self.mover.ns(now);
        let Some((id, from_bytes)) = self.mover.flows.on_moved(now_ns, flow, end_bytes) else {
            return true;
        };
        // The object was dropped, or has arrived completely.
        let (Some(fetch), Some(object)) = (self.fetches.get_mut(&id), self.objects.get_mut(&id))
        else {
            return true;
        };
        if !object.on_moved(end_bytes) {
            return false;
        }
        fetch.on_moved(end_bytes - from_bytes, now);
        self.on_here(id, now);
        true
    }

    fn on_ended(&mut self, flow: u32, now: Instant) {
        self.mover.wanted.retain(|w| w.flow != Some(flow));
        let Some((id, direction)) = self.mover.flows.on_ended(flow) else {
            return;
        };
        self.give_back(id);
        let is_wanted = self
            .fetches
            .get(&id)
            .is_some_and(|f| f.connection.is_none());
        if direction == Direction::In && is_wanted {
            self.ask(id, now);
        }
    }

    /// Releases memory that was held for a flow, after the last flow of its object.
    fn give_back(&mut self, id: ObjectId) {
        if !self.mover.flows.holds(id)
            && let Some(lease) = self.mover.held.remove(&id)
        {
            self.side.tell(PlaneEvent::Dropped(lease));
        }
    }

    /// The mover is gone: transfers by MPI continue over TCP, from the byte they had reached.
    fn lose_mover(&mut self, now: Instant) {
        let Some(process) = self.mover.process.take() else {
            return;
        };
        // This can only fail for a descriptor that is not registered, and this one is.
        let _ = epoll::delete(&self.poller, process.link.as_fd());
        drop(process);
        let ended = self.mover.flows.on_gone();
        for wanted in std::mem::take(&mut self.mover.wanted) {
            self.say_no_mover(wanted.token, wanted.object, wanted.pull);
        }
        for (id, direction) in ended {
            self.give_back(id);
            if direction == Direction::In {
                self.leave_mover(id, now);
            }
        }
        self.side.tell(PlaneEvent::MoverGone);
    }

    /// Asks the same host for an object again, over TCP.
    fn leave_mover(&mut self, id: ObjectId, now: Instant) {
        let arrived_bytes = self.objects.get(&id).map_or(0, Object::arrived_bytes);
        if let Some(fetch) = self.fetches.get_mut(&id) {
            let before = fetch.connection;
            fetch.leave_mover(arrived_bytes, now);
            self.cancel_at(before, id);
            self.ask(id, now);
        }
    }

    fn say_no_mover(&mut self, token: usize, object: ObjectId, pull: u32) {
        if let Some(connection) = self.connections.get_mut(token) {
            // The next event shows if the connection fails.
            let _ = connection.say(&PayloadCommand::NoMover { object, pull });
        }
    }

    // In

    /// Starts to receive an object by MPI if that is possible; returns what the sending host has to know.
    pub(super) fn receive_by_mover(
        &mut self,
        id: ObjectId,
        from: Option<MoverRank>,
        now: Instant,
    ) -> Option<Landing> {
        let object = self.objects.get(&id)?;
        let (have_bytes, len_bytes) = (object.have_bytes(), object.len_bytes());
        // Sealed chunks have to be opened first.
        if have_bytes < object.arrived_bytes() {
            return None;
        }
        let chunk_bytes = object.chunk_bytes();
        let piece_bytes = (self.setup.piece_bytes / chunk_bytes)
            .max(1)
            .saturating_mul(chunk_bytes);
        let (segment, _) = object.segment()?;
        let now_ns = self.mover.ns(now);
        let mover = &mut self.mover;
        let range = (have_bytes, len_bytes);
        let (flow, landing) = mover.flows.receive(now_ns, id, from, range, piece_bytes)?;
        let number = flow.flow;
        if !mover.command(&MoverCommand::Receive(flow), &[segment]) {
            mover.flows.on_ended(number);
            return None;
        }
        Some(landing)
    }

    /// Allocates memory for what MPI is to receive, a step for each object; returns whether one needs more at once.
    pub(super) fn make_room(&mut self, now: Instant) -> bool {
        for (flow, id, end_bytes) in self.mover.flows.wants_memory() {
            let Some(object) = self.objects.get_mut(&id) else {
                continue;
            };
            if let Err(error) = object.reserve_to(end_bytes) {
                self.fail(id, error.to_string());
                self.stops_receiving(id, now);
                continue;
            }
            let now_ns = self.mover.ns(Instant::now());
            if self.mover.flows.on_memory(now_ns, flow, end_bytes) {
                let word = MoverCommand::Ready { flow, end_bytes };
                self.mover.command(&word, &[]);
            }
        }
        !self.mover.flows.wants_memory().is_empty()
    }

    /// Whether MPI may still write to an object's memory; if so, it is told to stop, and the object is requested
    /// afterwards.
    pub(super) fn stops_receiving(&mut self, id: ObjectId, now: Instant) -> bool {
        if !self.mover.flows.is_receiving(id) {
            return false;
        }
        let now_ns = self.mover.ns(now);
        let flows = self.mover.flows.stop(now_ns, id, Some(Direction::In));
        self.mover.stop_flows(flows);
        true
    }

    /// An object is no longer needed.
    pub(super) fn drop_at_mover(&mut self, id: ObjectId, now: Instant) {
        let (ended, left) = std::mem::take(&mut self.mover.wanted)
            .into_iter()
            .partition::<Vec<_>, _>(|w| w.object == id && w.flow.is_some());
        self.mover.wanted = left;
        for wanted in ended {
            self.end_wanted(&wanted, now);
        }
        let now_ns = self.mover.ns(now);
        let flows = self.mover.flows.stop(now_ns, id, None);
        self.mover.stop_flows(flows);
        self.mover.flows.forget(id);
    }

    /// The host that was to send an object by MPI has nobody to send it.
    pub(super) fn on_no_mover(&mut self, token: usize, id: ObjectId, pull: u32, now: Instant) {
        let is_asked = |f: &Fetching| f.connection == Some(token) && f.pull == pull;
        if self.fetches.get(&id).is_some_and(is_asked) {
            let now_ns = self.mover.ns(now);
            for flow in self.mover.flows.abandon(now_ns, id) {
                self.mover.command(&MoverCommand::Abandon { flow }, &[]);
            }
            self.leave_mover(id, now);
        }
    }

    // Out

    /// Another host wants an object by MPI.
    pub(super) fn on_mover_pull(
        &mut self,
        token: usize,
        (object, pull): (ObjectId, u32),
        offset_bytes: u64,
        landing: Landing,
        now: Instant,
    ) {
        if !self.mover.flows.reaches(landing) {
            self.say_no_mover(token, object, pull);
            return;
        }
        self.mover.wanted.push(Wanted {
            token,
            object,
            pull,
            offset_bytes,
            landing,
            flow: None,
            spoke: now,
            asked: now,
        });
    }

    /// A host no longer wants what it asked for: one object, or all of them if none is named.
    pub(super) fn end_sending(&mut self, token: usize, object: Option<ObjectId>, now: Instant) {
        let of_it = |w: &Wanted| w.token == token && object.is_none_or(|id| id == w.object);
        let (ended, left) = std::mem::take(&mut self.mover.wanted)
            .into_iter()
            .partition::<Vec<_>, _>(of_it);
        self.mover.wanted = left;
        for wanted in ended {
            self.end_wanted(&wanted, now);
        }
    }

    /// Ends a transfer to another host, whose mover waits for the message that nothing more follows even if none came.
    fn end_wanted(&mut self, wanted: &Wanted, now: Instant) {
        let now_ns = self.mover.ns(now);
        let mover = &mut self.mover;
        let flow = wanted.flow.or_else(|| {
            let flow = mover
                .flows
                .send(now_ns, wanted.object, wanted.landing, (0, u64::MAX), 0)?;
            let number = flow.flow;
            mover
                .command(&MoverCommand::Send(flow), &[])
                .then_some(number)
        });
        if let Some(flow) = flow.filter(|flow| mover.flows.stop_one(now_ns, *flow)) {
            mover.command(&MoverCommand::Stop { flow }, &[]);
        }
    }

    /// Tells the mover what there is to send, and writes to it.
    pub(super) fn pump_mover(&mut self, now: Instant) {
        let now_ns = self.mover.ns(now);
        let mut wanted = std::mem::take(&mut self.mover.wanted);
        let mut unmapped = Vec::new();
        for one in &mut wanted {
            let Some(object) = self.objects.get(&one.object) else {
                continue;
            };
            let mover = &mut self.mover;
            if one.flow.is_none() {
                let Some((segment, at)) = object.segment() else {
                    unmapped.push((one.token, one.object, one.pull));
                    continue;
                };
                let range = (one.offset_bytes, object.len_bytes());
                let flow = mover.flows.send(now_ns, one.object, one.landing, range, at);
                one.flow = flow.as_ref().map(|flow| flow.flow);
                if let Some(flow) = flow {
                    mover.command(&MoverCommand::Send(flow), &[segment]);
                }
            }
            let end_bytes = object.have_bytes();
            if let Some(flow) = one.flow
                && mover.flows.on_ready(flow, end_bytes)
            {
                mover.command(&MoverCommand::Ready { flow, end_bytes }, &[]);
                one.spoke = now;
            }
        }
        for (token, object, pull) in unmapped {
            wanted.retain(|w| (w.token, w.object) != (token, object));
            self.say_no_mover(token, object, pull);
        }
        self.mover.wanted = wanted;
        let Some(process) = &mut self.mover.process else {
            return;
        };
        if process.link.flush().is_err() {
            self.lose_mover(now);
            return;
        }
        let wants_write = process.link.wants_write();
        if wants_write != process.watches_write {
            process.watches_write = wants_write;
            let flags = if wants_write {
                EventFlags::IN | EventFlags::OUT
            } else {
                EventFlags::IN
            };
            // This can only fail for a descriptor that is not registered, and this one is.
            let _ = epoll::modify(
                &self.poller,
                process.link.as_fd(),
                EventData::new_u64(MOVER),
                flags,
            );
        }
    }

    /// Checks for flows that make no progress.
    pub(super) fn on_mover_tick(&mut self, now: Instant) {
        let mut words = Vec::new();
        let (known, unknown) = std::mem::take(&mut self.mover.wanted)
            .into_iter()
            .partition::<Vec<_>, _>(|w| w.flow.is_some() || now.duration_since(w.asked) <= UNKNOWN);
        self.mover.wanted = known;
        for wanted in unknown {
            self.end_wanted(&wanted, now);
            let (object, pull) = (wanted.object, wanted.pull);
            words.push((wanted.token, PayloadCommand::Refuse { object, pull }));
        }
        for wanted in &mut self.mover.wanted {
            let is_here = self
                .objects
                .get(&wanted.object)
                .is_some_and(Object::is_complete);
            if !is_here && now.duration_since(wanted.spoke) >= WAITING {
                wanted.spoke = now;
                let (object, pull) = (wanted.object, wanted.pull);
                words.push((wanted.token, PayloadCommand::Waiting { object, pull }));
            }
        }
        for (token, word) in words {
            if let Some(connection) = self.connections.get_mut(token) {
                // The next event shows if the connection fails.
                let _ = connection.say(&word);
            }
        }
        let now_ns = self.mover.ns(now);
        if self.mover.flows.is_overdue(now_ns) {
            self.mover.kill();
        }
    }
}
