//! The world: clock, links, processes, and the driver around the real controller.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::fmt::Write as _;

use broadleaf_core::{Controller, Counters, Input, Nanos, Output};
use broadleaf_proto::control::{EngineInfo, SpawnerEvent};
use broadleaf_proto::ids::{ClientId, EngineId};
use broadleaf_proto::task::{AssignRecord, DoneRecord, FunctionRecord};

use crate::client::{Circumstances, Client};
use crate::engine::{EngineProcess, Slot};
use crate::job::{Job, index_of};
use crate::random::Random;
use crate::trace::Trace;
use crate::{Failure, Mutation, Plan};

const MS: Nanos = 1_000_000;
/// No run may take longer than this on the virtual clock: nothing waits for ever.
const LONGEST_RUN_NS: Nanos = 3_600_000 * MS;
const MOST_STEPS: u64 = 400_000;

/// Messages on one link arrive in order; those of different links do not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Link {
    ToEngine(u32),
    FromEngine(u32),
    ToClient(ClientId),
    FromClient(ClientId),
    ToSpawner(u32),
    FromSpawner(u32),
}

/// What happens next.
#[derive(Clone, Debug)]
pub(crate) enum Event {
    /// The driver reads this from one of its links, or tells itself.
    Node(NodeEvent),
    Engine(u32, EngineMessage),
    TaskEnds(u32, u64),
    Flush(u32),
    EngineExits(u32, i32),
    Spawn(u32, EngineId),
    SpawnerStops(u32),
    SpawnerStarts,
    Client(ClientId, Output),
    ClientActs(ClientId),
    Fault,
}

/// What reaches the driver.
#[derive(Clone, Debug)]
pub(crate) enum NodeEvent {
    Input(Input),
    Hello(u32),
    FromEngine(u32, Input),
    EngineClosed(u32),
    /// The oldest answer to a revoke that was kept back.
    Answer(u32),
    FromSpawner(SpawnerEvent),
    SpawnerClosed,
    Schedule,
    Deadline,
}

/// What reaches an engine.
#[derive(Clone, Debug)]
pub(crate) enum EngineMessage {
    Function(FunctionRecord),
    Assign(AssignRecord),
    Stop,
}

#[derive(Debug)]
struct Due {
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
pub(crate) struct Cluster {
    pub now: Nanos,
    pub random: Random,
    pub plan: Plan,
    pub trace: Trace,
    controller: Controller,
    events: BinaryHeap<Reverse<Due>>,
    order: u64,
    last_arrival: BTreeMap<Link, Nanos>,
    /// Links whose messages are lost from now on.
    cut: BTreeSet<Link>,
    pub processes: BTreeMap<u32, EngineProcess>,
    next_pid: u32,
    runs: u64,
    /// The process at the other end of the driver's link to each engine.
    links: BTreeMap<EngineId, u32>,
    /// The spawner's number, while there is one.
    spawner: Option<u32>,
    pub clients: BTreeMap<ClientId, Client>,
    pub jobs: Vec<Job>,
    starts: BTreeMap<(u64, Option<EngineId>), u32>,
    unmet: BTreeMap<u64, u32>,
    pub interrupts: bool,
    deaths: u32,
    pub stopping: bool,
    finished: bool,
    schedule_pending: bool,
    deadline_pending: Option<Nanos>,
    outputs: Vec<Output>,
}

impl Cluster {
    pub fn new(plan: Plan, trace: Trace) -> Self {
        let mut cluster = Self {
            now: 1_000 * MS,
            random: Random::new(plan.seed),
            controller: Controller::new(plan.config.clone()),
            trace,
            events: BinaryHeap::new(),
            order: 0,
            last_arrival: BTreeMap::new(),
            cut: BTreeSet::new(),
            processes: BTreeMap::new(),
            next_pid: 100,
            runs: 0,
            links: BTreeMap::new(),
            spawner: None,
            clients: BTreeMap::new(),
            jobs: Vec::new(),
            starts: BTreeMap::new(),
            unmet: BTreeMap::new(),
            interrupts: false,
            deaths: 0,
            stopping: false,
            finished: false,
            schedule_pending: false,
            deadline_pending: None,
            outputs: Vec::new(),
            plan,
        };
        cluster.after(0, Event::SpawnerStarts);
        for id in 0..cluster.plan.n_clients {
            let at = cluster.random.below(20 * MS);
            cluster.after(at, Event::ClientActs(ClientId(id)));
        }
        for _ in 0..cluster.plan.n_faults {
            let at = cluster.random.below(cluster.plan.busy_ns);
            cluster.after(at, Event::Fault);
        }
        cluster
    }

    /// Runs to the end.
    pub fn run(&mut self) -> Result<(), Failure> {
        let mut steps = 0;
        while !self.finished {
            let Some(Reverse(due)) = self.events.pop() else {
                return Err(self.failure(&self.what_hangs()));
            };
            steps += 1;
            self.now = self.now.max(due.at);
            if steps > MOST_STEPS || self.now > LONGEST_RUN_NS {
                return Err(self.failure(&self.what_hangs()));
            }
            self.trace.note(self.now, &due.event);
            self.step(due.event).map_err(|what| self.failure(&what))?;
            self.end_if_quiet();
        }
        self.check_end().map_err(|what| self.failure(&what))
    }

    pub fn counters(&self) -> Counters {
        self.controller.counters()
    }

    fn failure(&self, what: &str) -> Failure {
        Failure {
            seed: self.plan.seed,
            now_ns: self.now,
            what: what.to_string(),
        }
    }

    fn what_hangs(&self) -> String {
        let mut text = "waits for ever:".to_string();
        for client in self.clients.values().filter(|c| c.alive) {
            for seq in client.unresolved().take(3) {
                let why = self.controller.explain(client.id, seq);
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
        let _ = write!(text, " engines: {:?}", self.controller.counters().engines);
        text
    }

    /// With every result and reply there, the clients leave and the last one stops the cluster.
    fn end_if_quiet(&mut self) {
        let quiet = |c: &Client| {
            !c.alive
                || c.bursts_left == 0 && c.unresolved().next().is_none() && c.requests.is_empty()
        };
        let all_here = self.clients.len() == self.plan.n_clients as usize;
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

    fn check_end(&self) -> Result<(), String> {
        for client in self.clients.values().filter(|c| c.alive) {
            if let Some(seq) = client.unresolved().next() {
                return Err(format!("client {} {seq:?} has no result", client.id.0));
            }
        }
        let counters = self.controller.counters();
        if counters.live != 0 {
            return Err(format!("{} tasks are left", counters.live));
        }
        if counters.functions as usize > self.plan.n_functions as usize * counters.clients as usize
        {
            return Err(format!("{} functions are left", counters.functions));
        }
        let ended = counters.resolved.iter().sum::<u64>() + counters.discarded;
        if counters.submitted != ended {
            return Err(format!("{} submitted, {ended} ended", counters.submitted));
        }
        Ok(())
    }

    pub fn after(&mut self, delay_ns: Nanos, event: Event) {
        self.order += 1;
        self.events.push(Reverse(Due {
            at: self.now + delay_ns,
            order: self.order,
            event,
        }));
    }

    /// Sends over a link: a random delay, never before what was sent earlier on it.
    pub fn send(&mut self, link: Link, event: Event) {
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
        self.last_arrival.insert(link, at);
        self.after(at - self.now, event);
    }

    fn step(&mut self, event: Event) -> Result<(), String> {
        match event {
            Event::Node(event) => self.node(event)?,
            Event::Engine(pid, message) => self.engine_gets(pid, message)?,
            Event::TaskEnds(pid, run) => self.task_ends(pid, run)?,
            Event::Flush(pid) => {
                if self.processes.get(&pid).is_some_and(|p| p.alive) {
                    self.flush(pid);
                }
            }
            Event::EngineExits(pid, code) => self.end_process(pid, Some(code), None),
            Event::Spawn(number, engine) if self.spawner == Some(number) => self.spawn(engine),
            Event::SpawnerStops(number) if self.spawner == Some(number) => self.end_spawner(),
            Event::Spawn(..) | Event::SpawnerStops(_) => {}
            Event::SpawnerStarts => {
                if self.spawner.is_none() && !self.finished {
                    self.next_pid += 1;
                    self.spawner = Some(self.next_pid);
                    self.send(
                        Link::FromSpawner(self.next_pid),
                        Event::Node(NodeEvent::Input(Input::SpawnerUp)),
                    );
                }
            }
            Event::Client(client, output) => self.client_gets(client, output)?,
            Event::ClientActs(client) => self.client_acts(client),
            Event::Fault => self.fault(),
        }
        Ok(())
    }

    // ---- the driver -----------------------------------------------------------------------------

    fn node(&mut self, event: NodeEvent) -> Result<(), String> {
        match event {
            NodeEvent::Input(input) => self.feed(input)?,
            NodeEvent::FromSpawner(event) => self.feed(Input::Spawner(event))?,
            NodeEvent::SpawnerClosed => self.feed(Input::SpawnerDown)?,
            NodeEvent::Hello(pid) => self.hello(pid)?,
            NodeEvent::FromEngine(pid, input) => {
                let current = self.processes.get(&pid).map(|p| p.engine);
                if current.is_some_and(|e| self.links.get(&e) == Some(&pid)) {
                    self.feed(input)?;
                }
            }
            NodeEvent::Answer(pid) => self.answer(pid)?,
            NodeEvent::EngineClosed(pid) => self.engine_closed(pid)?,
            NodeEvent::Schedule => {
                self.schedule_pending = false;
                self.controller.schedule(self.now, &mut self.outputs);
                self.carry_out()?;
            }
            NodeEvent::Deadline => {
                self.deadline_pending = None;
                self.controller.on_deadline(self.now, &mut self.outputs);
                self.carry_out()?;
                self.want_schedule();
            }
        }
        self.controller.check().map_err(|v| v.to_string())?;
        if let Some(at) = self.controller.next_deadline() {
            if self.deadline_pending.is_none_or(|pending| at < pending) {
                self.deadline_pending = Some(at);
                let delay = at.saturating_sub(self.now);
                self.after(delay, Event::Node(NodeEvent::Deadline));
            }
        }
        Ok(())
    }

    fn feed(&mut self, input: Input) -> Result<(), String> {
        self.controller.on_input(self.now, input, &mut self.outputs);
        self.carry_out()?;
        self.want_schedule();
        Ok(())
    }

    /// The end of a batch: at once, or after more inputs.
    fn want_schedule(&mut self) {
        if !self.schedule_pending {
            self.schedule_pending = true;
            let delay = if self.random.chance(50) {
                0
            } else {
                self.random.below(MS)
            };
            self.after(delay, Event::Node(NodeEvent::Schedule));
        }
    }

    fn hello(&mut self, pid: u32) -> Result<(), String> {
        let Some(process) = self.processes.get_mut(&pid) else {
            return Ok(());
        };
        let engine = process.engine;
        if !process.alive {
            return Ok(());
        }
        if !self.controller.expects(engine) {
            self.end_process(pid, Some(1), None);
            return Ok(());
        }
        process.linked = true;
        self.links.insert(engine, pid);
        let info = EngineInfo {
            engine,
            uuid: format!("{pid:032x}"),
            pid,
            host: "simulated".into(),
        };
        self.feed(Input::EngineUp { info })
    }

    fn answer(&mut self, pid: u32) -> Result<(), String> {
        let Some(process) = self.processes.get_mut(&pid) else {
            return Ok(());
        };
        let engine = process.engine;
        match process.answers.pop_front() {
            Some((key, won)) => self.feed(Input::Revoked { engine, key, won }),
            None => Ok(()),
        }
    }

    fn engine_closed(&mut self, pid: u32) -> Result<(), String> {
        let n_answers = self.processes.get(&pid).map_or(0, |p| p.answers.len());
        for _ in 0..n_answers {
            self.answer(pid)?;
        }
        let Some(process) = self.processes.get_mut(&pid) else {
            return Ok(());
        };
        let engine = process.engine;
        // Taken back before they are reported, so that a process that lives on cannot claim them.
        let mut unclaimed_offers = process.unclaimed();
        for offer in &unclaimed_offers {
            process.revoke(*offer);
        }
        if self.links.get(&engine) != Some(&pid) {
            return Ok(());
        }
        self.links.remove(&engine);
        if self.plan.mutation == Mutation::AllUnclaimed {
            unclaimed_offers = process.board.keys().copied().collect();
        }
        self.feed(Input::EngineDown {
            engine,
            unclaimed_offers,
        })
    }

    fn carry_out(&mut self) -> Result<(), String> {
        for output in std::mem::take(&mut self.outputs) {
            self.trace.note(self.now, &output);
            match output {
                Output::Result { client, .. }
                | Output::ClientOutput { client, .. }
                | Output::Event { client, .. }
                | Output::Reply { client, .. } => {
                    self.send(Link::ToClient(client), Event::Client(client, output));
                }
                Output::Function { engine, record } => {
                    self.to_engine(engine, EngineMessage::Function(record))?;
                }
                Output::Assign { engine, record } => {
                    let pid = self.link_to(engine)?;
                    if let Some(process) = self.processes.get_mut(&pid) {
                        if process.board.insert(record.offer, Slot::Offered).is_some() {
                            return Err(format!("offer {} was made twice", record.offer));
                        }
                    }
                    self.to_engine(engine, EngineMessage::Assign(record))?;
                }
                Output::Stop { engine } => {
                    if self.links.contains_key(&engine) {
                        self.to_engine(engine, EngineMessage::Stop)?;
                    }
                }
                Output::Revoke { engine, key, offer } => {
                    let pid = self.link_to(engine)?;
                    let process = self.processes.get_mut(&pid);
                    let won = process.is_some_and(|p| p.revoke(offer))
                        || self.plan.mutation == Mutation::RevokeAlwaysWon;
                    // Answered now or later, but before the end of the link is reported.
                    if let Some(process) = self.processes.get_mut(&pid) {
                        process.answers.push_back((key, won));
                    }
                    let delay = self.random.time(40 * MS);
                    self.after(delay, Event::Node(NodeEvent::Answer(pid)));
                }
                Output::Interrupt { engine, offer, .. } => self.interrupt(engine, offer),
                Output::Kill { pid, signal, .. } => self.end_process(pid, None, Some(signal)),
                Output::Spawn { engine } => {
                    if let Some(number) = self.spawner {
                        self.send(Link::ToSpawner(number), Event::Spawn(number, engine));
                    }
                }
                Output::StopSpawner => {
                    if let Some(number) = self.spawner {
                        self.send(Link::ToSpawner(number), Event::SpawnerStops(number));
                    }
                }
                Output::Finished => self.finished = true,
            }
        }
        Ok(())
    }

    fn link_to(&self, engine: EngineId) -> Result<u32, String> {
        let link = self.links.get(&engine).copied();
        link.ok_or_else(|| format!("engine {} has no link", engine.0))
    }

    fn to_engine(&mut self, engine: EngineId, message: EngineMessage) -> Result<(), String> {
        let pid = self.link_to(engine)?;
        self.send(Link::ToEngine(pid), Event::Engine(pid, message));
        Ok(())
    }

    // ---- engines and their spawner --------------------------------------------------------------

    fn spawn(&mut self, engine: EngineId) {
        let Some(number) = self.spawner else { return };
        self.next_pid += 1;
        let pid = self.next_pid;
        self.processes.insert(pid, EngineProcess::new(engine, pid));
        let spawned = NodeEvent::FromSpawner(SpawnerEvent::Spawned(engine, pid));
        self.send(Link::FromSpawner(number), Event::Node(spawned));
        if self.random.chance(self.plan.bad_start_percent) {
            let delay = self.random.time(100 * MS);
            self.after(delay, Event::EngineExits(pid, 3));
        } else {
            self.send(Link::FromEngine(pid), Event::Node(NodeEvent::Hello(pid)));
        }
    }

    pub fn end_process(&mut self, pid: u32, code: Option<i32>, signal: Option<i32>) {
        let Some(process) = self.processes.get_mut(&pid).filter(|p| p.alive) else {
            return;
        };
        process.alive = false;
        process.running = None;
        process.inbox.clear();
        let engine = process.engine;
        self.deaths += 1;
        self.close_link(pid);
        let watched = self.processes.get(&pid).is_some_and(|p| p.watched);
        if let Some(number) = self.spawner.filter(|_| watched) {
            let event = SpawnerEvent::Exited {
                engine,
                pid,
                code,
                signal,
                out_of_memory: false,
                last_output: "last words".into(),
            };
            let link = Link::FromSpawner(number);
            self.send(link, Event::Node(NodeEvent::FromSpawner(event)));
        }
    }

    fn close_link(&mut self, pid: u32) {
        let closed = Event::Node(NodeEvent::EngineClosed(pid));
        self.cut.remove(&Link::FromEngine(pid));
        self.send(Link::FromEngine(pid), closed);
        self.cut.insert(Link::FromEngine(pid));
        self.cut.insert(Link::ToEngine(pid));
    }

    /// The link alone is lost; its process notices later.
    pub fn lose_link(&mut self, pid: u32) {
        let linked = self
            .processes
            .get(&pid)
            .is_some_and(|p| p.alive && p.linked);
        if linked {
            self.deaths += 1;
            self.close_link(pid);
            let delay = self.random.time(3_000 * MS);
            self.after(delay, Event::EngineExits(pid, 1));
        }
    }

    pub fn end_spawner(&mut self) {
        let Some(number) = self.spawner.take() else {
            return;
        };
        for process in self.processes.values_mut() {
            process.watched = false;
        }
        self.send(
            Link::FromSpawner(number),
            Event::Node(NodeEvent::SpawnerClosed),
        );
        if !self.stopping {
            // Not before the node has seen the end of the one before.
            let seen = self.last_arrival[&Link::FromSpawner(number)] - self.now;
            let delay = seen + 1 + self.random.time(500 * MS);
            self.after(delay, Event::SpawnerStarts);
        }
    }

    fn engine_gets(&mut self, pid: u32, message: EngineMessage) -> Result<(), String> {
        let Some(process) = self.processes.get_mut(&pid).filter(|p| p.alive) else {
            return Ok(());
        };
        match message {
            EngineMessage::Function(record) => {
                let body = index_of(&record.body);
                process.functions.insert(record.function.0, body);
            }
            EngineMessage::Assign(record) => {
                if !process.functions.contains_key(&record.function.0) {
                    return Err(format!("{:?} is unknown to process {pid}", record.function));
                }
                process.inbox.push_back(record);
                self.start_next(pid)?;
            }
            EngineMessage::Stop => {
                process.stopping = true;
                if process.running.is_none() {
                    self.flush(pid);
                    self.end_process(pid, Some(0), None);
                }
            }
        }
        Ok(())
    }

    fn start_next(&mut self, pid: u32) -> Result<(), String> {
        let Some(process) = self.processes.get_mut(&pid).filter(|p| p.alive) else {
            return Ok(());
        };
        if process.running.is_some() {
            return Ok(());
        }
        let Some(record) = process.claim_next() else {
            self.flush(pid);
            return Ok(());
        };
        self.runs += 1;
        let job = &self.jobs[index_of(&record.payload.bytes) as usize];
        process.running = Some(crate::engine::Running {
            key: record.key,
            offer: record.offer,
            job: job.index,
            function: record.function.0,
            started_ns: self.now,
            run: self.runs,
            interrupted: false,
        });
        let each = job.options.mode == broadleaf_proto::Mode::Each;
        let target = each.then_some(process.engine);
        let starts = self.starts.entry((job.index, target)).or_default();
        *starts += 1;
        let unmet = self.unmet.get(&job.index).copied().unwrap_or(0);
        if *starts > 1 + job.options.retries + unmet {
            return Err(format!("job {} was started {starts} times", job.index));
        }
        if job.fate != crate::job::Fate::Hang {
            let duration = job.duration_ns;
            let run = self.runs;
            self.after(duration, Event::TaskEnds(pid, run));
        }
        Ok(())
    }

    fn interrupt(&mut self, engine: EngineId, offer: u32) {
        let process = self
            .links
            .get(&engine)
            .and_then(|pid| self.processes.get_mut(pid));
        let Some(process) = process.filter(|p| p.alive) else {
            return;
        };
        let pid = process.pid;
        let Some(running) = process.running.as_mut().filter(|r| r.offer == offer) else {
            return;
        };
        if !self.jobs[running.job as usize].stubborn {
            running.interrupted = true;
            let run = running.run;
            self.after(1000, Event::TaskEnds(pid, run));
        }
    }

    fn task_ends(&mut self, pid: u32, run: u64) -> Result<(), String> {
        use broadleaf_proto::task::{Payload, Status};

        use crate::job::Fate;
        let Some(process) = self.processes.get_mut(&pid).filter(|p| p.alive) else {
            return Ok(());
        };
        let Some(running) = process.running.take_if(|r| r.run == run) else {
            return Ok(());
        };
        let job = &self.jobs[running.job as usize];
        let starts = match job.options.mode {
            broadleaf_proto::Mode::Each => (job.index, Some(process.engine)),
            broadleaf_proto::Mode::Balanced => (job.index, None),
        };
        let first = self.starts.get(&starts) == Some(&1);
        let status = match job.fate {
            _ if running.interrupted => Status::Error,
            Fate::Crash => {
                self.end_process(pid, None, Some(11));
                return Ok(());
            }
            _ if job.is_unmet_on(process.engine) => Status::Unmet,
            Fate::Raise => Status::Error,
            Fate::RaiseOnce if first => Status::Error,
            _ => Status::Ok,
        };
        let mut payload = Payload::default();
        match status {
            Status::Unmet => *self.unmet.entry(job.index).or_default() += 1,
            Status::Ok => {
                payload.bytes = Job::value(job.index, process.functions[&running.function])
            }
            _ => {}
        }
        process.finished.push(DoneRecord {
            key: running.key,
            status,
            started_ns: running.started_ns,
            completed_ns: self.now,
            payload,
        });
        let stopping = process.stopping;
        // An engine may keep a result back while it runs the next task, for a bounded time.
        if stopping || self.random.chance(70) {
            self.flush(pid);
        } else {
            let delay = self.random.time(5 * MS);
            self.after(delay, Event::Flush(pid));
        }
        if stopping {
            self.end_process(pid, Some(0), None);
            return Ok(());
        }
        self.start_next(pid)
    }

    fn flush(&mut self, pid: u32) {
        let Some(process) = self.processes.get_mut(&pid) else {
            return;
        };
        let engine = process.engine;
        for record in std::mem::take(&mut process.finished) {
            let input = Input::Done { engine, record };
            let event = Event::Node(NodeEvent::FromEngine(pid, input));
            self.send(Link::FromEngine(pid), event);
        }
    }

    // ---- clients --------------------------------------------------------------------------------

    fn client_gets(&mut self, id: ClientId, output: Output) -> Result<(), String> {
        let Some(client) = self.clients.get_mut(&id).filter(|c| c.alive) else {
            return Ok(());
        };
        match output {
            Output::Result { record, .. } => {
                let task = client.tasks.get(&record.seq);
                let around = task.map_or_else(Circumstances::default, |task| Circumstances {
                    interrupts: self.interrupts,
                    stopping: self.stopping,
                    starts: self
                        .starts
                        .get(&(task.job, task.target))
                        .copied()
                        .unwrap_or(0),
                    unmet: self.unmet.get(&task.job).copied().unwrap_or(0),
                    deaths: self.deaths,
                });
                client.on_result(&record, &self.jobs, around)
            }
            Output::Reply { number, .. } if !client.requests.remove(&number) => Err(format!(
                "client {} got a reply {number} it did not ask for",
                id.0
            )),
            _ => Ok(()),
        }
    }

    pub fn end_client(&mut self, id: ClientId) {
        let Some(client) = self.clients.get_mut(&id).filter(|c| c.alive) else {
            return;
        };
        client.alive = false;
        let down = Input::ClientDown { client: id };
        self.send(Link::FromClient(id), Event::Node(NodeEvent::Input(down)));
        self.cut.insert(Link::FromClient(id));
    }
}
