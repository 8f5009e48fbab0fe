//! The lives of engines: started, restarted, stopped, and their deaths certified.
//!
//! A death is two pieces of news in either order: the link closes, and the spawner sees the process
//! exit. Each waits for the other for a bounded time.

use broadleaf_proto::control::{DeathCause, EngineInfo, Event, RefusalReason, SpawnerEvent};
use broadleaf_proto::ids::{EngineId, TaskKey};
use broadleaf_proto::task::Status;

use crate::engines::{Engine, Exit, MAX_ENGINES, State};
use crate::settle::End;
use crate::tasks::{Place, Stopping};
use crate::timers::Timer;
use crate::{Controller, Nanos, Output};

const SIGKILL: i32 = 9;
const MINUTE_NS: Nanos = 60_000_000_000;

/// What concerns all engines.
#[derive(Debug)]
pub(crate) struct Supervisor {
    /// Whether the first input was seen, and with it the time.
    pub booted: bool,
    pub spawner_up: bool,
    pub stopping: bool,
    pub finished: bool,
    /// Whether the spawner was told to leave.
    spawner_stopped: bool,
    /// The timer of the spawner's leave; 0 for none.
    pub shutdown_at: Nanos,
    random: u64,
}

impl Supervisor {
    pub fn new(seed: u64) -> Self {
        Self {
            booted: false,
            spawner_up: false,
            stopping: false,
            finished: false,
            spawner_stopped: false,
            shutdown_at: 0,
            random: seed,
        }
    }

    /// A number below `bound` (splitmix64).
    fn below(&mut self, bound: u64) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.random;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % bound.max(1)
    }
}

impl Controller {
    /// The first input tells the time: engines wanted from the start get theirs to come up.
    pub(crate) fn boot(&mut self, now: Nanos) {
        self.supervisor.booted = true;
        for index in 0..self.engines.len() {
            self.set_engine_timer(index, now.saturating_add(self.config.start_timeout_ns));
        }
    }

    pub(crate) fn set_engine_timer(&mut self, index: usize, at: Nanos) {
        self.clear_engine_timer(index);
        let engine = &mut self.engines[index];
        engine.timer_at = at.max(1);
        self.timers.set(engine.timer_at, Timer::Engine(engine.id));
    }

    fn clear_engine_timer(&mut self, index: usize) {
        let engine = &mut self.engines[index];
        let at = core::mem::take(&mut engine.timer_at);
        if at != 0 {
            self.timers.cancel(at, Timer::Engine(engine.id));
        }
    }

    /// The place of an engine, made if need be.
    fn place(&mut self, id: EngineId) -> Option<usize> {
        if id.0 >= MAX_ENGINES {
            return None;
        }
        while self.engines.len() <= id.0 as usize {
            let next = EngineId(self.engines.len() as u32);
            self.engines.push(Engine::new(next, &self.config));
        }
        Some(id.0 as usize)
    }

    /// Has the spawner start an engine, now or as soon as there is a spawner.
    fn start(&mut self, now: Nanos, index: usize, out: &mut Vec<Output>) {
        let spawn_sent = self.supervisor.spawner_up;
        let engine = &mut self.engines[index];
        engine.state = State::Starting { spawn_sent };
        if spawn_sent {
            out.push(Output::Spawn { engine: engine.id });
        }
        self.set_engine_timer(index, now.saturating_add(self.config.start_timeout_ns));
    }

    /// Wants more engines, in new places.
    pub(crate) fn add_engines(&mut self, now: Nanos, n: u32, out: &mut Vec<Output>) -> bool {
        let first = self.engines.len();
        if n as usize > MAX_ENGINES as usize - first {
            return false;
        }
        for index in first..first + n as usize {
            self.place(EngineId(index as u32));
            self.start(now, index, out);
        }
        true
    }

    pub(crate) fn on_spawner_up(&mut self, out: &mut Vec<Output>) {
        self.supervisor.spawner_up = true;
        if self.supervisor.stopping {
            self.try_finish(out);
            return;
        }
        for engine in &mut self.engines {
            if engine.state == (State::Starting { spawn_sent: false }) {
                engine.state = State::Starting { spawn_sent: true };
                out.push(Output::Spawn { engine: engine.id });
            }
        }
    }

    pub(crate) fn on_spawner_down(&mut self, out: &mut Vec<Output>) {
        self.supervisor.spawner_up = false;
        for engine in &mut self.engines {
            if matches!(engine.state, State::Starting { .. }) {
                engine.state = State::Starting { spawn_sent: false };
                engine.spawned_pid = 0;
            }
        }
        if self.supervisor.spawner_stopped {
            self.finish(out);
        }
    }

    pub(crate) fn on_spawner_event(
        &mut self,
        now: Nanos,
        event: SpawnerEvent,
        out: &mut Vec<Output>,
    ) {
        let (id, pid) = match event {
            SpawnerEvent::Spawned(engine, pid) | SpawnerEvent::Exited { engine, pid, .. } => {
                (engine, pid)
            }
        };
        let index = id.0 as usize;
        let Some(engine) = self.engines.get_mut(index) else {
            self.totals.ignored += 1;
            return;
        };
        let SpawnerEvent::Exited {
            code,
            signal,
            out_of_memory,
            last_output,
            ..
        } = event
        else {
            match engine.state {
                State::Starting { spawn_sent: true } => engine.spawned_pid = pid,
                State::Up | State::Leaving | State::Dying => engine.spawned_pid = pid,
                // Not wanted any more.
                _ => out.push(Output::Kill {
                    engine: id,
                    pid,
                    signal: SIGKILL,
                }),
            }
            return;
        };
        if engine.spawned_pid != pid || engine.exit.is_some() {
            return; // An earlier process of this place, already accounted for.
        }
        let cause = match (out_of_memory, signal, code) {
            (true, ..) => DeathCause::OutOfMemory,
            (_, Some(signal), _) => DeathCause::Signal(signal),
            (_, None, Some(code)) => DeathCause::Exit(code),
            (_, None, None) => DeathCause::Disconnected,
        };
        engine.exit = Some(Exit { cause, last_output });
        match engine.state {
            State::Starting { .. } => self.bury(now, index, out),
            State::Dying if engine.link_down => self.bury(now, index, out),
            State::Up | State::Leaving => {
                // What it sent before is still to be read; then its link closes. What it never
                // started need not wait for that.
                engine.state = State::Dying;
                let open: Vec<(u32, TaskKey)> = engine.open_offers().collect();
                for (offer, key) in open {
                    self.take_back(id, key, offer, out);
                }
                self.set_engine_timer(index, now.saturating_add(self.config.exit_wait_ns));
            }
            State::Dying | State::Restarting | State::Gone => {}
        }
    }

    pub(crate) fn on_engine_up(&mut self, now: Nanos, info: EngineInfo, out: &mut Vec<Output>) {
        let id = info.engine;
        let Some(index) = self.place(id) else {
            out.push(Output::Stop { engine: id });
            return;
        };
        if matches!(
            self.engines[index].state,
            State::Up | State::Leaving | State::Dying
        ) {
            // Its successor is here before the news of its death.
            self.drop_link(now, index, Vec::new(), out);
            self.engines[index].restart_requested = true;
            self.bury(now, index, out);
        }
        let engine = &mut self.engines[index];
        let spawned_pid = match engine.state {
            State::Starting { spawn_sent: true } => {
                if engine.spawned_pid == 0 {
                    info.pid
                } else {
                    engine.spawned_pid
                }
            }
            _ => 0,
        };
        engine.reset(&self.config);
        engine.spawned_pid = spawned_pid;
        engine.info = Some(info.clone());
        self.clear_engine_timer(index);
        if self.supervisor.stopping {
            self.engines[index].state = State::Up;
            self.stop_engine(now, index, false, out);
            return;
        }
        self.engines[index].state = State::Up;
        self.announce(&Event::EngineUp(info), out);
    }

    pub(crate) fn on_engine_down(
        &mut self,
        now: Nanos,
        id: EngineId,
        unclaimed_offers: Vec<u32>,
        out: &mut Vec<Output>,
    ) {
        let index = id.0 as usize;
        if !self.engines.get(index).is_some_and(Engine::is_connected) {
            self.totals.ignored += 1;
            return;
        }
        self.drop_link(now, index, unclaimed_offers, out);
        let engine = &mut self.engines[index];
        if engine.exit.is_some() || engine.spawned_pid == 0 || !self.supervisor.spawner_up {
            self.bury(now, index, out); // No more news to come.
            return;
        }
        engine.state = State::Dying;
        if !engine.limbo.is_empty() {
            engine.limbo_at = now.saturating_add(self.config.certificate_wait_ns).max(1);
            self.timers.set(engine.limbo_at, Timer::Limbo(id));
        }
        self.set_engine_timer(index, now.saturating_add(self.config.exit_wait_ns));
    }

    /// The link is gone: what was offered and never started is queued again, what was started is
    /// retried, ended or put into limbo.
    fn drop_link(
        &mut self,
        now: Nanos,
        index: usize,
        mut unclaimed: Vec<u32>,
        out: &mut Vec<Output>,
    ) {
        self.engines[index].link_down = true;
        unclaimed.sort_unstable();
        let id = self.engines[index].id;
        let offers: Vec<(u32, TaskKey)> = self.engines[index].offers().collect();
        // Latest first: each goes to the front of its queue, which so keeps its order.
        for (offer, key) in offers.into_iter().rev() {
            self.unoffer(now, key, id, offer);
            let task = self.tasks.at(key);
            let started = unclaimed.binary_search(&offer).is_err();
            match (task.stopping, started) {
                _ if task.client.is_none() => self.discard(key),
                (Stopping::Cancel, _) => {
                    let at = if started { id } else { EngineId(u32::MAX) };
                    self.resolve(key, End::bare(Status::Cancelled, at), out);
                }
                (Stopping::Timeout, true) => {
                    self.resolve(key, End::bare(Status::Timeout, id), out);
                }
                (_, true) if task.retries_left > 0 && !self.supervisor.stopping => {
                    self.retry(key, id, out);
                }
                (_, true) => {
                    task.place = Place::Limbo(id);
                    self.engines[index].limbo.push(key);
                }
                (_, false) => {
                    task.stopping = Stopping::No;
                    let key = self.tasks.rename(key);
                    self.make_ready(key, true, out);
                }
            }
        }
        self.engines[index].limbo.reverse();
    }

    pub(crate) fn on_limbo_timer(&mut self, id: EngineId, out: &mut Vec<Output>) {
        let index = id.0 as usize;
        self.engines[index].limbo_at = 0;
        self.lose_limbo(index, out);
    }

    fn lose_limbo(&mut self, index: usize, out: &mut Vec<Output>) {
        let engine = &mut self.engines[index];
        let id = engine.id;
        let at = core::mem::take(&mut engine.limbo_at);
        if at != 0 {
            self.timers.cancel(at, Timer::Limbo(id));
        }
        for key in core::mem::take(&mut engine.limbo) {
            self.lose(key, id, true, out);
        }
    }

    /// The engine is dead, as far as will be known: certifies it and decides what comes next.
    fn bury(&mut self, now: Nanos, index: usize, out: &mut Vec<Output>) {
        self.clear_engine_timer(index);
        self.lose_limbo(index, out);
        let certificate = self.engines[index].certificate(false);
        self.announce(&Event::EngineDown(certificate), out);
        match self.restart_delay_ns(now, index) {
            Some(delay_ns) => {
                let engine = &mut self.engines[index];
                engine.reset(&self.config);
                engine.state = State::Restarting;
                engine.restart_times.push_back(now);
                engine.restarts += 1;
                self.set_engine_timer(index, now.saturating_add(delay_ns));
            }
            None => self.give_up(index, out),
        }
    }

    /// How long to wait before a dead engine is started again; `None` if it is not.
    fn restart_delay_ns(&mut self, now: Nanos, index: usize) -> Option<Nanos> {
        let engine = &mut self.engines[index];
        if self.supervisor.stopping {
            return None;
        }
        if engine.restart_requested {
            return Some(0);
        }
        let stopped = engine.ended_by_us == Some(DeathCause::Stopped);
        let spawned = engine.spawned_pid != 0 || engine.info.is_none();
        if stopped || !spawned || !self.config.restart_engines {
            return None;
        }
        while let Some(at) = engine.restart_times.front() {
            if now.saturating_sub(*at) < MINUTE_NS {
                break;
            }
            engine.restart_times.pop_front();
        }
        let n = engine.restart_times.len() as u32;
        if n >= self.config.max_restarts_per_minute {
            return None;
        }
        let backoff_ns = self
            .config
            .restart_backoff_ns
            .saturating_mul(1 << n.min(31))
            .min(self.config.restart_backoff_max_ns);
        // Up to a quarter more, so that engines that died together do not start together.
        Some(backoff_ns.saturating_add(self.supervisor.below(backoff_ns / 4)))
    }

    /// Nothing will start this engine again: ends what waited for it.
    fn give_up(&mut self, index: usize, out: &mut Vec<Output>) {
        self.clear_engine_timer(index);
        let id = self.engines[index].id;
        self.engines[index].state = State::Gone;
        let waiting: Vec<TaskKey> = self.engines[index].pinned.keys(&self.tasks).collect();
        for key in waiting {
            self.detach(key);
            let engine = &self.engines[index];
            if self.supervisor.stopping {
                self.refuse(key, &RefusalReason::Stopping, out);
            } else if engine.info.is_none() && engine.exit.is_none() {
                // It never was: there is no death to certify.
                self.refuse(key, &RefusalReason::NoSuchEngine(id), out);
            } else {
                self.lose(key, id, false, out);
            }
        }
        self.engines[index].reset(&self.config);
        let hopeless: Vec<u32> = self.groups.iter().map(|(group, _)| group).collect();
        for group in hopeless {
            if self.is_hopeful(group) {
                continue;
            }
            let keys: Vec<TaskKey> = self.groups.at(group).queue.keys(&self.tasks).collect();
            for key in keys {
                self.detach(key);
                let reason = self.why_hopeless(key);
                self.refuse(key, &reason, out);
            }
        }
        self.try_finish(out);
    }

    pub(crate) fn on_engine_timer(&mut self, now: Nanos, id: EngineId, out: &mut Vec<Output>) {
        let index = id.0 as usize;
        self.engines[index].timer_at = 0;
        match self.engines[index].state {
            State::Starting { .. } => {
                let pid = self.engines[index].spawned_pid;
                if pid != 0 {
                    let signal = SIGKILL;
                    out.push(Output::Kill {
                        engine: id,
                        pid,
                        signal,
                    });
                }
                self.bury(now, index, out);
            }
            State::Leaving if !self.engines[index].killed => {
                let cause = DeathCause::Stopped;
                self.kill(now, id, cause, out);
            }
            State::Leaving | State::Dying => {
                // The other half of the news does not come. Without the link's, everything offered
                // counts as started: better lost than run twice.
                if !self.engines[index].link_down {
                    self.drop_link(now, index, Vec::new(), out);
                }
                self.bury(now, index, out);
            }
            State::Restarting => self.start(now, index, out),
            State::Up | State::Gone => {}
        }
    }

    /// Asks an engine to leave after its current task; force follows after a grace.
    pub(crate) fn stop_engine(
        &mut self,
        now: Nanos,
        index: usize,
        restart: bool,
        out: &mut Vec<Output>,
    ) {
        let engine = &mut self.engines[index];
        engine.restart_requested = restart;
        match engine.state {
            State::Up => {
                engine.state = State::Leaving;
                engine.ended_by_us = Some(DeathCause::Stopped);
                let id = engine.id;
                out.push(Output::Stop { engine: id });
                let behind: Vec<(u32, TaskKey)> = engine.stealable().collect();
                for (offer, key) in behind {
                    self.take_back(id, key, offer, out);
                }
                self.set_engine_timer(index, now.saturating_add(self.config.stop_grace_ns));
            }
            State::Starting { .. } if !restart => {
                let (engine_id, pid) = (engine.id, engine.spawned_pid);
                if pid != 0 {
                    out.push(Output::Kill {
                        engine: engine_id,
                        pid,
                        signal: SIGKILL,
                    });
                }
                self.give_up(index, out);
            }
            State::Restarting if !restart => self.give_up(index, out),
            State::Gone if restart => self.start(now, index, out),
            State::Leaving | State::Dying => {
                engine.ended_by_us.get_or_insert(DeathCause::Stopped);
            }
            State::Starting { .. } | State::Restarting | State::Gone => {}
        }
    }

    /// Ends an engine's process.
    pub(crate) fn kill(
        &mut self,
        now: Nanos,
        id: EngineId,
        cause: DeathCause,
        out: &mut Vec<Output>,
    ) {
        let index = id.0 as usize;
        let engine = &mut self.engines[index];
        if engine.killed || !matches!(engine.state, State::Up | State::Leaving) {
            return;
        }
        engine.state = State::Leaving;
        engine.killed = true;
        engine.ended_by_us.get_or_insert(cause);
        out.push(Output::Kill {
            engine: id,
            pid: engine.pid(),
            signal: SIGKILL,
        });
        self.set_engine_timer(index, now.saturating_add(self.config.exit_wait_ns));
    }

    /// Stops the whole cluster.
    pub(crate) fn shutdown(&mut self, now: Nanos, out: &mut Vec<Output>) {
        if core::mem::replace(&mut self.supervisor.stopping, true) {
            return;
        }
        self.supervisor.shutdown_at = now
            .saturating_add(self.config.stop_grace_ns)
            .saturating_add(self.config.exit_wait_ns.saturating_mul(3))
            .max(1);
        self.timers
            .set(self.supervisor.shutdown_at, Timer::Shutdown);
        self.announce(&Event::Stopping, out);
        let queued: Vec<TaskKey> = self
            .tasks
            .iter()
            .filter(|(_, t)| matches!(t.place, Place::Waiting | Place::Ready(_) | Place::Pinned(_)))
            .map(|(key, _)| key)
            .collect();
        for key in queued {
            self.detach(key);
            self.refuse(key, &RefusalReason::Stopping, out);
        }
        for index in 0..self.engines.len() {
            self.stop_engine(now, index, false, out);
        }
        self.try_finish(out);
    }

    /// Once no engine is left the spawner leaves, and once it has left the node may.
    fn try_finish(&mut self, out: &mut Vec<Output>) {
        let engines_left = self.engines.iter().any(|e| e.state != State::Gone);
        if !self.supervisor.stopping || self.supervisor.finished || engines_left {
            return;
        }
        if !self.supervisor.spawner_up {
            self.finish(out);
        } else if !core::mem::replace(&mut self.supervisor.spawner_stopped, true) {
            out.push(Output::StopSpawner);
        }
    }

    /// Shutdown is complete, or took its time.
    pub(crate) fn finish(&mut self, out: &mut Vec<Output>) {
        let at = core::mem::take(&mut self.supervisor.shutdown_at);
        if at != 0 {
            self.timers.cancel(at, Timer::Shutdown);
        }
        if !core::mem::replace(&mut self.supervisor.finished, true) {
            out.push(Output::Finished);
        }
    }
}
