//! Simulated relays: hosts whose engines reach the driver over one link, and are lost with it.

use std::collections::{BTreeMap, VecDeque};

use broadleaf_core::{HostEvent, Input, Nanos, Output};
use broadleaf_proto::Mode;
use broadleaf_proto::control::{EngineInfo, ForkServerEvent, ReadWritten};
use broadleaf_proto::ids::{EngineId, HostId, TaskKey};
use broadleaf_proto::relay::{HostCounts, RelayEvent};
use broadleaf_proto::task::AssignRecord;

use crate::Mutation;
use crate::cluster::{Cluster, EngineMessage, Event, Link, NodeEvent};
use crate::peers::engine::{EngineProcess, Slot};
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
    /// Tasks of each engine, in order, from the first one whose arguments are still on their way.
    waiting: BTreeMap<EngineId, VecDeque<AssignRecord>>,
}

/// What arrives at a relay.
#[derive(Clone, Debug)]
pub(crate) enum RelayMessage {
    Engine(EngineId, EngineMessage),
    Revoke(EngineId, TaskKey, u32),
    Interrupt(EngineId, u32),
    Kill(u32, i32),
    Spawn(EngineId),
    Seat(EngineId, String, u32),
    Measure,
    ReadWritten(u64),
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
            ..Host::default()
        };
        self.hosts.insert(host, relay);
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
            self.relay_says(host, RelayEvent::EndsSoon { ends_in_ns });
        }
    }

    /// A relay that is no longer needed leaves; another one with its name may connect.
    pub(crate) fn release_host(&mut self, host: HostId) {
        if self.hosts.contains_key(&host) {
            self.released += 1;
            self.lose_host(host);
            self.host_losses -= 1; // No engine was lost with it.
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

    /// A relay reports something about its engines to the driver.
    pub(crate) fn relay_says(&mut self, host: HostId, event: RelayEvent) {
        self.host_says(host, NodeEvent::FromRelay(host, HostEvent::Event(event)));
    }

    /// The link to a relay is lost, and its engines with it: at once, or when they notice.
    pub(crate) fn lose_host(&mut self, host: HostId) {
        let Some(gone) = self.hosts.remove(&host) else {
            return;
        };
        self.host_losses += 1;
        self.host_says(host, NodeEvent::Input(Input::HostDown { host }));
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
        // The next relay with its name connects once the driver has noticed the end of this one.
        let seen = self.last_arrival[&Link::FromHost(host)] - self.now;
        let delay = seen + 1 + self.random.time(500 * MS);
        self.after(delay, Event::HostStarts(gone.name));
    }

    /// Sends a message for an engine of a host to its relay; returns any other message.
    pub(crate) fn relay_out(&mut self, output: Output) -> Result<Option<Output>, String> {
        if let Output::Measure { host } = output {
            return self.ask_for_figures(host).map(|()| None);
        }
        let engine = match &output {
            Output::Function { engine, .. }
            | Output::Assign { engine, .. }
            | Output::Revoke { engine, .. }
            | Output::Interrupt { engine, .. }
            | Output::Kill { engine, .. }
            | Output::Stop { engine }
            | Output::Seat { engine, .. }
            | Output::Spawn { engine }
            | Output::ReadWritten(ReadWritten { engine, .. }) => *engine,
            _ => return Ok(Some(output)),
        };
        let host = self.controller.host_of(engine);
        if host == HostId::CONTROLLER {
            return Ok(Some(output));
        }
        let message = match output {
            Output::Function { record, .. } => {
                RelayMessage::Engine(engine, EngineMessage::Function(record))
            }
            Output::Assign { record, .. } => {
                self.check_offer(engine, &record)?;
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
                RelayMessage::Engine(engine, EngineMessage::Assign(record))
            }
            Output::Stop { .. } => RelayMessage::Engine(engine, EngineMessage::Stop),
            Output::Revoke { key, offer, .. } => RelayMessage::Revoke(engine, key, offer),
            Output::Interrupt { offer, .. } => RelayMessage::Interrupt(engine, offer),
            Output::Kill { pid, signal, .. } => RelayMessage::Kill(pid, signal),
            Output::Spawn { .. } => RelayMessage::Spawn(engine),
            Output::ReadWritten(read) => RelayMessage::ReadWritten(read.reading),
            Output::Seat { world, rank, .. } => RelayMessage::Seat(engine, world, rank),
            other => return Ok(Some(other)),
        };
        self.send(Link::ToHost(host), Event::Relay(host, message));
        Ok(None)
    }

    /// A relay is asked for the figures of its host, but never again before it has answered.
    fn ask_for_figures(&mut self, host: HostId) -> Result<(), String> {
        let Some(relay) = self.hosts.get_mut(&host) else {
            return Ok(()); // The driver will hear of its end next.
        };
        if std::mem::replace(&mut relay.owes_figures, true) {
            return Err(format!("{host:?} has not answered and is asked again"));
        }
        self.send(
            Link::ToHost(host),
            Event::Relay(host, RelayMessage::Measure),
        );
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

    pub(crate) fn relay_gets(&mut self, host: HostId, message: RelayMessage) -> Result<(), String> {
        let Some(relay) = self.hosts.get(&host) else {
            return Ok(());
        };
        let linked = |engine: EngineId| relay.linked.get(&engine).copied();
        match message {
            RelayMessage::Engine(engine, message) => {
                let Some(pid) = linked(engine) else {
                    return Ok(()); // Gone; the driver counts what never reached the engine's board.
                };
                let EngineMessage::Assign(record) = message else {
                    return self.engine_gets(pid, message);
                };
                let process = self.processes.get_mut(&pid);
                let before = process.and_then(|p| p.board.insert(record.offer, Slot::Offered));
                if before.is_some() {
                    return Err(format!("offer {} was made twice", record.offer));
                }
                self.relay_assigns(host, engine, record)
            }
            RelayMessage::Revoke(engine, key, offer) => {
                if let Some(pid) = linked(engine) {
                    let won = self
                        .processes
                        .get_mut(&pid)
                        .is_some_and(|p| p.revoke(offer));
                    self.relay_says(host, RelayEvent::Revoked { engine, key, won });
                }
                Ok(())
            }
            RelayMessage::Interrupt(engine, offer) => {
                if let Some(pid) = linked(engine) {
                    self.interrupt_process(pid, offer);
                }
                Ok(())
            }
            RelayMessage::Kill(pid, signal) => {
                let is_ours = self.processes.get(&pid).is_some_and(|p| p.host == host);
                if is_ours {
                    self.end_process(pid, None, Some(signal));
                }
                Ok(())
            }
            RelayMessage::Spawn(engine) => {
                self.spawn_on(host, engine);
                Ok(())
            }
            RelayMessage::Seat(engine, world, rank) => {
                self.seat(host, engine, &world, rank);
                Ok(())
            }
            RelayMessage::Measure => {
                self.relay_says(host, RelayEvent::Measured(HostCounts::default()));
                Ok(())
            }
            RelayMessage::ReadWritten(_)
                if self.plan.mutation == Mutation::LeavesObserversWaiting =>
            {
                Ok(())
            }
            RelayMessage::ReadWritten(reading) => {
                let text = self.what_was_written();
                let written = ForkServerEvent::Written { reading, text };
                self.relay_says(host, RelayEvent::ForkServer(written));
                Ok(())
            }
        }
    }

    /// A task for an engine of a host: it is passed on once its arguments have arrived, and after
    /// those before it.
    fn relay_assigns(
        &mut self,
        host: HostId,
        engine: EngineId,
        record: AssignRecord,
    ) -> Result<(), String> {
        let Some(relay) = self.hosts.get_mut(&host) else {
            return Ok(());
        };
        let queue = relay.waiting.entry(engine).or_default();
        queue.push_back(record);
        if queue.len() > 1 {
            return Ok(());
        }
        self.hand_over(host, engine)
    }

    /// Hands over the waiting tasks, up to the next one with arguments that have to travel.
    fn hand_over(&mut self, host: HostId, engine: EngineId) -> Result<(), String> {
        while let Some(relay) = self.hosts.get_mut(&host)
            && let Some(&pid) = relay.linked.get(&engine)
            && let Some(queue) = relay.waiting.get_mut(&engine)
            && let Some(record) = queue.front()
        {
            if record.payload.segments.is_empty() {
                let record = queue.pop_front().ok_or("nothing waits")?;
                self.engine_gets(pid, EngineMessage::Assign(record))?;
                continue;
            }
            let key = record.key;
            if self.plan.mutation == Mutation::DeliveredTooSoon {
                self.relay_says(host, RelayEvent::Delivered { engine, key });
            }
            let delay = self.random.time(3_000 * MS);
            self.after(delay, Event::ArgumentsArrive(host, engine, key));
            break;
        }
        Ok(())
    }

    /// Arguments have arrived, or never will.
    pub(crate) fn arguments_arrive(
        &mut self,
        host: HostId,
        engine: EngineId,
        key: TaskKey,
    ) -> Result<(), String> {
        let in_vain = self.random.chance(10);
        let Some(relay) = self.hosts.get_mut(&host) else {
            return Ok(());
        };
        let linked = relay.linked.get(&engine).copied();
        let queue = relay.waiting.get_mut(&engine);
        let queue = queue.filter(|q| q.front().is_some_and(|first| first.key == key));
        let record = queue.and_then(VecDeque::pop_front);
        let (Some(pid), Some(record)) = (linked, record) else {
            return Ok(()); // Its engine is gone.
        };
        if in_vain {
            let process = self.processes.get_mut(&pid);
            if process.is_some_and(|p| p.revoke(record.offer)) {
                let reason = "simulated".to_owned();
                let news = RelayEvent::Undeliverable {
                    engine,
                    key,
                    reason,
                };
                self.relay_says(host, news);
            }
        } else {
            self.note_offered(engine, &record);
            if self.plan.mutation != Mutation::DeliveredTooSoon {
                self.relay_says(host, RelayEvent::Delivered { engine, key });
            }
            self.engine_gets(pid, EngineMessage::Assign(record))?;
        }
        self.hand_over(host, engine)
    }

    /// From here on, a task's time may run out.
    pub(crate) fn note_offered(&mut self, engine: EngineId, record: &AssignRecord) {
        let job = &self.jobs[index_of(&record.payload.bytes) as usize];
        let target = (job.options.mode == Mode::Each).then_some(engine);
        self.offered.insert((job.index, target));
    }

    fn spawn_on(&mut self, host: HostId, engine: EngineId) {
        if let Some(event) = self.fails_to_start(engine) {
            self.host_says(host, event);
            return;
        }
        self.next_pid += 1;
        let pid = self.next_pid;
        let mut process = EngineProcess::new(engine, pid);
        process.host = host;
        self.processes.insert(pid, process);
        let spawned = ForkServerEvent::Spawned(engine, pid);
        self.relay_says(host, RelayEvent::ForkServer(spawned));
        let delay = self.random.time(100 * MS);
        if self.random.chance(self.plan.bad_start_percent) {
            self.after(delay, Event::EngineExits(pid, 3));
        } else {
            self.after(delay, Event::RelayHello(pid));
        }
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
        if relay.linked.contains_key(&engine) {
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
        self.relay_says(host, RelayEvent::EngineUp(info));
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
        let mut next_offer = process.board.last_key_value().map_or(0, |(n, _)| n + 1);
        if self.plan.mutation == Mutation::ForgetsOnTheWay {
            next_offer = self.sent_offers.get(&engine).copied().unwrap_or(next_offer);
        }
        let Some(relay) = self.hosts.get_mut(&host).filter(|_| was_linked) else {
            return;
        };
        relay.linked.remove(&engine);
        relay.waiting.remove(&engine);
        let down = RelayEvent::EngineDown {
            engine,
            unclaimed_offers,
            next_offer,
        };
        self.relay_says(host, down);
    }
}
