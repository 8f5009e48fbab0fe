//! The controller's links to relays: orders for engines on other hosts leave here, and their
//! reports arrive here.

use std::collections::{BTreeMap, BTreeSet};

use broadleaf_core::journal::Members;
use broadleaf_core::liveness::Verdict;
use broadleaf_core::{GivenFunctions, Input};
use broadleaf_net::{Frame, LinkError};
use broadleaf_proto::host::EngineOrder;
use broadleaf_proto::relay::{self, AssignMany, Progress, RelayCommand, RelayEvent, RelayedDone};
use broadleaf_proto::resume::SessionKey;
use broadleaf_proto::task::{FunctionRecord, OutputRecord};
use broadleaf_proto::wire::Reader;
use broadleaf_proto::{
    AssignRecord, DecodeError, EngineId, FrameKind, HostId, ObjectId, RequestedTopology,
};

use crate::journal::Journal;
use crate::node::Node;

/// Number of records of one batch that are searched for one to join.
const OPEN_RECORDS: usize = 8;

/// A relay's link, as the controller's node keeps it.
#[derive(Debug)]
pub struct RelayLink {
    /// Its connection.
    pub token: usize,
    /// Its host's name.
    pub name: String,
    /// Where other relays reach it for payload.
    pub listen: Option<String>,
    /// Assignments of this batch that are not written yet.
    open: Vec<(AssignMany, RequestedTopology)>,
    /// Last measured round trip, ns.
    pub round_trip_ns: u64,
    /// Functions that it has, and that its engines may not have read.
    pub given: GivenFunctions,
    /// Payload that it received: objects, bytes over the wire, changes of parent, corrupt chunks.
    pub fetched: Fetched,
    /// It has yet to say what it has from the time of an earlier controller.
    pub is_rejoining: bool,
}

/// What a relay has fetched so far.
#[derive(Clone, Copy, Debug, Default)]
pub struct Fetched {
    /// Objects that are complete.
    pub objects: u64,
    /// Bytes that they took on the wire.
    pub wire_bytes: u64,
    /// Bytes received by MPI.
    pub mover_bytes: u64,
    /// Number of times that a fetch continued from another parent.
    pub resumptions: u64,
    /// The highest offset at which one did.
    pub resumed_at_bytes: u64,
    /// Number of chunks that were rejected.
    pub corrupt_chunks: u64,
    /// Time from the first chunk of the latest object to its end, ns.
    pub last_ns: u64,
}

/// The connected relays.
#[derive(Debug, Default)]
pub struct Relays {
    /// By host.
    pub links: BTreeMap<HostId, RelayLink>,
    /// The probe that measures the bandwidth to a host, while it is on its way.
    pub probe: Option<(ObjectId, HostId)>,
    /// Hosts with assignments that are not written yet.
    unsent: BTreeSet<HostId>,
    /// Hosts of an earlier controller that have not come back, with their names, by the keys of their links.
    pub awaited: BTreeMap<SessionKey, (HostId, String)>,
    last: u32,
}

impl Relays {
    /// Adds a relay.
    pub fn insert(
        &mut self,
        host: HostId,
        token: usize,
        name: String,
        listen: Option<String>,
        is_rejoining: bool,
    ) {
        let link = RelayLink {
            token,
            name,
            listen,
            open: Vec::new(),
            round_trip_ns: 0,
            given: GivenFunctions::default(),
            fetched: Fetched::default(),
            is_rejoining,
        };
        self.links.insert(host, link);
    }

    /// Numbers up to this one were given by earlier controllers.
    pub fn begin_after(&mut self, last: HostId) {
        self.last = last.0;
    }

    /// An unused number for a host, or for a client on one.
    pub fn next_host(&mut self) -> HostId {
        self.last += 1;
        HostId(self.last)
    }

    fn note_progress(&mut self, host: HostId, progress: &Progress) {
        let link = self.links.get_mut(&host);
        let Some(fetched) = link
            .map(|l| &mut l.fetched)
            .filter(|_| progress.is_complete)
        else {
            return;
        };
        let latest = progress.resumed_at.iter().copied().max().unwrap_or(0);
        fetched.objects += 1;
        fetched.wire_bytes = fetched.wire_bytes.saturating_add(progress.wire_bytes);
        fetched.mover_bytes = fetched.mover_bytes.saturating_add(progress.mover_bytes);
        fetched.resumptions += progress.resumed_at.len() as u64;
        fetched.resumed_at_bytes = fetched.resumed_at_bytes.max(latest);
        fetched.corrupt_chunks += u64::from(progress.corrupt_chunks);
        fetched.last_ns = progress.receiving_ns;
    }
}

impl RelayLink {
    /// Adds an assignment to the batch: to a record with the same arguments, if the engine's order
    /// allows.
    fn assign(&mut self, engine: EngineId, record: AssignRecord, requested: RequestedTopology) {
        let offer = (engine, record.key, record.offer);
        for (open, _) in self.open.iter_mut().rev().take(OPEN_RECORDS) {
            let same = open.function == record.function
                && open.depth == record.depth
                && open.payload.segments == record.payload.segments
                && open.payload.bytes.as_ptr() == record.payload.bytes.as_ptr()
                && open.payload.bytes.len() == record.payload.bytes.len();
            if same {
                open.offers.push(offer);
                return;
            }
            if open.offers.iter().any(|(other, ..)| *other == engine) {
                break;
            }
        }
        let many = AssignMany {
            offers: vec![offer],
            function: record.function,
            depth: record.depth,
            payload: record.payload,
        };
        self.open.push((many, requested));
    }

    /// Assignments that are not written yet, and how their payload should travel.
    pub fn open_records(&mut self) -> impl Iterator<Item = &mut (AssignMany, RequestedTopology)> {
        self.open.iter_mut()
    }
}

impl Node {
    /// The host of an engine, if a relay has it.
    pub(crate) fn relay_of(&self, engine: EngineId) -> Option<HostId> {
        let host = self.role.host_of(engine);
        (host != HostId::CONTROLLER).then_some(host)
    }

    /// Sends a task to an engine of another host.
    pub(crate) fn assign_there(
        &mut self,
        host: HostId,
        engine: EngineId,
        record: AssignRecord,
        topology: RequestedTopology,
    ) {
        // The relay's link may just have closed: the controller will be told next.
        if let Some(link) = self.relays.links.get_mut(&host) {
            link.assign(engine, record, topology);
            self.relays.unsent.insert(host);
        }
    }

    /// Sends a function to an engine of another host: its body once for all engines there.
    pub(crate) fn send_function_there(
        &mut self,
        host: HostId,
        engine: EngineId,
        record: &FunctionRecord,
    ) {
        let limit_bytes = self.config.options.function_cache_bytes;
        let Some(link) = self.relays.links.get_mut(&host) else {
            return;
        };
        let token = link.token;
        let given = link.given.give(record, limit_bytes);
        if given.sends_body {
            self.append(token, FrameKind::Function, |frame| record.encode(frame));
        }
        // This is sent ahead of the batch, which is harmless: no task of the batch means another
        // function by this id.
        let function = record.function;
        self.command(token, &RelayCommand::GiveFunction { engine, function });
        if given.pings {
            self.ping(host);
        }
    }

    /// Sends an order for an engine of another host, after the tasks that come before it.
    pub(crate) fn send_order(&mut self, host: HostId, order: EngineOrder) {
        if self.relays.unsent.remove(&host) {
            self.plan_transfers(&[host]);
            self.send_assignments(host);
        }
        self.tell_host(host, &RelayCommand::Order(order));
    }

    /// Lets relays drop the bodies of functions that nobody names any more.
    pub(crate) fn forget_functions(&mut self) {
        let freed = self.role.take_freed_functions(self.now_ns);
        if freed.is_empty() {
            return;
        }
        let mut tokens = Vec::new();
        for link in self.relays.links.values_mut() {
            link.given.forget(&freed);
            tokens.push(link.token);
        }
        let command = RelayCommand::ForgetFunctions(freed);
        for token in tokens {
            self.command(token, &command);
        }
    }

    /// Queues a command for the relay at the other end of a connection.
    pub(crate) fn command(&mut self, token: usize, command: &RelayCommand) {
        self.append(token, FrameKind::RelayCommand, |frame| {
            relay::append(command, frame);
        });
    }

    /// Writes the assignments of this batch: one record for all engines of a host that share
    /// arguments.
    pub(crate) fn send_all_assignments(&mut self) {
        if self.relays.unsent.is_empty() {
            return;
        }
        let hosts: Vec<HostId> = std::mem::take(&mut self.relays.unsent)
            .into_iter()
            .collect();
        self.plan_transfers(&hosts);
        for host in hosts {
            self.send_assignments(host);
        }
    }

    fn send_assignments(&mut self, host: HostId) {
        let Some(link) = self.relays.links.get_mut(&host) else {
            return;
        };
        let token = link.token;
        for (record, _) in std::mem::take(&mut link.open) {
            self.append(token, FrameKind::AssignMany, |frame| record.encode(frame));
        }
    }

    /// Handles one frame from a relay. The controller judges what it says about engines.
    pub(crate) fn on_relay_frame(&mut self, host: HostId, frame: &Frame) -> Result<(), LinkError> {
        if self.relays.links.get(&host).is_some_and(|l| l.is_rejoining) {
            return self.on_rejoined(host, frame);
        }
        self.on_host_heard(host);
        let mut reader = Reader::new(frame.body.clone());
        match frame.kind {
            FrameKind::RelayedDone => {
                while !reader.is_empty() {
                    let RelayedDone { engine, record } = RelayedDone::decode(&mut reader)?;
                    if self.role.host_of(engine) == host {
                        self.note_task(engine, &record);
                    }
                    self.on_relayed_done(host, engine, record)?;
                }
            }
            FrameKind::Output => {
                while !reader.is_empty() {
                    let record = OutputRecord::decode(&mut reader)?;
                    self.input(Input::Output {
                        host,
                        engine: record.engine,
                        record,
                    });
                }
            }
            FrameKind::RelayEvent => {
                for event in relay::messages(&frame.body) {
                    self.on_relay_event(host, event?)?;
                }
            }
            kind => return Err(DecodeError::UnknownKind(kind as u8).into()),
        }
        Ok(())
    }

    fn on_relay_event(&mut self, host: HostId, event: RelayEvent) -> Result<(), LinkError> {
        match event {
            RelayEvent::Report(report) => {
                if let Some(report) = self.returning.on_report(self.now_ns, host, report) {
                    self.input(Input::Report { host, report });
                }
            }
            RelayEvent::Fetched(progress) => {
                let mut orders = Vec::new();
                let transfers = &mut self.objects.transfers;
                transfers.on_progress(self.now_ns, host, &progress, &mut orders);
                self.carry_out_transfers(orders);
                if !self.is_probe(progress.object) {
                    self.relays.note_progress(host, &progress);
                } else if progress.is_complete {
                    self.end_probe(host, progress.object);
                }
            }
            RelayEvent::FetchFailed { object, .. } => {
                let mut orders = Vec::new();
                let transfers = &mut self.objects.transfers;
                transfers.on_failed(host, object, &mut orders);
                self.carry_out_transfers(orders);
                self.end_probe(host, object);
            }
            RelayEvent::Mover(mover) => self.objects.transfers.on_mover(host, mover),
            RelayEvent::Pong {
                sent_ns,
                unread_bytes,
            } => {
                let now_ns = self.epoch.elapsed().as_nanos() as u64;
                // It cannot have answered a ping that it was not sent.
                let round_trip_ns = self.liveness.answered(now_ns, host, sent_ns);
                let ns = round_trip_ns.ok_or(DecodeError::Malformed)?;
                let mut is_first = false;
                if let Some(link) = self.relays.links.get_mut(&host) {
                    link.given.on_pong(sent_ns, unread_bytes);
                    is_first = std::mem::replace(&mut link.round_trip_ns, ns) == 0;
                }
                self.objects.transfers.on_round_trip(host, ns);
                // Only once per host: one that cannot be sent a probe must not be tried again and
                // again.
                if is_first {
                    self.probe_bandwidth(host);
                }
            }
            RelayEvent::EndsSoon { ends_in_ns } => {
                self.input(Input::HostEnds { host, ends_in_ns });
            }
            RelayEvent::Measured(counts) => self.input(Input::Measured { host, counts }),
            RelayEvent::Rejoined(_) => return Err(DecodeError::Malformed.into()),
        }
        Ok(())
    }

    /// The first frame of a relay that this controller has inherited.
    fn on_rejoined(&mut self, host: HostId, frame: &Frame) -> Result<(), LinkError> {
        let mut events = relay::messages(&frame.body);
        let first = events.next().transpose()?;
        let (FrameKind::RelayEvent, Some(RelayEvent::Rejoined(holdings))) = (frame.kind, first)
        else {
            return Err(DecodeError::Malformed.into());
        };
        if let Some(link) = self.relays.links.get_mut(&host) {
            link.is_rejoining = false;
        }
        self.relays
            .awaited
            .retain(|_, (awaited, _)| *awaited != host);
        self.input(Input::HostRejoined { host, holdings });
        self.on_host_heard(host);
        for event in events {
            self.on_relay_event(host, event?)?;
        }
        Ok(())
    }

    /// This node has the controller, and an earlier one had these hosts: they may come back.
    pub(crate) fn restore(&mut self, members: Members) {
        let Some(facts) = self.journal.as_ref().map(Journal::facts) else {
            return;
        };
        self.relays.begin_after(facts.last_host());
        self.next_client = facts.next_client().0;
        self.objects.begin_after(members.n_before);
        let names: BTreeMap<HostId, &String> =
            members.hosts.iter().map(|m| (m.host, &m.name)).collect();
        for (session, host) in facts.sessions() {
            if let Some(name) = names.get(&host) {
                let name = (*name).clone();
                self.relays.awaited.insert(session, (host, name));
            }
        }
        self.read_clock();
        for member in &members.hosts {
            self.liveness.on_up(self.now_ns, member.host);
            self.liveness.on_broken(self.now_ns, member.host, false);
        }
        if members.n_before > 0 {
            self.input(Input::Restored { members });
        }
    }

    /// A relay's connection is gone, or it has not come back to the controller that was started again.
    pub(crate) fn on_relay_gone(&mut self, host: HostId) {
        self.relays.links.remove(&host);
        self.relays
            .awaited
            .retain(|_, (awaited, _)| *awaited != host);
        self.liveness.on_down(host);
        self.relays.unsent.remove(&host);
        self.drop_values(host);
        let mut orders = Vec::new();
        self.objects.transfers.on_host_down(host, &mut orders);
        self.carry_out_transfers(orders);
        if let Some((object, _)) = self.relays.probe.filter(|(_, to)| *to == host) {
            self.end_probe(host, object);
        }
        self.input(Input::HostDown { host });
    }

    /// Sends the pings that are due, and closes the links of hosts that have been silent for too long.
    pub(crate) fn judge_hosts(&mut self) {
        let mut verdicts = Vec::new();
        if !self.liveness.on_tick(self.now_ns, &mut verdicts) {
            return;
        }
        if !self.role.is_relay() {
            self.objects.abandon_unwanted();
        }
        for verdict in verdicts {
            match verdict {
                Verdict::Ask(host) => self.ping(host),
                Verdict::Silent(HostId::CONTROLLER) => self.dial_again(),
                Verdict::Silent(host) => self.on_host_silent(host),
                Verdict::Gone(HostId::CONTROLLER) => self.leave(),
                Verdict::Gone(host) => match self.relays.links.get(&host).map(|link| link.token) {
                    Some(token) => self.close(token),
                    None => self.on_relay_gone(host),
                },
            }
        }
    }

    /// Tells all who might come back that the cluster stops.
    pub(crate) fn dismiss_all(&mut self) {
        let tokens: Vec<usize> = self.sessions.values().copied().collect();
        for token in tokens {
            self.say_goodbye(token);
        }
    }

    fn ping(&mut self, host: HostId) {
        let sent_ns = self.epoch.elapsed().as_nanos() as u64;
        self.liveness.asked(sent_ns, host);
        if let Some(link) = self.relays.links.get_mut(&host) {
            link.given.on_ping(sent_ns);
            let token = link.token;
            self.command(token, &RelayCommand::Ping { sent_ns });
        }
    }
}
