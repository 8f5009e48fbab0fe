//! The simulated world: the clock, the links, and the order of all events.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::fmt::Write as _;

use broadleaf_core::interrupts::Interrupts;
use broadleaf_core::recording::{Recorded, Start};
use broadleaf_core::relay::Arguments;
use broadleaf_core::returning::Returning;
use broadleaf_core::{Controller, Counters, Input, Nanos, Output};
use broadleaf_proto::control::{ControlReply, ControlRequest, ForkServerEvent};
use broadleaf_proto::ids::{ClientId, EngineId, HostId, ObjectId, SegmentId, TaskKey, TaskSeq};
use broadleaf_proto::task::{AssignRecord, FunctionRecord, ResultRecord};

use crate::peers::client::{Circumstances, Client, Copy, Original, check_running};
use crate::peers::engine::{EngineProcess, MAX_HELD_NS};
use crate::peers::hosts::{Host, RelayMessage};
use crate::peers::known_engines::KnownEngines;
use crate::peers::links::{Actor, LinkEvent, LinkInput, Links};
use crate::peers::worlds::Guest;
use crate::random::Random;
use crate::replay::Text;
use crate::trace::Trace;
use crate::work::job::Job;
use crate::work::nested::is_nested;
use crate::{Failure, Plan};

const MS: Nanos = 1_000_000;
/// No run may take longer than this on the virtual clock: nothing waits forever.
const LONGEST_RUN_NS: Nanos = 3_600_000 * MS;
/// And for every host, so many more.
const MAX_STEPS: u64 = 400_000;
const MAX_STEPS_A_HOST: u64 = 10_000;
/// A run that does not end names at most so many clients, and engines.
const MAX_NAMED: usize = 20;

/// Messages on one link arrive in order; messages on different links may overtake each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Link {
    ToEngine(u32),
    FromEngine(u32),
    ToClient(ClientId),
    FromClient(ClientId),
    ToForkServer(u32),
    FromForkServer(u32),
    ToHost(HostId),
    FromHost(HostId),
}

/// What happens next.
#[derive(Clone, Debug)]
pub(crate) enum Event {
    /// The driver reads this from one of its links, or sends it to itself.
    Node(NodeEvent),
    Engine(u32, EngineMessage),
    TaskEnds(u32, u64),
    TaskNests(u32, u64),
    GoOn(u32),
    /// An engine's flusher has paused, unless it was woken.
    Flush(u32, u64),
    EngineExits(u32, i32),
    Spawn(u32, EngineId),
    Seat(u32, EngineId, String, u32),
    ReadWritten(u32, u64),
    ForkServerStops(u32),
    WorldStarts(u32),
    ForkServerStarts,
    HostStarts(u32),
    /// The batch job of a host has ended.
    HostEnds(HostId),
    HostIsTold(HostId, Nanos),
    /// A client no longer starts engines.
    AwaitsNoMore(ClientId),
    Relay(HostId, RelayMessage),
    RelayHello(u32),
    RelayForkServerStarts(HostId),
    ObjectArrives(HostId, SegmentId),
    /// The value of a task on another host arrives, or will not.
    ValueArrives(ObjectId),
    /// Interrupts on a host may have to be repeated.
    Interrupts(HostId),
    /// A process must have acted on the interrupt of this offer.
    HasActed(u32, u32),
    Client(ClientId, Output),
    ClientActs(ClientId),
    /// A client aborts the tasks of one job.
    ClientAborts(ClientId, Vec<TaskSeq>),
    Fault,
    Lie,
    Link(LinkEvent),
    /// Some process is stopped, or a client's connection breaks.
    StopSome,
}

/// What arrives at the driver.
#[derive(Clone, Debug)]
pub(crate) enum NodeEvent {
    Input(Input),
    Hello(u32),
    FromEngine(u32, Input),
    EngineClosed(u32),
    /// The oldest answer to a revoke that was held back.
    Answer(u32),
    FromForkServer(ForkServerEvent),
    FromRelay(HostId, Input),
    Link(LinkInput),
    ForkServerClosed,
    Schedule,
    Deadline,
}

/// What arrives at an engine.
#[derive(Clone, Debug)]
pub(crate) enum EngineMessage {
    Function(FunctionRecord),
    Assign(AssignRecord),
    Stop,
}

/// An event and its time; events at the same time keep their order.
#[derive(Debug)]
pub(crate) struct Due {
    at: Nanos,
    order: u64,
    event: Event,
}
impl PartialEq for Due {
    fn eq(&self, other: &Self) -> bool {
        (self.at, self.order) == (other.at, other.order)
    }
}
impl Eq for Due {}
impl PartialOrd for Due {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Due {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.order).cmp(&(other.at, other.order))
    }
}

/// See the module.
#[derive(Debug)]
#[expect(clippy::struct_excessive_bools, reason = "they are independent facts")]
pub(crate) struct Cluster {
    pub(crate) now: Nanos,
    pub(crate) random: Random,
    pub(crate) plan: Plan,
    pub(crate) trace: Trace,
    pub(crate) controller: Recorded<Controller, Text>,
    pub(crate) events: BinaryHeap<Reverse<Due>>,
    pub(crate) order: u64,
    pub(crate) last_arrival: BTreeMap<Link, Nanos>,
    /// Links that lose all messages from now on.
    pub(crate) cut: BTreeSet<Link>,
    pub(crate) links_to_hosts: Links,
    pub(crate) processes: BTreeMap<u32, EngineProcess>,
    pub(crate) next_pid: u32,
    pub(crate) runs: u64,
    /// The process at the other end of the driver's link to each engine.
    pub(crate) links: BTreeMap<EngineId, u32>,
    /// The fork server's number, while there is one.
    pub(crate) fork_server: Option<u32>,
    /// The relays that are connected.
    pub(crate) hosts: BTreeMap<HostId, Host>,
    pub(crate) last_host: u32,
    /// Ranks that wait for a slot.
    pub(crate) guests: Vec<Guest>,
    /// Ranks that got a slot.
    pub(crate) seated: u32,
    pub(crate) host_losses: u32,
    /// Requests to drain engines, and hosts that were released.
    pub(crate) drained: u32,
    pub(crate) released: u32,
    /// Relays that were cut off because they lied.
    pub(crate) expelled: u32,
    /// The number after the last offer sent to each remote engine.
    pub(crate) sent_offers: BTreeMap<EngineId, u32>,
    pub(crate) clients: BTreeMap<ClientId, Client>,
    pub(crate) known_engines: KnownEngines,
    pub(crate) jobs: Vec<Job>,
    pub(crate) starts: BTreeMap<(u64, Option<EngineId>), u32>,
    /// Tasks that were offered to an engine after all their arguments had arrived.
    pub(crate) offered: BTreeSet<(u64, Option<EngineId>)>,
    pub(crate) unmet: BTreeMap<u64, u32>,
    pub(crate) max_levels: usize,
    /// The longest time that an engine held a result back.
    pub(crate) longest_held_ns: Nanos,
    /// For each job, the number of times that a rerun of it, or of a part of it, was requested.
    pub(crate) reruns: BTreeMap<u64, u32>,
    pub(crate) has_interrupted_all: bool,
    /// Interrupts that were sent on each host.
    pub(crate) interrupts: BTreeMap<HostId, Interrupts>,
    /// Ends that wait for values from relays' hosts.
    pub(crate) returning: Recorded<Returning, Text>,
    /// Those values: which have arrived.
    pub(crate) values: BTreeMap<ObjectId, Arguments>,
    pub(crate) last_value: u64,
    /// The tasks that they are of, and where from.
    pub(crate) owed_values: BTreeMap<(EngineId, TaskKey), HostId>,
    pub(crate) deaths: u32,
    pub(crate) stopping: bool,
    /// The fork server has died: nothing that was under way from the controller to clients arrives.
    pub(crate) is_orphaned: bool,
    pub(crate) finished: bool,
    pub(crate) schedule_pending: bool,
    pub(crate) deadline_pending: Option<Nanos>,
    pub(crate) outputs: Vec<Output>,
    /// Events that the controller's node has handled.
    pub(crate) n_handled: u64,
    /// Of the controller's node and of each relay, if they are made.
    pub(crate) recordings: Option<Vec<Text>>,
}

impl Cluster {
    pub(crate) fn new(plan: Plan, trace: Trace, records: bool) -> Self {
        let start = Start::Controller(plan.config.clone());
        let text = records.then(|| Text::begin(start));
        let mut cluster = Self {
            now: 1_000 * MS,
            random: Random::new(plan.seed),
            controller: Recorded::new(Controller::new(plan.config.clone()), text.clone()),
            trace,
            events: BinaryHeap::new(),
            order: 0,
            last_arrival: BTreeMap::new(),
            cut: BTreeSet::new(),
            links_to_hosts: Links::default(),
            processes: BTreeMap::new(),
            next_pid: 100,
            runs: 0,
            links: BTreeMap::new(),
            fork_server: None,
            hosts: BTreeMap::new(),
            last_host: 0,
            guests: Vec::new(),
            seated: 0,
            host_losses: 0,
            drained: 0,
            released: 0,
            expelled: 0,
            sent_offers: BTreeMap::new(),
            clients: BTreeMap::new(),
            known_engines: KnownEngines::default(),
            jobs: Vec::new(),
            starts: BTreeMap::new(),
            offered: BTreeSet::new(),
            unmet: BTreeMap::new(),
            max_levels: 0,
            longest_held_ns: 0,
            reruns: BTreeMap::new(),
            has_interrupted_all: false,
            interrupts: BTreeMap::new(),
            returning: Recorded::new(Returning::default(), text.clone()),
            values: BTreeMap::new(),
            last_value: 0,
            owed_values: BTreeMap::new(),
            deaths: 0,
            stopping: false,
            is_orphaned: false,
            finished: false,
            schedule_pending: false,
            deadline_pending: None,
            outputs: Vec::new(),
            n_handled: 0,
            recordings: text.map(|text| vec![text]),
            plan,
        };
        cluster.after(0, Event::ForkServerStarts);
        for name in 0..cluster.plan.n_hosts {
            let at = cluster.random.below(20 * MS);
            cluster.after(at, Event::HostStarts(name));
        }
        for name in 0..cluster.plan.n_worlds {
            for _ in 0..2 {
                let at = cluster.random.below(cluster.plan.busy_ns);
                cluster.after(at, Event::WorldStarts(name));
            }
        }
        for id in 0..cluster.plan.n_clients {
            let at = cluster.random.below(20 * MS);
            cluster.after(at, Event::ClientActs(ClientId(id)));
        }
        for _ in 0..cluster.plan.n_faults {
            let at = cluster.random.below(cluster.plan.busy_ns);
            cluster.after(at, Event::Fault);
        }
        for _ in 0..cluster.plan.n_stops {
            let at = cluster.random.below(cluster.plan.busy_ns);
            cluster.after(at, Event::StopSome);
        }
        for _ in 0..cluster.plan.n_lies {
            let at = cluster.random.below(cluster.plan.busy_ns);
            cluster.after(at, Event::Lie);
        }
        cluster
    }

    /// Where a node that starts records, if recordings are made.
    pub(crate) fn recording(&mut self, start: Start) -> Option<Text> {
        let recordings = self.recordings.as_mut()?;
        let text = Text::begin(start);
        recordings.push(text.clone());
        Some(text)
    }

    /// Runs to the end.
    pub(crate) fn run(&mut self) -> Result<(), Failure> {
        let mut steps = 0;
        let max_steps = MAX_STEPS + MAX_STEPS_A_HOST * u64::from(self.plan.n_hosts);
        while !self.finished {
            let Some(Reverse(due)) = self.events.pop() else {
                return Err(self.failure(&self.what_hangs()));
            };
            steps += 1;
            self.now = self.now.max(due.at);
            if steps > max_steps || self.now > LONGEST_RUN_NS {
                return Err(self.failure(&self.what_hangs()));
            }
            self.trace.note(self.now, &due.event);
            self.step(due.event).map_err(|what| self.failure(&what))?;
            self.end_if_quiet();
        }
        self.check_end().map_err(|what| self.failure(&what))
    }

    pub(crate) fn counters(&self) -> Counters {
        self.controller.counters()
    }

    pub(crate) fn failure(&self, what: &str) -> Failure {
        Failure {
            seed: self.plan.seed,
            now_ns: self.now,
            what: what.to_string(),
        }
    }

    pub(crate) fn what_hangs(&self) -> String {
        let mut text = "waits forever:".to_string();
        let waits =
            |c: &&Client| c.alive && (c.unresolved().next().is_some() || !c.requests.is_empty());
        for client in self.clients.values().filter(waits).take(MAX_NAMED) {
            for seq in client.unresolved().take(3) {
                let why = self.controller.explain(self.now, client.id, seq);
                let _ = write!(text, " client {} task {}: {why};", client.id.0, seq.0);
            }
            if !client.requests.is_empty() {
                let _ = write!(
                    text,
                    " client {} requests {:?};",
                    client.id.0, client.requests
                );
            }
        }
        let engines = self.controller.counters().engines;
        let busy: Vec<_> = (engines.iter().filter(|e| e.outstanding > 0))
            .take(MAX_NAMED)
            .collect();
        let _ = write!(text, " engines: {busy:?}");
        text
    }

    /// Once every result and reply has arrived, the first client stops the cluster and the others
    /// leave.
    pub(crate) fn end_if_quiet(&mut self) {
        let quiet = |c: &Client| {
            !c.alive
                || c.bursts_left == 0 && c.unresolved().next().is_none() && c.requests.is_empty()
        };
        let own = self.clients.keys().filter(|id| !is_nested(**id));
        let all_here = own.count() == self.plan.n_clients as usize;
        if self.stopping || !all_here || !self.clients.values().all(quiet) {
            return;
        }
        self.stopping = true;
        let ids: Vec<ClientId> = self.clients.keys().copied().collect();
        self.request_shutdown(ids[0]);
        for client in ids.into_iter().skip(1) {
            self.end_client(client);
        }
    }

    pub(crate) fn check_end(&self) -> Result<(), String> {
        self.controller.check().map_err(|v| v.to_string())?;
        for client in self.clients.values().filter(|c| c.alive) {
            if !self.is_orphaned
                && let Some(seq) = client.unresolved().next()
            {
                return Err(format!("client {} {seq:?} has no result", client.id.0));
            }
        }
        if self.longest_held_ns > MAX_HELD_NS {
            let held_ns = self.longest_held_ns;
            return Err(format!("an engine held a result back for {held_ns} ns"));
        }
        let counters = self.controller.counters();
        if counters.live != 0 {
            return Err(format!("{} tasks are left", counters.live));
        }
        let of_clients = self.plan.n_functions as usize * counters.clients as usize;
        let known = |c: &&Client| self.controller.client_name(c.id).is_some();
        let here = self.clients.values().filter(known);
        let of_clients = of_clients + here.map(|c| c.n_preparations as usize).sum::<usize>();
        if counters.kept_tasks == 0 && counters.functions as usize > of_clients {
            return Err(format!("{} functions are left", counters.functions));
        }
        let ended = counters.resolved.iter().sum::<u64>() + counters.discarded;
        if counters.submitted != ended {
            return Err(format!("{} submitted, {ended} ended", counters.submitted));
        }
        Ok(())
    }

    pub(crate) fn after(&mut self, delay_ns: Nanos, event: Event) {
        self.order += 1;
        self.events.push(Reverse(Due {
            at: self.now + delay_ns,
            order: self.order,
            event,
        }));
    }

    /// Sends over a link: with a random delay, but never before anything sent earlier on it.
    pub(crate) fn send(&mut self, link: Link, event: Event) {
        if self.cut.contains(&link) {
            return;
        }
        let longest = match self.random.below(100) {
            0 => 2_000 * MS,
            1..10 => 40 * MS,
            _ => MS,
        };
        let delay = 1 + self.random.time(longest);
        let earliest = self.last_arrival.get(&link).copied().unwrap_or(0) + 1;
        let at = earliest.max(self.now + delay);
        let at = at.max(self.sent_at(link) + 1);
        self.last_arrival.insert(link, at);
        self.after(at - self.now, event);
    }

    /// When what is sent now over a link gets on its way.
    fn sent_at(&self, link: Link) -> Nanos {
        let links = &self.links_to_hosts;
        match link {
            Link::FromHost(host) => links.last_stop(Actor::Relay(host)),
            Link::ToClient(client) | Link::FromClient(client) => links.client_until(client),
            _ => 0,
        }
    }

    /// The host over whose link something arrives.
    fn link_of(event: &Event) -> Option<HostId> {
        match event {
            Event::Relay(host, _)
            | Event::Node(NodeEvent::FromRelay(host, _) | NodeEvent::Link(LinkInput::Pong(host))) => {
                Some(*host)
            }
            _ => None,
        }
    }

    /// The process that handles an event.
    fn actor_of(event: &Event) -> Option<Actor> {
        Some(match event {
            Event::Node(_) => Actor::Controller,
            Event::Interrupts(host) if *host == HostId::CONTROLLER => Actor::Controller,
            Event::Relay(host, _)
            | Event::RelayForkServerStarts(host)
            | Event::ObjectArrives(host, _)
            | Event::Interrupts(host)
            | Event::HostIsTold(host, _)
            | Event::Link(
                LinkEvent::RelayTick(host)
                | LinkEvent::RelayLost(host, _)
                | LinkEvent::Dials(host)
                | LinkEvent::AttemptFails(host, _)
                | LinkEvent::Answered(host, ..),
            ) => Actor::Relay(*host),
            Event::Client(client, _)
            | Event::ClientActs(client)
            | Event::ClientAborts(client, _) => Actor::Client(*client),
            Event::Engine(pid, _)
            | Event::TaskEnds(pid, _)
            | Event::TaskNests(pid, _)
            | Event::GoOn(pid)
            | Event::Flush(pid, _) => Actor::Engine(*pid),
            _ => return None,
        })
    }

    pub(crate) fn step(&mut self, event: Event) -> Result<(), String> {
        if let Some(host) = Self::link_of(&event) {
            if self.links_to_hosts.is_given_up(host) {
                return Ok(());
            }
            if !self.links_to_hosts.carries(self.now, host) {
                self.links_to_hosts.hold(host, event);
                return Ok(());
            }
        }
        let stopped = Self::actor_of(&event);
        let stopped = stopped.and_then(|actor| self.links_to_hosts.goes_on_at(self.now, actor));
        if let Some(until) = stopped {
            self.after(until - self.now, event);
            return Ok(());
        }
        match event {
            Event::Node(event) => self.node(event)?,
            Event::Engine(pid, message) => self.engine_gets(pid, message)?,
            Event::TaskEnds(pid, run) => self.task_ends(pid, run)?,
            Event::TaskNests(pid, run) => self.task_nests(pid, run)?,
            Event::GoOn(pid) => self.go_on(pid)?,
            Event::Flush(pid, number) => self.flusher_acts(pid, number),
            Event::EngineExits(pid, code) => self.end_process(pid, Some(code), None),
            Event::Spawn(number, engine) if self.fork_server == Some(number) => self.spawn(engine),
            Event::ForkServerStops(number) if self.fork_server == Some(number) => {
                self.end_fork_server();
            }
            Event::Seat(number, engine, world, rank) if self.fork_server == Some(number) => {
                self.seat(HostId::CONTROLLER, engine, &world, rank);
            }
            Event::ReadWritten(number, reading) if self.fork_server == Some(number) => {
                let text = self.what_was_written();
                let written = ForkServerEvent::Written { reading, text };
                let event = Event::Node(NodeEvent::FromForkServer(written));
                self.send(Link::FromForkServer(number), event);
            }
            Event::WorldStarts(name) => self.start_world(name),
            Event::ForkServerStarts => {
                if self.fork_server.is_none() && !self.finished {
                    self.next_pid += 1;
                    self.fork_server = Some(self.next_pid);
                    self.send(
                        Link::FromForkServer(self.next_pid),
                        Event::Node(NodeEvent::Input(Input::ForkServerUp)),
                    );
                }
            }
            Event::HostStarts(name) => self.start_host(name),
            Event::HostEnds(host) => self.lose_host(host),
            Event::HostIsTold(host, ends_in_ns) => self.warn_host(host, ends_in_ns),
            Event::AwaitsNoMore(client) if !self.stopping => {
                self.request(client, ControlRequest::AwaitEngines(false));
            }
            Event::Spawn(..)
            | Event::Seat(..)
            | Event::ReadWritten(..)
            | Event::ForkServerStops(_)
            | Event::AwaitsNoMore(_) => {}
            Event::Relay(host, message) => self.relay_gets(host, message)?,
            Event::RelayHello(pid) => self.relay_hello(pid),
            Event::RelayForkServerStarts(host) => self.relay_fork_server_starts(host)?,
            Event::ObjectArrives(host, object) => self.object_arrives(host, object)?,
            Event::ValueArrives(object) => self.value_arrives(object)?,
            Event::Interrupts(host) => self.repeat_interrupts(host),
            Event::HasActed(pid, offer) => self.has_acted(pid, offer)?,
            Event::Client(client, output) => self.client_gets(client, output)?,
            Event::ClientActs(client) => self.client_acts(client),
            Event::ClientAborts(client, seqs) => self.cancel_seqs(client, seqs),
            Event::Fault => self.fault(),
            Event::Link(event) => self.on_link_event(event)?,
            Event::StopSome => self.stop_some(),
            Event::Lie => self.lie(),
        }
        Ok(())
    }

    pub(crate) fn client_gets(&mut self, id: ClientId, output: Output) -> Result<(), String> {
        match output {
            Output::Result { record, .. } => self.client_gets_result(id, &record),
            Output::Refused { record, .. } => {
                let mut results = record.results();
                results.try_for_each(|record| self.client_gets_result(id, &record))
            }
            Output::Coalesced { record, .. } => {
                let client = self.clients.get_mut(&id).filter(|c| c.alive);
                client.map_or(Ok(()), |c| c.on_coalesced(&record))?;
                let mut results = record.results();
                results.try_for_each(|record| self.judge_result(id, &record))
            }
            Output::ClientOutput { record, .. } => {
                let client = self.clients.get_mut(&id).filter(|c| c.alive);
                client.map_or(Ok(()), |c| c.on_output(&record))
            }
            Output::Reply { number, reply, .. } => {
                if let ControlReply::Records { records, .. } = &reply {
                    check_running(records)?;
                }
                let Some(client) = self.clients.get_mut(&id).filter(|c| c.alive) else {
                    return Ok(());
                };
                if client.requests.remove(&number) {
                    return Ok(());
                }
                Err(format!("client {} got an unrequested reply {number}", id.0))
            }
            _ => Ok(()),
        }
    }

    fn client_gets_result(&mut self, id: ClientId, record: &ResultRecord) -> Result<(), String> {
        let client = self.clients.get_mut(&id).filter(|c| c.alive);
        client.map_or(Ok(()), |c| c.on_result(record))?;
        self.judge_result(id, record)
    }

    fn judge_result(&mut self, id: ClientId, record: &ResultRecord) -> Result<(), String> {
        let Some(client) = self.clients.get(&id).filter(|c| c.alive) else {
            return Ok(());
        };
        let task = client.tasks.get(&record.seq);
        let original = task.and_then(|task| match task.copy {
            Copy::Subscribed(name) => Some(name),
            _ => None,
        });
        let original = original.map(|(owner, seq)| {
            let owner = self.clients.get(&owner);
            let task = owner.and_then(|c| c.tasks.get(&seq));
            Original {
                status: owner.and_then(|c| c.status(seq)),
                may_be_cancelled: task.is_some_and(|t| t.cancelled)
                    || owner.is_none_or(|c| !c.alive),
            }
        });
        let around = task.map_or_else(Circumstances::default, |task| Circumstances {
            original,
            reruns: self.reruns.get(&task.job).copied().unwrap_or(0),
            interrupts: self.has_interrupted_all,
            stopping: self.stopping,
            starts: self
                .starts
                .get(&(task.job, task.target))
                .copied()
                .unwrap_or(0),
            offered: self.offered.contains(&(task.job, task.target)),
            unmet: self.unmet.get(&task.job).copied().unwrap_or(0),
            deaths: self.deaths,
            host_losses: self.host_losses,
        });
        let client = self.clients.get_mut(&id);
        client.map_or(Ok(()), |c| c.judge(record, &self.jobs, around))?;
        self.on_client_result(id)
    }

    pub(crate) fn end_client(&mut self, id: ClientId) {
        let Some(client) = self.clients.get_mut(&id).filter(|c| c.alive) else {
            return;
        };
        let hanging: Vec<TaskSeq> = client
            .unresolved()
            .filter(|seq| self.jobs[client.tasks[seq].job as usize].hangs_unless_aborted())
            .collect();
        if !hanging.is_empty() {
            self.cancel_seqs(id, hanging);
        }
        let Some(client) = self.clients.get_mut(&id) else {
            return;
        };
        client.alive = false;
        let down = Input::ClientDown { client: id };
        self.send(Link::FromClient(id), Event::Node(NodeEvent::Input(down)));
        self.cut.insert(Link::FromClient(id));
    }
}
