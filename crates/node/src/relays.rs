//! The controller's links to relays: what the controller wants of the engines of other hosts goes
//! there, and what they have to say comes from there.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use broadleaf_core::{Input, Output};
use broadleaf_net::{Frame, LinkError};
use broadleaf_proto::relay::{self, AssignMany, RelayCommand, RelayEvent, RelayedDone};
use broadleaf_proto::task::OutputRecord;
use broadleaf_proto::wire::Reader;
use broadleaf_proto::{AssignRecord, DecodeError, EngineId, FrameKind, FunctionId, HostId};

use crate::node::Node;

/// Records of one batch that are looked through for one to join.
const OPEN_RECORDS: usize = 8;
/// Time between two heartbeats.
const HEARTBEAT: Duration = Duration::from_millis(500);

/// A relay's link, as the controller's node keeps it.
#[derive(Debug)]
pub struct RelayLink {
    /// Its connection.
    pub token: usize,
    /// Its host's name.
    pub name: String,
    /// Where other relays reach it for payload.
    pub listen: Option<String>,
    /// Functions it has, by id and content.
    functions: BTreeMap<FunctionId, broadleaf_proto::FunctionHash>,
    /// The number after the last offer sent to each engine there.
    next_offers: BTreeMap<EngineId, u32>,
    /// Assignments of this batch, not written yet.
    open: Vec<AssignMany>,
    heard: Instant,
    /// Last measured round trip, ns.
    pub round_trip_ns: u64,
}

/// The relays there are.
#[derive(Debug, Default)]
pub struct Relays {
    /// By host.
    pub links: BTreeMap<HostId, RelayLink>,
    /// Hosts with assignments that are not written yet.
    unsent: BTreeSet<HostId>,
    last: u32,
    pinged: Option<Instant>,
}

impl Relays {
    /// Takes a relay in; gives its host's number.
    pub fn insert(&mut self, token: usize, name: String, listen: Option<String>) -> HostId {
        self.last += 1;
        let host = HostId(self.last);
        let link = RelayLink {
            token,
            name,
            listen,
            functions: BTreeMap::new(),
            next_offers: BTreeMap::new(),
            open: Vec::new(),
            heard: Instant::now(),
            round_trip_ns: 0,
        };
        self.links.insert(host, link);
        host
    }
}

impl RelayLink {
    /// Adds an assignment to the batch: to a record with the same arguments, if the engine's order allows.
    fn assign(&mut self, engine: EngineId, record: AssignRecord) {
        self.next_offers
            .insert(engine, record.offer.wrapping_add(1));
        let offer = (engine, record.key, record.offer);
        for open in self.open.iter_mut().rev().take(OPEN_RECORDS) {
            let same = open.function == record.function
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
        self.open.push(AssignMany {
            offers: vec![offer],
            function: record.function,
            payload: record.payload,
        });
    }
}

/// The engine that an output is for.
fn engine_of(output: &Output) -> Option<EngineId> {
    match output {
        Output::Function { engine, .. }
        | Output::Assign { engine, .. }
        | Output::Revoke { engine, .. }
        | Output::Interrupt { engine, .. }
        | Output::Kill { engine, .. }
        | Output::Stop { engine }
        | Output::Spawn { engine } => Some(*engine),
        _ => None,
    }
}

impl Node {
    /// Sends what is for an engine of another host there; gives back what is not.
    pub(crate) fn relay_out(&mut self, output: Output) -> Option<Output> {
        let Some(engine) = engine_of(&output) else {
            return Some(output);
        };
        let host = self.decider.host_of(engine);
        if host == HostId::CONTROLLER {
            return Some(output);
        }
        // Its relay's link may just have closed: the controller hears of that next.
        let link = self.relays.links.get_mut(&host)?;
        let command = match output {
            Output::Assign { engine, record } => {
                link.assign(engine, record);
                self.relays.unsent.insert(host);
                return None;
            }
            Output::Function { engine, record } => {
                let (token, function) = (link.token, record.function);
                if link.functions.insert(function, record.hash) != Some(record.hash) {
                    let command = RelayCommand::Function {
                        function,
                        hash: record.hash,
                        body: record.body.to_vec(),
                    };
                    self.command(token, &command);
                }
                // Ahead of the batch, which is no harm: no task of the batch means another function by this id.
                self.command(token, &RelayCommand::GiveFunction { engine, function });
                return None;
            }
            Output::Revoke { engine, key, offer } => RelayCommand::Revoke { engine, key, offer },
            Output::Interrupt { engine, offer, .. } => RelayCommand::Interrupt { engine, offer },
            Output::Kill {
                engine,
                pid,
                signal,
            } => RelayCommand::Kill {
                engine,
                pid,
                signal,
            },
            Output::Stop { engine } => RelayCommand::Stop { engine },
            Output::Spawn { engine } => RelayCommand::Spawn { engine },
            other => return Some(other),
        };
        let token = link.token;
        self.send_assignments(host);
        self.command(token, &command);
        None
    }

    /// Queues a command for the relay at the other end of a connection.
    pub(crate) fn command(&mut self, token: usize, command: &RelayCommand) {
        self.append(token, FrameKind::RelayCommand, |frame| {
            relay::append(command, frame);
        });
    }

    /// Writes the assignments of this batch: one record for all engines of a host that share arguments.
    pub(crate) fn send_all_assignments(&mut self) {
        while let Some(host) = self.relays.unsent.pop_first() {
            self.send_assignments(host);
        }
    }

    fn send_assignments(&mut self, host: HostId) {
        let Some(link) = self.relays.links.get_mut(&host) else {
            return;
        };
        let token = link.token;
        for mut record in std::mem::take(&mut link.open) {
            self.segments.inline(&mut record.payload);
            self.append(token, FrameKind::AssignMany, |frame| record.encode(frame));
        }
    }

    /// Takes in one frame of a relay. What it says of engines that are not its own is not believed.
    pub(crate) fn on_relay_frame(
        &mut self,
        token: usize,
        host: HostId,
        frame: Frame,
    ) -> Result<(), LinkError> {
        if let Some(link) = self.relays.links.get_mut(&host) {
            link.heard = Instant::now();
        }
        let mut reader = Reader::new(frame.body.clone());
        match frame.kind {
            FrameKind::RelayedDone => {
                while !reader.is_empty() {
                    let RelayedDone { engine, record } = RelayedDone::decode(&mut reader)?;
                    self.check_host(host, engine)?;
                    self.ring.task(
                        engine.0,
                        record.key.0,
                        record.started_ns,
                        record.completed_ns,
                    );
                    self.input(Input::Done { engine, record });
                }
            }
            FrameKind::Output => {
                while !reader.is_empty() {
                    let record = OutputRecord::decode(&mut reader)?;
                    let engine = record.engine;
                    self.check_host(host, engine)?;
                    self.input(Input::Output { engine, record });
                }
            }
            FrameKind::RelayEvent => {
                for event in relay::decode_all(&frame.body)? {
                    self.on_relay_event(host, event)?;
                }
            }
            kind => return Err(DecodeError::UnknownKind(kind as u8).into()),
        }
        let _ = token;
        Ok(())
    }

    fn check_host(&self, host: HostId, engine: EngineId) -> Result<(), LinkError> {
        if self.decider.host_of(engine) == host {
            Ok(())
        } else {
            Err(DecodeError::Malformed.into())
        }
    }

    fn on_relay_event(&mut self, host: HostId, event: RelayEvent) -> Result<(), LinkError> {
        match event {
            RelayEvent::EngineUp(info) => {
                self.check_host(host, info.engine)?;
                if let Some(link) = self.relays.links.get_mut(&host) {
                    link.next_offers.remove(&info.engine);
                }
                self.input(Input::EngineUp { info });
            }
            RelayEvent::EngineDown {
                engine,
                mut unclaimed_offers,
                next_offer,
            } => {
                self.check_host(host, engine)?;
                // What was still on its way there when the engine left was never started either.
                let link = self.relays.links.get_mut(&host);
                let sent = link.and_then(|l| l.next_offers.remove(&engine));
                let on_the_way = sent.map_or(0, |sent| sent.wrapping_sub(next_offer));
                unclaimed_offers.extend((0..on_the_way).map(|n| next_offer.wrapping_add(n)));
                self.input(Input::EngineDown {
                    engine,
                    unclaimed_offers,
                });
            }
            RelayEvent::Revoked { engine, key, won } => {
                self.check_host(host, engine)?;
                self.input(Input::Revoked { engine, key, won });
            }
            RelayEvent::Spawner(event) => self.input(Input::Spawner(event)),
            RelayEvent::Fetched(_) | RelayEvent::FetchFailed { .. } => {}
            RelayEvent::Pong { sent_ns } => {
                let now_ns = self.epoch.elapsed().as_nanos() as u64;
                if let Some(link) = self.relays.links.get_mut(&host) {
                    link.round_trip_ns = now_ns.saturating_sub(sent_ns);
                }
            }
        }
        Ok(())
    }

    /// A relay's connection is gone.
    pub(crate) fn on_relay_gone(&mut self, host: HostId) {
        self.relays.links.remove(&host);
        self.relays.unsent.remove(&host);
        self.input(Input::HostDown { host });
    }

    /// When the next heartbeat is due; `None` where there is nobody to hear one.
    pub(crate) fn heartbeat_at(&self) -> Option<Instant> {
        let watched = !self.relays.links.is_empty() || self.decider.is_upstream();
        watched.then(|| self.relays.pinged.map_or_else(Instant::now, |at| at + HEARTBEAT))
    }

    /// Sends heartbeats that are due, and gives up on those who have not answered for too long.
    pub(crate) fn beat(&mut self) {
        let now = Instant::now();
        if self.heartbeat_at().is_none_or(|at| at > now) {
            return;
        }
        self.relays.pinged = Some(now);
        if self.is_controller_silent(now) {
            self.leave();
        }
        let sent_ns = self.epoch.elapsed().as_nanos() as u64;
        let most = self.config.options.host_timeout();
        let links: Vec<(usize, bool)> = self
            .relays
            .links
            .values()
            .map(|l| (l.token, now.duration_since(l.heard) > most))
            .collect();
        for (token, is_silent) in links {
            if is_silent {
                self.close(token);
            } else {
                self.command(token, &RelayCommand::Ping { sent_ns });
            }
        }
    }
}
