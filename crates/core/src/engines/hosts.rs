//! Hosts: which engines live where, and what the loss of a host means for them.
//!
//! The controller's own host is number 0 and has a fork server of its own; every other one is a relay, which starts
//! engines as long as it is connected.

use std::collections::{BTreeMap, BTreeSet};

use broadleaf_proto::control::{DeathCause, RefusalReason};
use broadleaf_proto::ids::{EngineId, FunctionId, HostId, TaskKey};
use broadleaf_proto::limits::{MAX_HOST_ENGINES, MAX_HOST_NAME_BYTES};

use crate::counters::HostCounters;
use crate::engines::reports::Unclaimed;
use crate::engines::{Engine, Exit, State};
use crate::tasks::TaskState;
use crate::tasks::targets::MAX_ENGINES;
use crate::timers::Timer;
use crate::{Controller, Nanos, Output};

#[derive(Clone, Debug)]
struct Host {
    name: String,
    is_up: bool,
    release: Release,
    /// When it ends by itself, and how much time it had left when it came.
    time: Option<(Nanos, Nanos)>,
    /// The timer of its draining; 0 for none.
    timer_at: Nanos,
}

/// What a relay says of its host when it connects.
pub(crate) struct NewHost {
    pub name: String,
    pub n_engines: u32,
    pub n_cores: u32,
    pub ends_in_ns: Option<Nanos>,
}

/// Whether a host is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Release {
    No,
    /// It leaves with its last engine.
    WhenEmpty,
    /// It was told to leave.
    Told,
}

/// See the module. A host that is gone stays listed until one with its name takes over its slots.
#[derive(Clone, Debug, Default)]
pub(crate) struct Hosts {
    by_id: BTreeMap<HostId, Host>,
    /// Connected ones that leave with their last engine.
    releasing: BTreeSet<HostId>,
    /// Number of connected ones that end by themselves.
    n_ending: usize,
}

impl Hosts {
    /// Whether this relay is connected.
    fn is_up(&self, host: HostId) -> bool {
        self.by_id.get(&host).is_some_and(|h| h.is_up)
    }

    /// The relay's name; empty for the controller's own host.
    pub fn name(&self, host: HostId) -> String {
        let host = self.by_id.get(&host);
        host.map(|h| h.name.clone()).unwrap_or_default()
    }

    /// Whether this relay is connected, and engines may be started there.
    fn is_wanted(&self, host: HostId) -> bool {
        let host = self.by_id.get(&host);
        host.is_some_and(|h| h.is_up && h.release == Release::No)
    }

    /// The host leaves with its last engine.
    pub fn release(&mut self, host: HostId) {
        let host = self.by_id.get_mut(&host);
        if let Some(host) = host.filter(|h| h.is_up && h.release == Release::No) {
            host.release = Release::WhenEmpty;
        }
        self.recount();
    }

    /// Hosts that leave with their last engine.
    pub fn releasing(&self) -> impl Iterator<Item = HostId> {
        self.releasing.iter().copied()
    }

    /// A host came, went or changed: brings the sets up to date.
    fn recount(&mut self) {
        let up = || self.by_id.iter().filter(|(_, h)| h.is_up);
        let releasing = up().filter(|(_, h)| h.release == Release::WhenEmpty);
        self.releasing = releasing.map(|(id, _)| *id).collect();
        self.n_ending = up().filter(|(_, h)| h.time.is_some()).count();
    }

    /// The host is told to leave.
    pub fn let_go(&mut self, host: HostId) {
        if let Some(host) = self.by_id.get_mut(&host) {
            host.release = Release::Told;
        }
        self.recount();
    }

    /// Its timer has expired.
    pub fn clear_timer(&mut self, host: HostId) {
        if let Some(host) = self.by_id.get_mut(&host) {
            host.timer_at = 0;
        }
    }

    /// Makes a host end within this time, if it would not end sooner. Returns the timer that it
    /// had, 0 for none.
    fn end_within(&mut self, now: Nanos, host: HostId, ends_in_ns: Nanos) -> Nanos {
        let Some(host) = self.by_id.get_mut(&host) else {
            return 0;
        };
        let (ends_at, had_ns) = host.time.unwrap_or((Nanos::MAX, ends_in_ns));
        host.time = Some((ends_at.min(now.saturating_add(ends_in_ns)), had_ns));
        let timer_at = core::mem::take(&mut host.timer_at);
        self.recount();
        timer_at
    }

    /// Number of timers that are set.
    pub fn n_timers(&self) -> usize {
        self.by_id.values().filter(|h| h.timer_at != 0).count()
    }

    /// Whether a task that may take this long would end in time on a host. A task longer than the host's whole time does
    /// not wait for a better host.
    pub fn fits(&self, host: HostId, needs_ns: Option<Nanos>, now: Nanos) -> bool {
        match (needs_ns, self.time_of(host)) {
            (Some(needs_ns), Some((ends_at, had_ns))) => {
                now.saturating_add(needs_ns) <= ends_at || needs_ns > had_ns
            }
            _ => true,
        }
    }

    /// When a host ends by itself, and how much time it had left when it came.
    pub fn time_of(&self, host: HostId) -> Option<(Nanos, Nanos)> {
        self.by_id.get(&host).and_then(|h| h.time)
    }

    /// Connected hosts that end by themselves.
    pub fn n_ending(&self) -> usize {
        self.n_ending
    }

    /// The connected hosts: whether each is being released, and when it ends by itself.
    pub fn counters(&self) -> impl Iterator<Item = HostCounters> {
        let up = self.by_id.iter().filter(|(_, h)| h.is_up);
        up.map(|(id, h)| HostCounters {
            host: *id,
            drains: h.release != Release::No,
            ends_at: h.time.map(|(ends_at, _)| ends_at),
        })
    }

    /// The connected relays' hosts.
    pub fn up(&self) -> impl Iterator<Item = HostId> {
        let up = self.by_id.iter().filter(|(_, h)| h.is_up);
        up.map(|(id, _)| *id)
    }

    /// Whether any relay is connected.
    pub fn any_up(&self) -> bool {
        self.by_id.values().any(|h| h.is_up)
    }
}

impl Controller {
    /// Functions that relays need not keep: those freed since the last call. A later [`Output::Function`] may give the
    /// same id to another function, so tell relays before carrying out later outputs.
    pub fn take_freed_functions(&mut self) -> Vec<FunctionId> {
        self.functions.take_freed()
    }

    /// The host that an engine's slot belongs to.
    pub fn host_of(&self, engine: EngineId) -> HostId {
        let engine = self.engines.get(engine.0 as usize);
        engine.map_or(HostId::CONTROLLER, |e| e.host)
    }

    /// Whether a relay with that name is connected.
    pub fn has_host_named(&self, name: &str) -> bool {
        self.hosts.by_id.values().any(|h| h.is_up && h.name == name)
    }

    /// Whether an engine can be started on the host, and its end would be reported.
    pub(crate) fn can_spawn(&self, host: HostId) -> bool {
        if host == HostId::CONTROLLER {
            self.supervisor.fork_server_up
        } else {
            self.is_host_up(host)
        }
    }

    pub(crate) fn is_host_up(&self, host: HostId) -> bool {
        host == HostId::CONTROLLER || self.hosts.is_up(host)
    }

    /// Whether this is a relay's host, and the relay is connected.
    pub(crate) fn is_relay_up(&self, host: HostId) -> bool {
        self.hosts.is_up(host)
    }

    /// Whether anything can be started on the engine's host, now or later.
    pub(crate) fn has_host(&self, index: usize) -> bool {
        let host = self.engines[index].host;
        host == HostId::CONTROLLER || self.hosts.is_wanted(host)
    }

    /// Whether the host of an engine is being released.
    pub(crate) fn is_host_released(&self, index: usize) -> bool {
        self.is_host_up(self.engines[index].host) && !self.has_host(index)
    }

    /// A relay has connected and wants engines. It first fills slots left by a host of the same
    /// name.
    pub(crate) fn on_host_up(
        &mut self,
        now: Nanos,
        host: HostId,
        NewHost {
            name,
            n_engines,
            n_cores,
            ends_in_ns,
        }: NewHost,
        out: &mut Vec<Output>,
    ) {
        if self.supervisor.stopping || host == HostId::CONTROLLER || self.is_host_up(host) {
            self.totals.ignored += 1;
            return;
        }
        if name.len() > MAX_HOST_NAME_BYTES {
            self.expel(host, out);
            return;
        }
        let n_engines = n_engines.min(MAX_HOST_ENGINES);
        self.engines.set_cores(host, n_cores);
        let same = self.hosts.by_id.iter().filter(|(_, h)| h.name == name);
        let former: Vec<HostId> = same.map(|(id, _)| *id).collect();
        self.hosts.by_id.retain(|id, _| !former.contains(id));
        let came = Host {
            name,
            is_up: true,
            release: Release::No,
            time: ends_in_ns.map(|ns| (now.saturating_add(ns), ns)),
            timer_at: 0,
        };
        self.hosts.by_id.insert(host, came);
        self.hosts.recount();
        self.expect_end(now, host, out);
        let mut slots: Vec<usize> = (0..self.engines.len())
            .filter(|index| former.contains(&self.engines[*index].host))
            .collect();
        for index in &slots {
            self.engines[*index].host = host;
        }
        slots.retain(|index| self.engines[*index].guest.is_none());
        let room = MAX_ENGINES as usize - self.engines.len() + slots.len();
        while slots.len() < (n_engines as usize).min(room) {
            let index = self.engines.len();
            let mut engine = Engine::new(EngineId(index as u32), &self.config);
            engine.host = host;
            self.engines.push(engine);
            slots.push(index);
        }
        for index in slots.into_iter().take(n_engines as usize) {
            if self.engines[index].state == State::Gone {
                self.start(now, index, out);
            }
        }
    }

    /// If the host ends by itself, its engines are drained before that, and queued long tasks go to other hosts.
    fn expect_end(&mut self, now: Nanos, host: HostId, out: &mut Vec<Output>) {
        let Some((ends_at, had_ns)) = self.hosts.time_of(host) else {
            return;
        };
        let notice_ns = self.config.drain_ns.min(had_ns / 10);
        let at = ends_at.saturating_sub(notice_ns).max(now + 1);
        if let Some(host) = self.hosts.by_id.get_mut(&host) {
            host.timer_at = at;
        }
        self.timers.set(at, Timer::Host(host));
        if self.hosts.n_ending() == 1 {
            self.regroup_timed(out);
        }
    }

    /// The host was told that it will be ended, perhaps before its time: its engines are drained now.
    pub(crate) fn on_notice(
        &mut self,
        now: Nanos,
        host: HostId,
        ends_in_ns: Nanos,
        out: &mut Vec<Output>,
    ) {
        let ended_by_itself = self.hosts.time_of(host).is_some();
        let timer_at = self.hosts.end_within(now, host, ends_in_ns);
        if timer_at != 0 {
            self.timers.cancel(timer_at, Timer::Host(host));
        }
        if !ended_by_itself && self.hosts.n_ending() == 1 {
            self.regroup_timed(out);
        }
        self.on_host_timer(now, host, out);
    }

    /// A relay does not answer, or does so again. Its engines keep what they have; what could be begun elsewhere stays with
    /// them, since nobody can say what they have begun.
    pub(crate) fn on_host_away(&mut self, host: HostId, is_away: bool) {
        if !self.hosts.is_up(host) {
            self.totals.ignored += 1;
            return;
        }
        for index in 0..self.engines.len() {
            if self.engines[index].host == host {
                self.engines[index].is_away = is_away;
            }
        }
    }

    /// A relay's link is gone, and with it every engine there. Their offers count as started: nobody can say what they
    /// claimed, and losing a task is better than running it twice.
    pub(crate) fn on_host_down(&mut self, now: Nanos, host: HostId, out: &mut Vec<Output>) {
        let Some(gone) = self.hosts.by_id.get_mut(&host).filter(|h| h.is_up) else {
            self.totals.ignored += 1;
            return;
        };
        gone.is_up = false;
        let timer_at = core::mem::take(&mut gone.timer_at);
        self.hosts.recount();
        if timer_at != 0 {
            self.timers.cancel(timer_at, Timer::Host(host));
        }
        for index in 0..self.engines.len() {
            let engine = &mut self.engines[index];
            if engine.host == host {
                engine.is_away = false;
            }
            if engine.host != host || engine.state == State::Gone {
                continue;
            }
            engine.exit.get_or_insert(Exit {
                cause: DeathCause::HostGone,
                last_output: String::new(),
            });
            if engine.state == State::Restarting {
                self.give_up(index, out); // Its death was reported before.
                continue;
            }
            if engine.is_connected() {
                self.drop_link(now, index, &Unclaimed::default(), out);
            }
            self.bury(now, index, out);
        }
        self.engines.forget_host(host);
        // After the deaths: with a reply, a client knows which engines there are.
        self.observers.drop_host(host, out);
        // Without slots there is nothing for a later host of its name to take over.
        if self.engines.iter().all(|engine| engine.host != host) {
            self.hosts.by_id.remove(&host);
        }
    }

    /// The arguments of an offered task have arrived on its engine's host.
    pub(crate) fn on_delivered(&mut self, now: Nanos, engine: EngineId, key: TaskKey) {
        match self.tasks.get(key).map(|t| t.state) {
            Some(TaskState::Offered(at, _)) if at == engine => {
                self.tasks.at(key).is_travelling = false;
                let state = &mut self.engines[engine.0 as usize];
                if state.head().is_some_and(|(head, _)| head == key) {
                    state.begin_head(now);
                    self.time_head(now, engine);
                }
            }
            _ => self.totals.ignored += 1,
        }
    }

    /// Payload of an offered task could not be moved: it will not run, or its value is not available.
    pub(crate) fn on_undeliverable(
        &mut self,
        now: Nanos,
        engine: EngineId,
        key: TaskKey,
        reason: String,
        out: &mut Vec<Output>,
    ) {
        let offered = self.tasks.get(key).map(|t| (t.state, t.client));
        match offered {
            Some((TaskState::Offered(at, offer), client)) if at == engine => {
                self.unoffer(now, key, engine, offer);
                if client.is_some() {
                    self.refuse(key, &RefusalReason::Undeliverable(reason), out);
                } else {
                    self.discard(key, out);
                }
            }
            _ => self.totals.ignored += 1,
        }
    }
}
