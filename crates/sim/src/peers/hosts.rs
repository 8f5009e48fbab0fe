//! Simulated relays: hosts whose engines reach the driver over one link, and are lost with it.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use broadleaf_core::recording::{Recorded, Start};
use broadleaf_core::relay::{Arguments, Freed, Relay, RelayAction, is_awaited};
use broadleaf_core::{GivenFunctions, Input, Nanos};
use broadleaf_proto::Mode;
use broadleaf_proto::control::{EngineInfo, ForkServerEvent, ForkServerOrder};
use broadleaf_proto::host::{EngineOrder, EngineReport};
use broadleaf_proto::ids::{EngineId, HostId, SegmentId};
use broadleaf_proto::relay::{HostCounts, RelayCommand};
use broadleaf_proto::task::{AssignRecord, FunctionRecord, Payload};

use crate::Mutation;
use crate::cluster::{Cluster, EngineMessage, Event, Link, NodeEvent};
use crate::peers::engine::{EngineProcess, Slot};
use crate::peers::links::{LinkEvent, LinkInput};
use crate::replay::Text;
use crate::work::job::index_of;

const MS: Nanos = 1_000_000;

/// One relay.
#[derive(Clone, Debug, Default)]
pub(crate) struct Host {
    /// Which of the plan's hosts it is: a later relay of the same host takes over its slots.
    pub name: u32,
    /// How much time its batch job had when it connected.
    pub had_ns: Option<Nanos>,
    /// It was asked for the figures of its host, and no answer has arrived.
    pub owes_figures: bool,
    /// Processes that are linked, by slot.
    pub linked: BTreeMap<EngineId, u32>,
    /// The machine that decides there.
    pub relay: Recorded<Relay, Text>,
    /// Whether its fork server has connected.
    has_fork_server: bool,
    /// Functions that were sent there.
    given: GivenFunctions,
    /// Arguments that are there, or on their way.
    objects: BTreeMap<SegmentId, Arguments>,
}

impl Host {
    fn arguments(&self, payload: &Payload) -> Arguments {
        arguments(&self.objects, payload)
    }
}

fn arguments(objects: &BTreeMap<SegmentId, Arguments>, payload: &Payload) -> Arguments {
    let states = payload.segments.iter().map(|range| {
        let state = objects.get(&range.segment).cloned();
        state.unwrap_or_else(|| Arguments::Failed("dropped".to_owned()))
    });
    let mut states = states.filter(|state| *state != Arguments::Here);
    states.next().unwrap_or(Arguments::Here)
}

/// What arrives at a relay.
#[derive(Clone, Debug)]
pub(crate) enum RelayMessage {
    Assign(EngineId, AssignRecord),
    Function(FunctionRecord),
    Command(RelayCommand),
    Ping,
}

impl Cluster {
    /// A relay of that host dials in, unless one with its name is connected.
    pub(crate) fn start_host(&mut self, name: u32) {
        if self.stopping || self.finished || self.hosts.values().any(|h| h.name == name) {
            return;
        }
        self.last_host += 1;
        let host = HostId(self.last_host);
        let relay = Host {
            name,
            relay: Recorded::new(Relay::default(), self.recording(Start::Relay)),
            ..Host::default()
        };
        self.hosts.insert(host, relay);
        let starts_in = self.random.time(50 * MS);
        self.after(starts_in, Event::RelayForkServerStarts(host));
        self.open_link(host, name);
        if self.random.chance(self.plan.breaking_link_percent) {
            let breaks_in = self.random.below(self.plan.busy_ns);
            self.after(breaks_in, Event::Link(LinkEvent::Breaks(host)));
        }
        let ends_in_ns = self.end_of_host(host);
        let up = Input::HostUp {
            host,
            name: format!("host {name}"),
            n_engines: self.plan.engines_per_host,
            n_cores: self.plan.cores_per_host,
            ends_in_ns,
        };
        self.host_says(host, NodeEvent::Input(up));
    }

    /// Some hosts run in a batch job, which ends when announced, or earlier.
    fn end_of_host(&mut self, host: HostId) -> Option<Nanos> {
        let percent = self.plan.ending_host_percent;
        if !self.random.chance(percent) {
            if percent > 0 && self.random.chance(percent / 4) {
                let left = MS + self.random.time(3_000 * MS);
                self.end_after_notice(host, left);
            }
            return None;
        }
        let left = MS + self.random.time(3_000 * MS);
        let early = if self.random.chance(30) {
            self.random.below(left)
        } else {
            0
        };
        if self.random.chance(50) {
            self.end_after_notice(host, left - early);
        } else {
            self.after(left - early, Event::HostEnds(host));
        }
        if let Some(host) = self.hosts.get_mut(&host) {
            host.had_ns = Some(left);
        }
        Some(left)
    }

    /// The batch scheduler ends the host after this time, and announces it first.
    fn end_after_notice(&mut self, host: HostId, after: Nanos) {
        let notice = self.random.below(after);
        self.after(after - notice, Event::HostIsTold(host, notice));
        self.after(after, Event::HostEnds(host));
    }

    pub(crate) fn warn_host(&mut self, host: HostId, ends_in_ns: Nanos) {
        if let Some(told) = self.hosts.get_mut(&host) {
            told.had_ns.get_or_insert(ends_in_ns);
            self.relay_says(host, Input::HostEnds { host, ends_in_ns });
        }
    }

    /// A relay that is no longer needed leaves; another one with its name may connect.
    pub(crate) fn release_host(&mut self, host: HostId) {
        if self.hosts.contains_key(&host) {
            self.released += 1;
            if self.close_host(host) {
                self.host_losses -= 1; // No engine was lost with it.
            }
        }
    }

    /// Whether a task may go to an engine: not to one whose host may end before the task, nor to
    /// one that drains, unless the task must run there or is nested.
    pub(crate) fn check_offer(
        &self,
        engine: EngineId,
        record: &AssignRecord,
    ) -> Result<(), String> {
        let job = &self.jobs[index_of(&record.payload.bytes) as usize];
        if job.options.mode == Mode::Each {
            return Ok(());
        }
        let counters = self.controller.counters();
        let known = &counters.engines[engine.0 as usize];
        if !known.up && record.depth == 0 {
            return Err(format!("a task for {engine:?}, which is {}", known.state));
        }
        let host = self.controller.host_of(engine);
        if self.links_to_hosts.is_away(host) {
            return Err(format!("a task for {engine:?}, whose host is away"));
        }
        let ends_at = counters.hosts.iter().find(|h| h.host == host);
        let left = ends_at.and_then(|h| h.ends_at);
        let left = left.map(|at| at.saturating_sub(self.now));
        let had = self.hosts.get(&host).and_then(|h| h.had_ns);
        match (job.options.timeout_ns, left, had) {
            (Some(needs), Some(left), Some(had)) if needs > left && needs <= had => Err(format!(
                "a task of {needs} ns for {engine:?}, whose host has {left} ns left"
            )),
            _ => Ok(()),
        }
    }

    pub(crate) fn host_says(&mut self, host: HostId, event: NodeEvent) {
        self.send(Link::FromHost(host), Event::Node(event));
    }

    /// A relay tells the driver something.
    pub(crate) fn relay_says(&mut self, host: HostId, input: Input) {
        self.host_says(host, NodeEvent::FromRelay(host, input));
    }

    /// A relay is gone, and its engines with it: at once, or when they notice.
    pub(crate) fn lose_host(&mut self, host: HostId) {
        let Some(name) = self.hosts.get(&host).map(|relay| relay.name) else {
            return;
        };
        if self.end_link(host) {
            self.cut.remove(&Link::FromHost(host));
            self.host_says(host, NodeEvent::Input(Input::HostDown { host }));
            // The next relay with its name connects once the driver has noticed the end of this one.
            let seen = self.last_arrival[&Link::FromHost(host)] - self.now;
            let delay = seen + 1 + self.random.time(500 * MS);
            self.after(delay, Event::HostStarts(name));
        }
        self.end_host(host);
    }

    /// The processes of a host end.
    pub(crate) fn end_host(&mut self, host: HostId) {
        if self.hosts.remove(&host).is_none() {
            return;
        }
        self.interrupts.remove(&host);
        self.host_losses += 1;
        self.cut.insert(Link::FromHost(host));
        self.cut.insert(Link::ToHost(host));
        let at_once = self.random.chance(50);
        let on_it = self
            .processes
            .values_mut()
            .filter(|p| p.host == host && p.alive);
        let pids: Vec<u32> = on_it.map(|p| p.pid).collect();
        self.deaths += pids.len() as u32;
        for pid in pids {
            let delay = if at_once {
                0
            } else {
                self.random.time(3_000 * MS)
            };
            self.after(delay, Event::EngineExits(pid, 1));
        }
    }

    /// Sends a task to the relay of an engine.
    pub(crate) fn assign_there(
        &mut self,
        host: HostId,
        engine: EngineId,
        record: AssignRecord,
    ) -> Result<(), String> {
        let next = self.sent_offers.entry(engine).or_default();
        if *next != record.offer {
            return Err(format!(
                "offer {} to {engine:?} is out of order",
                record.offer
            ));
        }
        *next += 1;
        if record.payload.segments.is_empty() {
            self.note_offered(engine, &record);
        }
        self.tell_relay(host, RelayMessage::Assign(engine, record));
        Ok(())
    }

    /// A relay is asked for the figures of its host, but never again before it has answered.
    pub(crate) fn ask_for_figures(&mut self, host: HostId) -> Result<(), String> {
        let Some(relay) = self.hosts.get_mut(&host) else {
            return Ok(()); // The driver will hear of its end next.
        };
        if std::mem::replace(&mut relay.owes_figures, true) {
            return Err(format!("{host:?} has not answered and is asked again"));
        }
        self.command(host, RelayCommand::Measure);
        Ok(())
    }

    /// What an engine has written cannot always be read.
    pub(crate) fn what_was_written(&mut self) -> String {
        if self.random.chance(20) {
            String::new()
        } else {
            "{}".to_owned()
        }
    }

    /// A function for an engine: its body crosses once per host.
    pub(crate) fn give_function(&mut self, host: HostId, engine: EngineId, record: FunctionRecord) {
        let Some(relay) = self.hosts.get_mut(&host) else {
            return;
        };
        let function = record.function;
        if relay.given.give(&record, u64::MAX).sends_body {
            self.tell_relay(host, RelayMessage::Function(record));
        }
        self.command(host, RelayCommand::GiveFunction { engine, function });
    }

    pub(crate) fn command(&mut self, host: HostId, command: RelayCommand) {
        self.tell_relay(host, RelayMessage::Command(command));
    }

    pub(crate) fn tell_relay(&mut self, host: HostId, message: RelayMessage) {
        self.send(Link::ToHost(host), Event::Relay(host, message));
    }

    /// Relays need not keep functions that nobody names any more.
    pub(crate) fn forget_functions(&mut self) {
        let freed = self.controller.take_freed_functions(self.now);
        if freed.is_empty() {
            return;
        }
        let hosts: Vec<HostId> = self.hosts.keys().copied().collect();
        for host in hosts {
            if let Some(relay) = self.hosts.get_mut(&host) {
                relay.given.forget(&freed);
            }
            self.command(host, RelayCommand::ForgetFunctions(freed.clone()));
        }
    }

    pub(crate) fn relay_gets(&mut self, host: HostId, message: RelayMessage) -> Result<(), String> {
        self.on_controller_heard(host);
        let Some(relay) = self.hosts.get_mut(&host) else {
            return Ok(());
        };
        match message {
            RelayMessage::Ping => self.host_says(host, NodeEvent::Link(LinkInput::Pong(host))),
            RelayMessage::Assign(engine, record) => {
                return self.relay_assigns(host, engine, record);
            }
            RelayMessage::Function(record) => relay.relay.on_function(self.now, record),
            RelayMessage::Command(RelayCommand::Order(order)) => {
                return match relay.relay.on_order(self.now, order) {
                    Some(action) => self.relay_acts(host, action),
                    None => Ok(()),
                };
            }
            RelayMessage::Command(RelayCommand::GiveFunction { engine, function }) => {
                let record = relay.relay.function(function).cloned();
                if let (Some(record), Some(pid)) = (record, self.process_of(host, engine)) {
                    return self.engine_gets(pid, EngineMessage::Function(record));
                }
            }
            RelayMessage::Command(RelayCommand::ForgetFunctions(ids)) => {
                relay.relay.forget_functions(self.now, &ids);
            }
            RelayMessage::Command(RelayCommand::Measure) => {
                let counts = HostCounts::default();
                self.relay_says(host, Input::Measured { host, counts });
            }
            RelayMessage::Command(other) => {
                return Err(format!("a relay does not carry out {other:?}"));
            }
        }
        Ok(())
    }

    /// Carries out what a relay decided.
    fn relay_acts(&mut self, host: HostId, action: RelayAction) -> Result<(), String> {
        match action {
            RelayAction::Do(order) => self.relay_does(host, order),
            RelayAction::Report(report) => {
                self.relay_reports(host, report);
                Ok(())
            }
            RelayAction::StopForkServer | RelayAction::End => {
                Err(format!("the relay of {host:?} ends by itself"))
            }
        }
    }

    fn relay_does(&mut self, host: HostId, order: EngineOrder) -> Result<(), String> {
        match order {
            EngineOrder::Stop { engine } => match self.process_of(host, engine) {
                Some(pid) => self.engine_gets(pid, EngineMessage::Stop),
                None => Ok(()),
            },
            EngineOrder::Interrupt { engine, offer, .. } => {
                self.interrupt(host, engine, offer);
                Ok(())
            }
            EngineOrder::Revoke { engine, key, offer } => {
                let pid = self.process_of(host, engine);
                let pid = pid.ok_or("an engine that is gone has an offer")?;
                let process = self.processes.get_mut(&pid);
                let won = process.is_some_and(|p| p.revoke(offer));
                self.relay_reports(host, EngineReport::Revoked { engine, key, won });
                Ok(())
            }
            EngineOrder::Kill {
                engine,
                pid,
                signal,
            } => self.kill(host, engine, pid, signal),
            EngineOrder::ForkServer(ForkServerOrder::Spawn { engine }) => {
                self.spawn_on(host, engine)
            }
            EngineOrder::ForkServer(ForkServerOrder::Seat {
                engine,
                world,
                rank,
            }) => {
                self.seat(host, engine, &world, rank);
                Ok(())
            }
            EngineOrder::ForkServer(ForkServerOrder::ReadWritten(read)) => {
                if !self.hosts.get(&host).is_some_and(|h| h.has_fork_server) {
                    return Err(format!("{host:?} has no fork server that could read"));
                }
                if self.plan.mutation != Mutation::LeavesObserversWaiting {
                    let (reading, text) = (read.reading, self.what_was_written());
                    let written = ForkServerEvent::Written { reading, text };
                    self.relay_reports(host, EngineReport::ForkServer(written));
                }
                Ok(())
            }
        }
    }

    /// Something happened to an engine of a relay's host.
    pub(crate) fn relay_reports(&mut self, host: HostId, report: EngineReport) {
        if let Some(relay) = self.hosts.get_mut(&host) {
            relay.relay.on_report(self.now, &report);
            self.relay_says(host, Input::Report { host, report });
        }
    }

    /// The fork server of a relay's host has connected.
    pub(crate) fn relay_fork_server_starts(&mut self, host: HostId) -> Result<(), String> {
        let Some(relay) = self.hosts.get_mut(&host) else {
            return Ok(());
        };
        relay.has_fork_server = true;
        let mut actions = Vec::new();
        relay.relay.on_fork_server_up(self.now, &mut actions);
        let mut actions = actions.into_iter();
        actions.try_for_each(|action| self.relay_acts(host, action))
    }

    fn relay_assigns(
        &mut self,
        host: HostId,
        engine: EngineId,
        record: AssignRecord,
    ) -> Result<(), String> {
        let Some(pid) = self.process_of(host, engine) else {
            return Ok(()); // Gone; the driver counts what never reached the engine's board.
        };
        let process = self.processes.get_mut(&pid);
        let before = process.and_then(|p| p.board.insert(record.offer, Slot::Offered));
        if before.is_some() {
            return Err(format!("offer {} was made twice", record.offer));
        }
        for range in &record.payload.segments {
            let Some(relay) = self.hosts.get_mut(&host) else {
                return Ok(());
            };
            if let Entry::Vacant(object) = relay.objects.entry(range.segment) {
                object.insert(Arguments::Coming);
                let delay = self.random.time(3_000 * MS);
                self.after(delay, Event::ObjectArrives(host, range.segment));
            }
        }
        let Some(relay) = self.hosts.get_mut(&host) else {
            return Ok(());
        };
        let arguments = relay.arguments(&record.payload);
        let key = record.key;
        let is_here = arguments == Arguments::Here;
        if let Some(freed) = relay.relay.on_offered(self.now, engine, record, &arguments) {
            return self.on_freed(host, freed);
        }
        if self.plan.mutation == Mutation::DeliveredTooSoon && !is_here {
            self.relay_reports(host, EngineReport::Delivered { engine, key });
        }
        Ok(())
    }

    /// A task waits no longer.
    fn on_freed(&mut self, host: HostId, freed: Freed) -> Result<(), String> {
        match freed {
            Freed::Deliver(engine, record) => self.deliver(host, engine, record)?,
            Freed::GiveUp(engine, record, reason) => {
                let process = self.process_of(host, engine);
                let process = process.and_then(|pid| self.processes.get_mut(&pid));
                if process.is_some_and(|p| p.revoke(record.offer)) {
                    let report = EngineReport::Undeliverable {
                        engine,
                        key: record.key,
                        reason,
                    };
                    self.relay_reports(host, report);
                }
            }
        }
        Ok(())
    }

    /// Sends a task to its engine.
    fn deliver(
        &mut self,
        host: HostId,
        engine: EngineId,
        record: AssignRecord,
    ) -> Result<(), String> {
        let relay = self.hosts.get(&host);
        if relay.is_some_and(|relay| relay.arguments(&record.payload) != Arguments::Here) {
            return Err(format!("{:?} goes ahead of its arguments", record.key));
        }
        if is_awaited(&record) {
            self.note_offered(engine, &record);
            if self.plan.mutation != Mutation::DeliveredTooSoon {
                let key = record.key;
                self.relay_reports(host, EngineReport::Delivered { engine, key });
            }
        }
        match self.process_of(host, engine) {
            Some(pid) => self.engine_gets(pid, EngineMessage::Assign(record)),
            None => Ok(()),
        }
    }

    /// Arguments have arrived, or never will.
    pub(crate) fn object_arrives(&mut self, host: HostId, object: SegmentId) -> Result<(), String> {
        let in_vain = self.random.chance(10);
        let Some(relay) = self.hosts.get_mut(&host) else {
            return Ok(());
        };
        let state = if in_vain {
            Arguments::Failed("simulated".to_owned())
        } else {
            Arguments::Here
        };
        relay.objects.insert(object, state);
        let (objects, mut freed) = (&relay.objects, Vec::new());
        let state = |payload: &Payload| arguments(objects, payload);
        relay.relay.on_objects(self.now, state, &mut freed);
        if in_vain && self.random.chance(50) {
            relay.objects.remove(&object); // The next task that names it has it sent again.
        }
        for freed in freed {
            self.on_freed(host, freed)?;
        }
        Ok(())
    }

    /// From here on, a task's time may run out.
    pub(crate) fn note_offered(&mut self, engine: EngineId, record: &AssignRecord) {
        let job = &self.jobs[index_of(&record.payload.bytes) as usize];
        let target = (job.options.mode == Mode::Each).then_some(engine);
        self.offered.insert((job.index, target));
    }

    fn spawn_on(&mut self, host: HostId, engine: EngineId) -> Result<(), String> {
        if !self.hosts.get(&host).is_some_and(|h| h.has_fork_server) {
            return Err(format!("{engine:?} has no fork server on {host:?}"));
        }
        if let Some(event) = self.fails_to_start(engine) {
            self.relay_reports(host, EngineReport::ForkServer(event));
            return Ok(());
        }
        self.next_pid += 1;
        let pid = self.next_pid;
        let mut process = EngineProcess::new(engine, pid);
        process.host = host;
        self.processes.insert(pid, process);
        let spawned = ForkServerEvent::Spawned(engine, pid);
        self.relay_reports(host, EngineReport::ForkServer(spawned));
        let delay = self.random.time(100 * MS);
        if self.random.chance(self.plan.bad_start_percent) {
            self.after(delay, Event::EngineExits(pid, 3));
        } else {
            self.after(delay, Event::RelayHello(pid));
        }
        Ok(())
    }

    /// An engine says hello to its relay.
    pub(crate) fn relay_hello(&mut self, pid: u32) {
        let Some(process) = self.processes.get_mut(&pid).filter(|p| p.alive) else {
            return;
        };
        let (host, engine) = (process.host, process.engine);
        let Some(relay) = self.hosts.get_mut(&host) else {
            return;
        };
        if !relay.relay.expects(engine) {
            self.end_process(pid, Some(1), None);
            return;
        }
        process.linked = true;
        relay.linked.insert(engine, pid);
        let info = EngineInfo {
            engine,
            uuid: format!("{pid:032x}"),
            pid,
            host: format!("host {}", relay.name),
        };
        self.relay_reports(host, EngineReport::Up(info));
    }

    /// The link between an engine and its relay is gone: the relay takes back what the engine never
    /// claimed.
    pub(crate) fn relay_link_closed(&mut self, pid: u32) {
        let Some(process) = self.processes.get_mut(&pid) else {
            return;
        };
        let (host, engine) = (process.host, process.engine);
        let was_linked = std::mem::take(&mut process.linked);
        let unclaimed_offers = process.unclaimed();
        for offer in &unclaimed_offers {
            process.revoke(*offer);
        }
        let mut next_offer = process.next_on_board();
        if self.plan.mutation == Mutation::ForgetsOnTheWay {
            next_offer = self.sent_offers.get(&engine).copied().unwrap_or(next_offer);
        }
        let Some(relay) = self.hosts.get_mut(&host).filter(|_| was_linked) else {
            return;
        };
        relay.linked.remove(&engine);
        let down = EngineReport::Down {
            engine,
            unclaimed_offers,
            next_offer,
        };
        self.relay_reports(host, down);
    }
}
