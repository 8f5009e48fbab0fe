//! The controller: its state and its entry points.

use std::collections::VecDeque;

use broadleaf_proto::control::{DefineOptions, EngineInfo, Event};
use broadleaf_proto::ids::{ClientId, EngineId, HostId, OptionsId, TaskKey, TaskSeq};
use broadleaf_proto::limits::{MAX_CLIENT_OPTIONS_BYTES, MAX_LABEL_BYTES};
use broadleaf_proto::task::{FunctionRecord, OutputRecord};
use indexmap::IndexMap;
use rustc_hash::FxBuildHasher;

use crate::clients::history::{History, Known};
use crate::clients::notices::Notices;
use crate::clients::subscribers::Subscribers;
use crate::clients::{Client, Defined, MAX_DEFINITIONS};
use crate::engines::hosts::{Hosts, NewHost};
use crate::engines::observers::Observers;
use crate::engines::preparations::Preparations;
use crate::engines::supervisor::Supervisor;
use crate::engines::worlds::Worlds;
use crate::engines::{Engine, Engines, State};
use crate::placement::groups::Groups;
use crate::tasks::coalesce::ReplyGroups;
use crate::tasks::dependencies::{Dependencies, Resolved};
use crate::tasks::failures::Failures;
use crate::tasks::functions::Functions;
use crate::tasks::options::{OptionSet, OptionSets};
use crate::tasks::result_store::ResultStore;
use crate::tasks::targets::MAX_ENGINES;
use crate::tasks::{Stopping, TaskState, TaskTable};
use crate::timers::{Timer, Timers};
use crate::{Config, Counters, Input, Nanos, Output};

/// Routes and schedules tasks. See the crate's documentation.
#[derive(Clone, Debug)]
pub struct Controller {
    pub(crate) config: Config,
    pub(crate) tasks: TaskTable,
    pub(crate) clients: IndexMap<ClientId, Client, FxBuildHasher>,
    /// By id; an unused slot is `Gone`.
    pub(crate) engines: Engines,
    pub(crate) hosts: Hosts,
    pub(crate) worlds: Worlds,
    pub(crate) groups: Groups,
    pub(crate) options: OptionSets,
    pub(crate) functions: Functions,
    pub(crate) failures: Failures,
    pub(crate) dependencies: Dependencies,
    pub(crate) reply_groups: ReplyGroups,
    pub(crate) timers: Timers,
    pub(crate) supervisor: Supervisor,
    pub(crate) totals: Counters,
    /// Ends not yet reported to dependents.
    pub(crate) resolved: VecDeque<Resolved>,
    pub(crate) result_store: ResultStore,
    pub(crate) notices: Notices,
    pub(crate) observers: Observers,
    pub(crate) subscribers: Subscribers,
    /// Clients that start engines.
    pub(crate) n_awaiting: u32,
    /// Clients that are away and whose last task has ended.
    pub(crate) departed: Vec<ClientId>,
    /// What engines do before they run a client's tasks.
    pub(crate) preparations: Preparations,
    /// Number of offers made; orders engines by last use.
    pub(crate) tick: u64,
    /// When to look again at tasks that wait although an engine is idle: they are short, or too short to be worth moving.
    pub(crate) look_again_at: Option<Nanos>,
}

impl Controller {
    /// A controller that wants `config.n_engines` engines and knows no client.
    pub fn new(config: Config) -> Self {
        let n_engines = config.n_engines.min(MAX_ENGINES);
        let engines = (0..n_engines).map(|id| {
            let mut engine = Engine::new(EngineId(id), &config);
            engine.state = State::Starting { spawn_sent: false };
            engine
        });
        let mut engines: Engines = engines.collect();
        engines.set_cores(HostId::CONTROLLER, config.n_cores);
        Self {
            tasks: TaskTable::default(),
            clients: IndexMap::default(),
            engines,
            hosts: Hosts::default(),
            worlds: Worlds::default(),
            groups: Groups::new(),
            options: OptionSets::new(),
            functions: Functions::default(),
            failures: Failures::default(),
            dependencies: Dependencies::default(),
            reply_groups: ReplyGroups::default(),
            timers: Timers::default(),
            supervisor: Supervisor::new(config.seed),
            totals: Counters::default(),
            resolved: VecDeque::new(),
            result_store: ResultStore::new(config.kept_results_bytes),
            notices: Notices::default(),
            observers: Observers::default(),
            subscribers: Subscribers::default(),
            n_awaiting: 0,
            departed: Vec::new(),
            preparations: Preparations::default(),
            tick: 0,
            look_again_at: None,
            config,
        }
    }

    /// How often an engine was looked at, for an input or for a decision: a measure of work that must not grow with the
    /// number of engines.
    pub fn engine_visits(&self) -> u64 {
        self.engines.visits()
    }

    /// Takes one input. The next [`Self::schedule`] places the tasks that became ready.
    pub fn on_input(&mut self, now: Nanos, input: Input, out: &mut Vec<Output>) {
        if !self.supervisor.booted {
            self.boot(now);
        }
        match input {
            Input::Submit { client, record } => self.on_submit(now, client, record, None, out),
            Input::SubmitIncomplete {
                client,
                record,
                reason,
            } => self.on_submit(now, client, record, Some(reason), out),
            Input::Done {
                host,
                engine,
                record,
                copy,
            } => {
                if host == HostId::CONTROLLER || self.may_report(host, engine, out) {
                    self.on_done(now, engine, record, copy, out);
                }
            }
            Input::Output {
                host,
                engine,
                record,
            } => {
                if host == HostId::CONTROLLER || self.may_report(host, engine, out) {
                    self.on_output(engine, record, out);
                }
            }
            Input::Report { host, report } => self.on_report(now, host, report, out),
            Input::ClientUp { client, name } => self.on_client_up(client, name, out),
            Input::ClientDown { client } => self.on_client_down(client, out),
            Input::Function { client, record } => self.on_function(client, &record),
            Input::Options { client, define } => self.on_options(client, define),
            Input::ClientCongested { client, congested } => self.on_congested(client, congested),
            Input::Request {
                client,
                number,
                request,
            } => self.on_request(now, client, number, request, out),
            Input::Observed => self.on_observed(out),
            Input::OwnerDown => self.shutdown(now, out),
            Input::HostUp {
                host,
                name,
                n_engines,
                n_cores,
                ends_in_ns,
            } => {
                let new = NewHost {
                    name,
                    n_engines,
                    n_cores,
                    ends_in_ns,
                };
                self.on_host_up(now, host, new, out);
            }
            Input::HostAway { host } => self.on_host_away(host, true),
            Input::HostBack { host } => self.on_host_away(host, false),
            Input::HostDown { host } => self.on_host_down(now, host, out),
            Input::HostEnds { host, ends_in_ns } => {
                if self.knows(host) {
                    self.on_notice(now, host, ends_in_ns, out);
                }
            }
            Input::Measured { host, counts } => {
                if self.knows(host) {
                    self.on_measured(now, host, counts);
                }
            }
            Input::ForkServerUp => self.on_fork_server_up(out),
            Input::ForkServerDown => self.on_fork_server_down(now, out),
        }
        self.settle(out);
    }

    /// When [`Self::on_deadline`] wants to be called next.
    pub fn next_deadline(&self) -> Option<Nanos> {
        self.timers
            .next()
            .into_iter()
            .chain(self.look_again_at)
            .min()
    }

    /// Handles everything that is due by `now`; call [`Self::schedule`] afterwards.
    pub fn on_deadline(&mut self, now: Nanos, out: &mut Vec<Output>) {
        self.look_again_at = self.look_again_at.filter(|at| *at > now);
        while let Some(timer) = self.timers.pop_due(now) {
            match timer {
                Timer::Task(key) => self.on_task_timer(now, key, out),
                Timer::Engine(engine) => self.on_engine_timer(now, engine, out),
                Timer::Host(host) => self.on_host_timer(now, host, out),
                Timer::Shutdown => self.finish(out),
            }
            self.settle(out);
        }
    }

    /// The engines that take tasks, by id, as a new client is told.
    pub fn engines(&self) -> Vec<EngineInfo> {
        let up = self.engines.iter().filter(|e| e.state == State::Up);
        up.filter_map(|e| e.info.clone()).collect()
    }

    /// Whether an engine on the controller's host may say hello for this slot: it is free, and the cluster is not
    /// stopping.
    pub fn expects(&self, engine: EngineId) -> bool {
        let taken = self
            .engines
            .get(engine.0 as usize)
            .is_some_and(|e| match e.state {
                State::Up | State::Draining | State::Leaving | State::Dying => true,
                State::Starting { .. } | State::Restarting => false,
                State::Gone => e.guest.is_some(), // Only a rank of its world may.
            });
        let is_own = self.host_of(engine) == HostId::CONTROLLER;
        !taken && is_own && engine.0 < MAX_ENGINES && !self.supervisor.stopping
    }

    /// A slot for an engine that was started by hand; the engine's `EngineUp` takes it.
    pub fn vacant_engine(&self) -> EngineId {
        let next = self.engines.len() as u32;
        let is_vacant = |e: &&Engine| {
            e.state == State::Gone && e.host == HostId::CONTROLLER && e.guest.is_none()
        };
        let gone = self.engines.iter().find(is_vacant);
        match gone {
            Some(gone) if next >= MAX_ENGINES => gone.id,
            _ => EngineId(next),
        }
    }

    /// The name a client gave itself.
    pub fn client_name(&self, client: ClientId) -> Option<&str> {
        self.clients.get(&client).map(|c| c.name.as_str())
    }

    fn on_client_up(&mut self, client: ClientId, name: String, out: &mut Vec<Output>) {
        if self.clients.contains_key(&client) {
            self.totals.ignored += 1;
            return;
        }
        let history = History::new(self.config.history_tasks, self.config.max_outstanding_tasks);
        self.clients.insert(client, Client::new(name, history));
        if self.supervisor.stopping {
            let event = Event::Stopping;
            out.push(Output::Event { client, event });
        }
    }

    fn on_client_down(&mut self, client: ClientId, out: &mut Vec<Output>) {
        self.await_engines(client, false, out);
        self.observers.drop_client(client);
        let Some(gone) = self.clients.get_mut(&client).filter(|c| !c.away) else {
            return;
        };
        if gone.leaves {
            gone.away = true;
            let is_done = gone.outstanding_tasks == 0;
            // Nobody reads this client's results, so it cannot be congested.
            self.on_congested(client, false);
            self.reply_groups.drop_client(client);
            self.subscribers.drop_client(client);
            if is_done {
                self.remove_client(client);
            }
            return;
        }
        let live: Vec<_> = gone
            .history
            .live()
            .filter_map(|slot| self.tasks.key_at(slot))
            .collect();
        for key in live {
            let task = self.tasks.at(key);
            if core::mem::take(&mut task.has_dependents) {
                self.dependencies.forget_dependents(key.slot() as u32);
            }
            if let TaskState::Offered(engine, offer) = task.state {
                // A task that runs may finish; one that does not is taken back.
                task.client = None;
                if task.stopping == Stopping::No {
                    task.stopping = Stopping::Asked;
                }
                self.take_back(engine, key, offer, out);
            } else {
                self.detach(key);
                self.tasks.at(key).client = None;
                self.discard(key, out);
            }
        }
        self.reply_groups.drop_client(client);
        self.subscribers.drop_client(client);
        self.remove_client(client);
    }

    /// Forgets a client that has no tasks any more.
    pub(crate) fn remove_client(&mut self, client: ClientId) {
        self.drop_preparations(client);
        if let Some(gone) = self.clients.swap_remove(&client) {
            for slot in gone.functions.into_values().flatten() {
                self.release_function(slot);
            }
            for defined in gone.options.into_values() {
                if let Defined::At(slot) = defined {
                    self.release_options(slot);
                }
            }
        }
    }

    /// Functions count for each client that defined them, so that a client that defines too many does not affect
    /// others.
    fn on_function(&mut self, client: ClientId, record: &FunctionRecord) {
        let Some(known) = self.clients.get_mut(&client) else {
            self.totals.ignored += 1;
            return;
        };
        let is_defined = known.functions.contains_key(&record.function);
        if is_defined || known.functions.len() >= MAX_DEFINITIONS {
            self.totals.ignored += 1;
            return;
        }
        let bytes = record.body.len() as u64;
        let limit_bytes = self.config.function_cache_bytes;
        if known.function_bytes.saturating_add(bytes) > limit_bytes {
            known.functions.insert(record.function, None);
            return;
        }
        known.function_bytes += bytes;
        // Stored results never get in the way of new tasks.
        while self.functions.bytes().saturating_add(bytes) > limit_bytes
            && self.forget_oldest_kept()
        {}
        let slot = self
            .functions
            .define(record.hash, &record.name, &record.body);
        if let Some(known) = self.clients.get_mut(&client) {
            known.functions.insert(record.function, Some(slot));
        }
    }

    fn on_options(&mut self, client: ClientId, define: DefineOptions) {
        let known = self.clients.get_mut(&client);
        let known =
            known.filter(|c| c.options.len() < MAX_DEFINITIONS && define.id != OptionsId(0));
        let Some(known) = known else {
            self.totals.ignored += 1;
            return;
        };
        let set = OptionSet::new(Some(client), define.options);
        let bytes = known.options_bytes.saturating_add(set.weight_bytes());
        let is_short = set.options.label.len() <= MAX_LABEL_BYTES;
        let defined = if is_short && bytes <= MAX_CLIENT_OPTIONS_BYTES {
            known.options_bytes = bytes;
            Defined::At(self.options.insert(set))
        } else {
            Defined::OverLimit(set.n_parts())
        };
        if let Some(Defined::At(before)) = known.options.insert(define.id, defined) {
            self.release_options(before);
        }
    }

    /// Releases a reference to a set of options; with the last one its client has room for another.
    pub(crate) fn release_options(&mut self, slot: u32) {
        if let Some(set) = self.options.release(slot)
            && let Some(owner) = set.owner.and_then(|id| self.clients.get_mut(&id))
        {
            owner.options_bytes -= set.weight_bytes();
        }
    }

    fn on_congested(&mut self, client: ClientId, congested: bool) {
        let Some(known) = self.clients.get_mut(&client) else {
            return;
        };
        known.congested = congested;
        for queue in self.groups.queues_mut() {
            queue.set_congested(client, congested);
        }
        for engine in self.engines.with_queued() {
            let queue = &mut self.engines[engine as usize].pinned;
            queue.set_congested(client, congested);
        }
    }

    fn on_output(&mut self, engine: EngineId, mut record: OutputRecord, out: &mut Vec<Output>) {
        let key = TaskKey(record.task);
        let task = self.tasks.get(key);
        let task = task.filter(|t| matches!(t.state, TaskState::Offered(at, _) if at == engine));
        let Some(client) = task.and_then(|t| t.client) else {
            self.totals.ignored += 1;
            return;
        };
        let seq = task.map_or(0, |t| t.seq.0);
        record.engine = engine;
        let congested = self.clients.get(&client).is_some_and(|c| c.congested);
        let unread = &mut self.engines[engine.0 as usize].unread;
        if congested && unread.count(&record) {
            return;
        }
        let mut records = unread.take(key.0, engine);
        records.push(record);
        out.extend(records.into_iter().map(|mut record| {
            record.task = seq;
            Output::ClientOutput { client, record }
        }));
    }

    /// A task ends: tells its client how much of its output was dropped.
    pub(crate) fn tell_unread(&mut self, engine: EngineId, key: TaskKey, out: &mut Vec<Output>) {
        let unread = &mut self.engines[engine.0 as usize].unread;
        if !unread.is_of(key.0) {
            return;
        }
        let notices = unread.take(key.0, engine);
        let Some((Some(client), seq)) = self.tasks.get(key).map(|t| (t.client, t.seq)) else {
            return;
        };
        out.extend(notices.into_iter().map(|mut record| {
            record.task = seq.0;
            Output::ClientOutput { client, record }
        }));
    }

    /// Releases a reference to a function; the last one frees its slot for another function.
    pub(crate) fn release_function(&mut self, slot: u32) {
        if let Some(taught) = self.functions.release(slot) {
            if self.hosts.any_up() {
                self.functions.note_freed(slot);
            }
            for engine in taught.iter() {
                self.engines[engine as usize].forget(slot);
            }
        }
    }

    /// Tells every client.
    pub(crate) fn announce(&self, event: &Event, out: &mut Vec<Output>) {
        let here = self.clients.iter().filter(|(_, c)| !c.away);
        out.extend(here.map(|(client, _)| Output::Event {
            client: *client,
            event: event.clone(),
        }));
    }

    /// What is known about a client's task number.
    pub(crate) fn known(&self, client: ClientId, seq: TaskSeq) -> Known {
        self.clients
            .get(&client)
            .map_or(Known::Unknown, |c| c.history.get(seq))
    }
}
