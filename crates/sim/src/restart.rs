//! A controller that ends at any step and is started again, with its hosts: the controller's and the relays' machines, and
//! engines that claim, run and die.
//!
//! Each controller has a client, which is lost with it. What an engine had begun runs to its end, once; what no engine had
//! begun when its relay found the new controller never runs. Engines that live keep their numbers, and the tasks of the latest client all end once, each
//! with the value of its own run.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use broadleaf_core::journal::Facts;
use broadleaf_core::relay::{Arguments, Board, Freed, Relay, RelayAction};
use broadleaf_core::{Config, Controller, Input, Nanos, Output};
use broadleaf_proto::control::{DefineOptions, EngineInfo, ForkServerEvent, ForkServerOrder};
use broadleaf_proto::host::{EngineOrder, EngineReport};
use broadleaf_proto::ids::{
    ClientId, EngineId, FunctionHash, FunctionId, HostId, OptionsId, TaskSeq,
};
use broadleaf_proto::relay::Holdings;
use broadleaf_proto::task::{
    AssignRecord, DoneRecord, FunctionRecord, Payload, ResultRecord, Status, SubmitRecord,
};
use broadleaf_proto::{Mode, TargetSet, TaskOptions};
use bytes::Bytes;

use crate::random::Random;

const MS: Nanos = 1_000_000;
/// Steps while clients submit, and at most so many more until everything has ended.
const STEPS: (u32, u32) = (1_500, 30_000);
const FUNCTIONS: u64 = 3;
/// One of so many jobs takes long.
const LONG_JOBS: u64 = 6;
const ENGINES_PER_HOST: u32 = 2;
/// How long a host may stay away.
const REJOIN_NS: Nanos = 60_000 * MS;

/// A fault put in, to check that the simulation finds it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RestartMutation {
    /// None.
    #[default]
    None,
    /// Relays leave with their engines what these have not begun.
    LeavesOffers,
    /// Relays do not say what their engines have begun.
    ForgetsRunning,
    /// Relays say that offers begin at 0.
    RenumbersOffers,
    /// A controller does not know that there were others before it.
    RepeatsKeys,
}

/// What happened in a run.
#[derive(Clone, Copy, Debug, Default)]
pub struct RestartOutcome {
    /// Controllers that were started after the first.
    pub restarts: u32,
    /// Hosts that came back to one.
    pub rejoined: u32,
    /// Hosts that did not.
    pub lost_hosts: u32,
    /// Tasks that were running when their controller ended.
    pub inherited: u32,
    /// Tasks that were taken back.
    pub taken_back: u32,
    /// Tasks whose clients were told their ends.
    pub ended: u32,
    /// Engines that died.
    pub deaths: u32,
}

#[derive(Debug)]
enum ToHost {
    Assign(EngineId, AssignRecord),
    Function(EngineId, FunctionRecord),
    Order(EngineOrder),
}

#[derive(Debug, Default)]
struct Engine {
    pid: u32,
    /// Offers that nobody has claimed.
    board: BTreeSet<u32>,
    /// Tasks that were handed over, claimed or not.
    received: VecDeque<AssignRecord>,
    running: Option<AssignRecord>,
    next_offer: u32,
    functions: BTreeMap<FunctionId, Bytes>,
}

#[derive(Debug)]
struct Host {
    relay: Relay,
    engines: BTreeMap<EngineId, Engine>,
    /// Messages on their way, each way in order.
    to: VecDeque<ToHost>,
    from: VecDeque<Input>,
    /// Since when it has had no controller.
    away_since: Option<Nanos>,
}

#[derive(Debug)]
struct World {
    now: Nanos,
    random: Random,
    mutation: RestartMutation,
    controller: Controller,
    facts: Facts,
    hosts: BTreeMap<HostId, Host>,
    client: ClientId,
    next_seq: u64,
    next_job: u64,
    next_pid: u32,
    /// Jobs of the client that have not ended, by their task's number.
    open: BTreeMap<TaskSeq, u64>,
    /// Jobs that have begun.
    begun: BTreeSet<u64>,
    /// Jobs that were taken back, or were on their way, when their controller ended.
    dropped: BTreeSet<u64>,
    outcome: RestartOutcome,
}

type Checked = Result<(), String>;

/// Runs one seed.
///
/// # Errors
/// What went wrong first.
pub fn run_restart(seed: u64, mutation: RestartMutation) -> Result<RestartOutcome, String> {
    let mut world = World::new(seed, mutation);
    let run = world.run();
    run.map_err(|what| format!("seed {seed} at {} ns: {what}", world.now))?;
    Ok(world.outcome)
}

fn config() -> Config {
    Config {
        journal: true,
        kept_results_bytes: 0,
        prefetch_max: 6,
        ..Config::default()
    }
}

fn job_of(payload: &Payload) -> u64 {
    payload.bytes[..]
        .try_into()
        .map_or(u64::MAX, u64::from_le_bytes)
}

fn payload_of(job: u64) -> Payload {
    Payload {
        bytes: Bytes::copy_from_slice(&job.to_le_bytes()),
        ..Payload::default()
    }
}

fn body_of(job: u64) -> Bytes {
    Bytes::copy_from_slice(format!("function {}", job % FUNCTIONS).as_bytes())
}

fn uuid_of(pid: u32) -> String {
    format!("{pid:032x}")
}

impl World {
    fn new(seed: u64, mutation: RestartMutation) -> Self {
        let mut facts = Facts::default();
        facts.start();
        Self {
            now: 1,
            random: Random::new(seed),
            mutation,
            controller: Controller::new(config()),
            facts,
            hosts: BTreeMap::new(),
            client: ClientId(0),
            next_seq: 0,
            next_job: 0,
            next_pid: 100,
            open: BTreeMap::new(),
            begun: BTreeSet::new(),
            dropped: BTreeSet::new(),
            outcome: RestartOutcome::default(),
        }
    }

    fn run(&mut self) -> Checked {
        self.new_client()?;
        for host in 1..=1 + self.random.below(3) as u32 {
            self.new_host(HostId(host))?;
        }
        let mut restart_in = None;
        for _ in 0..STEPS.0 {
            // The first tasks of two controllers meet where the second one ends soon.
            restart_in = restart_in.and_then(|steps: u64| steps.checked_sub(1));
            match self.random.below(1000) {
                _ if restart_in == Some(0) => self.restart()?,
                0..3 => {
                    self.restart()?;
                    restart_in = (self.random.below(2) == 0).then(|| 1 + self.random.below(80));
                }
                3..6 => self.kill_engine(),
                6..7 => self.lose_host()?,
                7..200 => self.submit()?,
                _ => self.go_on()?,
            }
        }
        let mut steps = 0;
        while !self.is_quiet() {
            steps += 1;
            if steps > STEPS.1 {
                return Err(format!("waits forever: {:?}", self.open));
            }
            self.go_on()?;
        }
        self.check_engines()
    }

    fn is_quiet(&self) -> bool {
        let idle = |h: &Host| {
            let engines = h.engines.values();
            let is_idle = |e: &Engine| e.running.is_none() && e.received.is_empty();
            h.away_since.is_none() && h.to.is_empty() && h.from.is_empty() && { engines }
                .all(is_idle)
        };
        self.open.is_empty() && self.hosts.values().all(idle)
    }

    /// Something that does not need a reason.
    fn go_on(&mut self) -> Checked {
        self.now += self.random.time(2 * MS);
        if self
            .controller
            .next_deadline()
            .is_some_and(|at| at <= self.now)
        {
            let mut out = Vec::new();
            self.controller.on_deadline(self.now, &mut out);
            return self.carry_out(out);
        }
        let hosts: Vec<HostId> = self.hosts.keys().copied().collect();
        if hosts.is_empty() {
            return self.new_host(HostId(self.facts.last_host().0 + 1));
        }
        let host = hosts[self.random.below(hosts.len() as u64) as usize];
        match self.random.below(5) {
            0 => self.host_hears(host),
            1 => self.controller_hears(host),
            2 => self.rejoin(host),
            _ => self.engine_acts(host),
        }
    }

    fn input(&mut self, input: Input) -> Checked {
        let mut out = Vec::new();
        self.controller.on_input(self.now, input, &mut out);
        self.carry_out(out)
    }

    /// Carries out what the controller asked for, and lets it place tasks.
    fn carry_out(&mut self, mut out: Vec<Output>) -> Checked {
        self.controller.schedule(self.now, &mut out);
        self.controller.check().map_err(|v| v.to_string())?;
        self.controller.take_freed_functions();
        for output in out {
            match output {
                Output::Note(fact) => self.facts.add(fact),
                Output::Result { record, .. } => self.client_hears(&record)?,
                Output::Refused { record, .. } => {
                    record.results().try_for_each(|r| self.client_hears(&r))?;
                }
                Output::Assign { engine, record, .. } => {
                    self.tell(engine, ToHost::Assign(engine, record))?;
                }
                Output::Function { engine, record } => {
                    self.tell(engine, ToHost::Function(engine, record))?;
                }
                Output::Order(order) => self.tell(order.engine(), ToHost::Order(order))?,
                Output::Expel { host } => return Err(format!("{host:?} is cut off")),
                _ => {}
            }
        }
        Ok(())
    }

    fn tell(&mut self, engine: EngineId, message: ToHost) -> Checked {
        let host = self.controller.host_of(engine);
        let Some(host) = self.hosts.get_mut(&host) else {
            return Ok(()); // It is lost, and the controller has yet to hear of it.
        };
        if host.away_since.is_some() {
            return match message {
                ToHost::Order(_) => Ok(()), // It is lost with the link.
                other => Err(format!("{other:?} for a host that is away")),
            };
        }
        host.to.push_back(message);
        Ok(())
    }

    // The client

    fn new_client(&mut self) -> Checked {
        (self.next_seq, self.client) = (0, ClientId(self.client.0 + 1));
        let client = self.client;
        let name = "client".to_owned();
        self.input(Input::ClientUp { client, name })?;
        for function in 0..FUNCTIONS {
            let body = body_of(function);
            let mut hash = [0; 16];
            hash[0] = 1 + function as u8;
            let record = FunctionRecord {
                function: FunctionId(function as u32),
                hash: FunctionHash(hash),
                name: Bytes::new(),
                body,
            };
            self.input(Input::Function { client, record })?;
        }
        Ok(())
    }

    fn submit(&mut self) -> Checked {
        let (client, job) = (self.client, self.next_job);
        self.next_job += 1;
        let seq = TaskSeq(self.next_seq);
        self.next_seq += 1;
        let engines = self.controller.engines();
        let mut options = OptionsId(0);
        if !engines.is_empty() && self.random.chance(40) {
            let at = engines[self.random.below(engines.len() as u64) as usize].engine;
            options = OptionsId(1 + job as u32);
            let define = DefineOptions {
                id: options,
                options: TaskOptions {
                    mode: Mode::Each,
                    targets: TargetSet::Ranges(vec![(at, EngineId(at.0 + 1))]),
                    ..TaskOptions::default()
                },
            };
            self.input(Input::Options { client, define })?;
        }
        self.open.insert(seq, job);
        let record = SubmitRecord {
            seq,
            function: FunctionId((job % FUNCTIONS) as u32),
            options,
            depth: 0,
            after: smallvec::SmallVec::new(),
            follow: smallvec::SmallVec::new(),
            payload: payload_of(job),
        };
        self.input(Input::Submit { client, record })
    }

    fn client_hears(&mut self, record: &ResultRecord) -> Checked {
        let Some(job) = self.open.remove(&record.seq) else {
            return Err(format!("{:?} ends again, or was not submitted", record.seq));
        };
        self.outcome.ended += 1;
        match record.status {
            Status::Ok if job_of(&record.payload) != job => Err(format!(
                "job {job} got the value of {}",
                job_of(&record.payload)
            )),
            Status::Ok | Status::Lost | Status::Refused => Ok(()),
            status => Err(format!("job {job} ended as {status:?}")),
        }
    }

    // The hosts

    fn new_host(&mut self, host: HostId) -> Checked {
        let mut relay = Relay::default();
        relay.outlive_controller();
        relay.on_fork_server_up(&mut Vec::new());
        let new = Host {
            relay,
            engines: BTreeMap::new(),
            to: VecDeque::new(),
            from: VecDeque::new(),
            away_since: None,
        };
        self.hosts.insert(host, new);
        self.input(Input::HostUp {
            host,
            name: format!("host {}", host.0),
            n_engines: ENGINES_PER_HOST,
            n_cores: 1,
            ends_in_ns: None,
        })
    }

    fn lose_host(&mut self) -> Checked {
        let Some(host) = self.hosts.keys().next().copied() else {
            return Ok(());
        };
        self.forget_host(host);
        self.input(Input::HostDown { host })
    }

    fn forget_host(&mut self, host: HostId) {
        self.hosts.remove(&host);
        self.outcome.lost_hosts += 1;
    }

    fn host_hears(&mut self, id: HostId) -> Checked {
        let Some(host) = self.hosts.get_mut(&id) else {
            return Ok(());
        };
        match host.to.pop_front() {
            None => Ok(()),
            Some(ToHost::Function(engine, record)) => {
                host.relay.on_function(record.clone());
                let given = host.relay.function(record.function).cloned();
                let engine = host.engines.get_mut(&engine);
                if let (Some(engine), Some(given)) = (engine, given) {
                    engine.functions.insert(given.function, given.body);
                }
                Ok(())
            }
            Some(ToHost::Assign(engine, record)) => {
                let Some(there) = host.engines.get_mut(&engine) else {
                    return Ok(()); // It died; the controller is told what did not reach it.
                };
                if record.offer != there.next_offer {
                    let due = there.next_offer;
                    return Err(format!("offer {} to {engine:?}, not {due}", record.offer));
                }
                let job = job_of(&record.payload);
                if there.functions.get(&record.function) != Some(&body_of(job)) {
                    return Err(format!("job {job} reaches {engine:?} before its function"));
                }
                there.board.insert(record.offer);
                there.next_offer += 1;
                let freed = host.relay.on_offered(engine, record, &Arguments::Here);
                if let Some(Freed::Deliver(_, record)) = freed {
                    there.received.push_back(record);
                }
                Ok(())
            }
            Some(ToHost::Order(order)) => {
                let action = host.relay.on_order(order);
                self.relay_acts(id, action);
                Ok(())
            }
        }
    }

    fn relay_acts(&mut self, id: HostId, action: Option<RelayAction>) {
        let Some(RelayAction::Do(order)) = action else {
            return;
        };
        match order {
            EngineOrder::Revoke { engine, key, offer } => {
                let there = self
                    .hosts
                    .get_mut(&id)
                    .and_then(|h| h.engines.get_mut(&engine));
                let won = there.is_some_and(|engine| {
                    engine.received.retain(|record| record.offer != offer);
                    engine.board.remove(&offer)
                });
                self.report(id, EngineReport::Revoked { engine, key, won });
            }
            EngineOrder::Kill { engine, .. } | EngineOrder::Stop { engine } => {
                self.end_engine(id, engine);
            }
            EngineOrder::ForkServer(ForkServerOrder::Spawn { engine }) => {
                let pid = self.next_pid;
                self.next_pid += 1;
                let spawned = ForkServerEvent::Spawned(engine, pid);
                self.report(id, EngineReport::ForkServer(spawned));
                if let Some(host) = self.hosts.get_mut(&id) {
                    let fresh = Engine {
                        pid,
                        ..Engine::default()
                    };
                    host.engines.insert(engine, fresh);
                }
                let info = EngineInfo {
                    engine,
                    uuid: uuid_of(pid),
                    pid,
                    host: format!("host {}", id.0),
                };
                self.report(id, EngineReport::Up(info));
            }
            EngineOrder::Interrupt { .. } | EngineOrder::ForkServer(_) => {}
        }
    }

    fn report(&mut self, id: HostId, report: EngineReport) {
        if let Some(host) = self.hosts.get_mut(&id) {
            host.relay.on_report(&report);
            if host.away_since.is_none() {
                host.from.push_back(Input::Report { host: id, report });
            }
        }
    }

    fn controller_hears(&mut self, id: HostId) -> Checked {
        let input = self
            .hosts
            .get_mut(&id)
            .and_then(|host| host.from.pop_front());
        input.map_or(Ok(()), |input| self.input(input))
    }

    fn engine_acts(&mut self, id: HostId) -> Checked {
        let Some(host) = self.hosts.get_mut(&id) else {
            return Ok(());
        };
        let n = host.engines.len() as u64;
        if n == 0 {
            return Ok(());
        }
        let at = self.random.below(n) as usize;
        let Some((engine, there)) = host.engines.iter_mut().nth(at) else {
            return Ok(());
        };
        if let Some(record) = there.running.take_if(|record| {
            !job_of(&record.payload).is_multiple_of(LONG_JOBS) || self.random.below(40) == 0
        }) {
            let done = DoneRecord {
                key: record.key,
                status: Status::Ok,
                started_ns: self.now,
                completed_ns: self.now + 1,
                cpu_ns: 0,
                payload: payload_of(job_of(&record.payload)),
            };
            host.relay.on_output(*engine, record.key.0, None, false);
            if host.away_since.is_none() {
                host.from.push_back(Input::Done {
                    host: id,
                    engine: *engine,
                    record: done,
                    copy: None,
                });
            }
        } else if there.running.is_none()
            && let Some(record) = there.received.pop_front()
            && there.board.remove(&record.offer)
        {
            let job = job_of(&record.payload);
            if self.dropped.contains(&job) {
                return Err(format!("job {job} begins although it was dropped"));
            }
            if !self.begun.insert(job) {
                return Err(format!("job {job} runs twice"));
            }
            there.running = Some(record);
        }
        Ok(())
    }

    fn kill_engine(&mut self) {
        let all = self.hosts.iter();
        let all = all.flat_map(|(id, host)| host.engines.keys().map(|engine| (*id, *engine)));
        let all: Vec<(HostId, EngineId)> = all.collect();
        if !all.is_empty() {
            let (host, engine) = all[self.random.below(all.len() as u64) as usize];
            self.end_engine(host, engine);
        }
    }

    fn end_engine(&mut self, id: HostId, engine: EngineId) {
        let gone = self
            .hosts
            .get_mut(&id)
            .and_then(|h| h.engines.remove(&engine));
        let Some(gone) = gone else {
            return;
        };
        self.outcome.deaths += 1;
        let down = EngineReport::Down {
            engine,
            unclaimed_offers: gone.board.iter().copied().collect(),
            next_offer: gone.next_offer,
        };
        self.report(id, down);
        let exited = ForkServerEvent::Exited {
            engine,
            pid: gone.pid,
            code: Some(1),
            signal: None,
            out_of_memory: false,
            last_output: String::new(),
        };
        self.report(id, EngineReport::ForkServer(exited));
    }

    // The controller's end

    fn restart(&mut self) -> Checked {
        self.outcome.restarts += 1;
        // An engine may begin them as long as its relay knows of no other controller.
        let mut sent = BTreeSet::new();
        for host in self.hosts.values_mut() {
            let engines = host.engines.values();
            let received = engines.flat_map(|engine| &engine.received);
            sent.extend(received.map(|record| job_of(&record.payload)));
            host.to.clear();
            host.from.clear();
            host.away_since.get_or_insert(self.now);
        }
        let open = std::mem::take(&mut self.open).into_values();
        let never_came = open.filter(|job| !self.begun.contains(job) && !sent.contains(job));
        self.dropped.extend(never_came);
        // Only what the facts amount to is read again.
        let mut facts = Facts::default();
        self.facts
            .all()
            .into_iter()
            .for_each(|fact| facts.add(fact));
        let mut members = facts.start();
        self.facts = facts;
        if self.mutation == RestartMutation::RepeatsKeys {
            members.n_before = 0;
        }
        self.controller = Controller::new(config());
        self.input(Input::Restored { members })?;
        self.new_client()
    }

    /// A relay finds the new controller, or has been away for too long.
    fn rejoin(&mut self, id: HostId) -> Checked {
        let Some(host) = self.hosts.get_mut(&id) else {
            return Ok(());
        };
        let Some(since) = host.away_since else {
            return Ok(());
        };
        if self.random.chance(5) {
            self.now = self.now.max(since + REJOIN_NS);
            self.forget_host(id);
            return self.input(Input::HostDown { host: id });
        }
        host.away_since = None;
        let mut boards = Vec::new();
        for (engine, there) in &mut host.engines {
            let mut taken_back = Vec::new();
            let waiting = there.received.iter();
            self.dropped
                .extend(waiting.map(|record| job_of(&record.payload)));
            if self.mutation != RestartMutation::LeavesOffers {
                taken_back.extend(std::mem::take(&mut there.board));
                there.received.clear();
            }
            boards.push(Board {
                engine: *engine,
                next_offer: there.next_offer,
                taken_back,
            });
        }
        let left = host.relay.on_restarted(&boards);
        self.outcome.rejoined += 1;
        self.outcome.taken_back += left.taken_back.len() as u32;
        let mut holdings = Holdings {
            n_cores: 1,
            ends_in_ns: None,
            engines: left.engines,
            ends: left.ends,
        };
        for link in holdings
            .engines
            .iter_mut()
            .filter_map(|held| held.link.as_mut())
        {
            self.outcome.inherited += link.unfinished.len() as u32;
            match self.mutation {
                RestartMutation::ForgetsRunning => link.unfinished.clear(),
                RestartMutation::RenumbersOffers => {
                    link.next_offer = 0;
                    link.unfinished.clear();
                }
                _ => {}
            }
        }
        self.input(Input::HostRejoined { host: id, holdings })?;
        self.check_begun(id)?;
        self.input(Input::HostBack { host: id })
    }

    /// The controller counts on each engine what that one has begun.
    fn check_begun(&self, id: HostId) -> Checked {
        let counters = self.controller.counters();
        for (engine, there) in self.hosts.get(&id).iter().flat_map(|host| &host.engines) {
            let counted = counters.engines[engine.0 as usize].outstanding;
            let begun = u64::from(there.running.is_some());
            if counted != begun {
                return Err(format!(
                    "{engine:?} has begun {begun}, {counted} are counted"
                ));
            }
        }
        Ok(())
    }

    /// Every engine that lives is known by its number and process.
    fn check_engines(&self) -> Checked {
        let known: BTreeMap<EngineId, String> = (self.controller.engines().into_iter())
            .map(|info| (info.engine, info.uuid))
            .collect();
        let there = self.hosts.values().flat_map(|host| &host.engines);
        let there: BTreeMap<EngineId, String> = there
            .map(|(engine, there)| (*engine, uuid_of(there.pid)))
            .collect();
        if known == there {
            Ok(())
        } else {
            Err(format!(
                "there are {there:?}, the controller knows {known:?}"
            ))
        }
    }
}
