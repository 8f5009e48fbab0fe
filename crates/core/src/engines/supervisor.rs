//! The lives of engines: started, connected, stopped, killed, and the end of the whole cluster.

use broadleaf_proto::control::{DeathCause, EngineInfo, Event, ForkServerEvent, RefusalReason};
use broadleaf_proto::host::EngineOrder;
use broadleaf_proto::ids::{EngineId, HostId, TaskKey};

use crate::engines::reports::Unclaimed;
use crate::engines::{Engine, Exit, State};
use crate::tasks::TaskState;
use crate::tasks::targets::MAX_ENGINES;
use crate::timers::Timer;
use crate::{Controller, Nanos, Output};

const SIGKILL: i32 = 9;

/// What concerns all engines.
#[derive(Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "they are independent facts")]
pub(crate) struct Supervisor {
    /// Whether the first input, which brings the time, was seen.
    pub booted: bool,
    pub fork_server_up: bool,
    pub stopping: bool,
    pub finished: bool,
    /// Whether an engine or a host is being released.
    pub drains: bool,
    /// Whether the fork server was told to exit.
    fork_server_stopped: bool,
    /// The timer for the fork server's exit; 0 for none.
    pub shutdown_at: Nanos,
    random: u64,
}

impl Supervisor {
    pub fn new(seed: u64) -> Self {
        Self {
            booted: false,
            fork_server_up: false,
            stopping: false,
            finished: false,
            drains: false,
            fork_server_stopped: false,
            shutdown_at: 0,
            random: seed,
        }
    }

    /// A number below `bound` (splitmix64).
    pub fn below(&mut self, bound: u64) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.random;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % bound.max(1)
    }
}

impl Controller {
    /// The first input brings the time, so engines requested from the start get their start timeout now.
    pub(crate) fn boot(&mut self, now: Nanos) {
        self.supervisor.booted = true;
        for index in 0..self.engines.len() {
            self.engines[index].begin_start(now, self.config.start_timeout_ns);
            self.set_engine_timer(index, now.saturating_add(self.config.start_timeout_ns));
        }
    }

    pub(crate) fn set_engine_timer(&mut self, index: usize, at: Nanos) {
        self.clear_engine_timer(index);
        let engine = &mut self.engines[index];
        engine.timer_at = at.max(1);
        self.timers.set(engine.timer_at, Timer::Engine(engine.id));
    }

    pub(crate) fn clear_engine_timer(&mut self, index: usize) {
        let engine = &mut self.engines[index];
        let at = core::mem::take(&mut engine.timer_at);
        if at != 0 {
            self.timers.cancel(at, Timer::Engine(engine.id));
        }
    }

    /// The slot of an engine, created if necessary.
    fn engine_index(&mut self, id: EngineId) -> Option<usize> {
        if id.0 >= MAX_ENGINES {
            return None;
        }
        while self.engines.len() <= id.0 as usize {
            let next = EngineId(self.engines.len() as u32);
            self.engines.push(Engine::new(next, &self.config));
        }
        Some(id.0 as usize)
    }

    /// Makes the fork server start an engine, now or once it is connected.
    pub(crate) fn start(&mut self, now: Nanos, index: usize, out: &mut Vec<Output>) {
        let spawn_sent = self.can_spawn(self.engines[index].host);
        let engine = &mut self.engines[index];
        engine.state = State::Starting { spawn_sent };
        if spawn_sent {
            out.push(Output::Order(EngineOrder::Spawn { engine: engine.id }));
        }
        engine.begin_start(now, self.config.start_timeout_ns);
        self.set_engine_timer(index, now.saturating_add(self.config.start_timeout_ns));
    }

    /// Requests more engines, in new slots.
    pub(crate) fn add_engines(&mut self, now: Nanos, n: u32, out: &mut Vec<Output>) -> bool {
        let first = self.engines.len();
        if n as usize > MAX_ENGINES as usize - first {
            return false;
        }
        for index in first..first + n as usize {
            self.engine_index(EngineId(index as u32));
            self.start(now, index, out);
        }
        true
    }

    pub(crate) fn on_fork_server_up(&mut self, out: &mut Vec<Output>) {
        self.supervisor.fork_server_up = true;
        if self.supervisor.stopping {
            self.try_finish(out);
            return;
        }
        for engine in &mut self.engines {
            let is_own = engine.host == HostId::CONTROLLER;
            if is_own && engine.state == (State::Starting { spawn_sent: false }) {
                engine.state = State::Starting { spawn_sent: true };
                out.push(Output::Order(EngineOrder::Spawn { engine: engine.id }));
            }
        }
    }

    /// The fork server is the parent of this process and of the engines here, and the process by which the cluster is
    /// known: if it was not told to end, the cluster ends with it.
    pub(crate) fn on_fork_server_down(&mut self, now: Nanos, out: &mut Vec<Output>) {
        self.supervisor.fork_server_up = false;
        for engine in &mut self.engines {
            let is_own = engine.host == HostId::CONTROLLER && engine.guest.is_none();
            if is_own && matches!(engine.state, State::Starting { .. }) {
                engine.state = State::Starting { spawn_sent: false };
                engine.spawned_pid = 0;
            }
        }
        if self.supervisor.fork_server_stopped {
            self.observers.drop_host(HostId::CONTROLLER, out);
            self.finish(out);
            return;
        }
        self.shutdown(now, out);
        self.observers.drop_host(HostId::CONTROLLER, out);
        self.try_finish(out);
    }

    /// A fork server knows only of processes of its host.
    pub(crate) fn on_fork_server_event(
        &mut self,
        now: Nanos,
        host: HostId,
        event: ForkServerEvent,
        out: &mut Vec<Output>,
    ) {
        let (id, pid) = match event {
            ForkServerEvent::Spawned(engine, pid) | ForkServerEvent::Exited { engine, pid, .. } => {
                (engine, pid)
            }
            ForkServerEvent::NotStarted { engine, reason } => {
                self.on_not_started(now, engine, reason, out);
                return;
            }
            ForkServerEvent::Guest {
                world,
                size,
                rank,
                pid,
            } => {
                if !self.on_guest(now, host, world, size, rank, pid, out) {
                    self.expel(host, out);
                }
                return;
            }
            ForkServerEvent::Written { reading, text } => {
                self.on_written(host, reading, text, out);
                return;
            }
        };
        let index = id.0 as usize;
        let Some(engine) = self.engines.get_mut(index) else {
            self.totals.ignored += 1;
            return;
        };
        let ForkServerEvent::Exited {
            code,
            signal,
            out_of_memory,
            last_output,
            ..
        } = event
        else {
            match engine.state {
                State::Starting { spawn_sent: true }
                | State::Up
                | State::Draining
                | State::Leaving
                | State::Dying => {
                    engine.spawned_pid = pid;
                    engine.failed_starts = 0;
                }
                // The engine is no longer wanted.
                _ => out.push(Output::Order(EngineOrder::Kill {
                    engine: id,
                    pid,
                    signal: SIGKILL,
                })),
            }
            return;
        };
        if engine.spawned_pid != pid || engine.exit.is_some() {
            return; // This is an earlier process of this slot, already accounted for.
        }
        let cause = match (out_of_memory, signal, code) {
            (true, ..) => DeathCause::OutOfMemory,
            (_, Some(signal), _) => DeathCause::Signal(signal),
            (_, None, Some(code)) => DeathCause::Exit(code),
            (_, None, None) => DeathCause::Disconnected,
        };
        let cause = self.cause_in_world(index, cause);
        let engine = &mut self.engines[index];
        engine.exit = Some(Exit { cause, last_output });
        match engine.state {
            State::Starting { .. } => self.bury(now, index, out),
            State::Dying if engine.link_down => self.bury(now, index, out),
            State::Up | State::Draining | State::Leaving => {
                // What it sent before must still be read; then its link closes. Tasks that it never started need not
                // wait for that.
                engine.state = State::Dying;
                let open: Vec<(u32, TaskKey)> = engine.offers().open().collect();
                for (offer, key) in open {
                    self.take_back(id, key, offer, out);
                }
                self.set_engine_timer(index, now.saturating_add(self.config.exit_wait_ns));
            }
            State::Dying | State::Restarting | State::Gone => {}
        }
    }

    pub(crate) fn on_engine_up(&mut self, now: Nanos, mut info: EngineInfo, out: &mut Vec<Output>) {
        let id = info.engine;
        let Some(index) = self.engine_index(id) else {
            out.push(Output::Order(EngineOrder::Stop { engine: id }));
            return;
        };
        if self.engines[index].has_process() {
            // The engine's successor arrived before the death was reported.
            self.drop_link(now, index, &Unclaimed::default(), out);
            self.engines[index].restart = Some(true);
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
        if let Some(guest) = &engine.guest {
            // These are named like the relays of blocks, so that the engines of a set are
            // identified by their hosts.
            let host = info.host.split(':').next().unwrap_or_default();
            info.host = format!("{host}:{}", guest.world);
        }
        engine.reset(&self.config);
        engine.failed_starts = 0;
        engine.spawned_pid = spawned_pid;
        engine.info = Some(info.clone());
        engine.begin_head(now);
        self.clear_engine_timer(index);
        if self.supervisor.stopping || self.is_host_released(index) {
            self.engines[index].state = State::Up;
            self.stop_engine(now, index, false, out);
            return;
        }
        self.engines[index].state = State::Up;
        self.announce(&Event::EngineUp(info), out);
        self.prepare_engine(id, out);
    }

    pub(crate) fn on_engine_timer(&mut self, now: Nanos, id: EngineId, out: &mut Vec<Output>) {
        let index = id.0 as usize;
        self.engines[index].timer_at = 0;
        match self.engines[index].state {
            State::Starting { .. } => {
                let pid = self.engines[index].spawned_pid;
                if pid != 0 {
                    let signal = SIGKILL;
                    out.push(Output::Order(EngineOrder::Kill {
                        engine: id,
                        pid,
                        signal,
                    }));
                }
                self.bury(now, index, out);
            }
            State::Leaving if !self.engines[index].killed => {
                let cause = DeathCause::Stopped;
                self.kill(now, id, cause, out);
            }
            State::Leaving | State::Dying => {
                // The other notice has not arrived in time. Without the link's notice, everything
                // offered counts as started: losing a task is better than running it twice.
                if !self.engines[index].link_down {
                    self.drop_link(now, index, &Unclaimed::default(), out);
                }
                self.bury(now, index, out);
            }
            State::Restarting => self.start(now, index, out),
            State::Draining => self.stop_engine(now, index, false, out),
            State::Up | State::Gone => {}
        }
    }

    /// Asks an engine to leave after its current task; force follows after a grace period.
    pub(crate) fn stop_engine(
        &mut self,
        now: Nanos,
        index: usize,
        restart: bool,
        out: &mut Vec<Output>,
    ) {
        let has_host = self.has_host(index);
        let engine = &mut self.engines[index];
        // A released engine does not come back.
        let restart = restart && engine.state != State::Draining;
        engine.restart = Some(restart);
        engine.is_revivable &= restart;
        match engine.state {
            State::Up | State::Draining => {
                let was_up = engine.state == State::Up;
                engine.state = State::Leaving;
                engine.ended_by_us = Some(DeathCause::Stopped);
                let id = engine.id;
                // Whoever waits for engines after a restart must not count those that it ends.
                if was_up && !self.supervisor.stopping {
                    self.announce(&Event::EngineLeaving(id), out);
                }
                out.push(Output::Order(EngineOrder::Stop { engine: id }));
                let behind: Vec<(u32, TaskKey)> =
                    self.engines[index].offers().stealable().collect();
                for (offer, key) in behind {
                    self.take_back(id, key, offer, out);
                }
                self.set_engine_timer(index, now.saturating_add(self.config.stop_grace_ns));
            }
            State::Starting { .. } if !restart => {
                let (engine_id, pid) = (engine.id, engine.spawned_pid);
                if pid != 0 {
                    out.push(Output::Order(EngineOrder::Kill {
                        engine: engine_id,
                        pid,
                        signal: SIGKILL,
                    }));
                }
                self.give_up(index, out);
            }
            State::Restarting if !restart => self.give_up(index, out),
            State::Gone if restart && has_host && engine.guest.is_none() => {
                engine.restarts += u64::from(engine.last_death.is_some());
                self.start(now, index, out);
            }
            State::Leaving
            | State::Dying
            | State::Starting { .. }
            | State::Restarting
            | State::Gone => {}
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
        if engine.killed || !matches!(engine.state, State::Up | State::Draining | State::Leaving) {
            return;
        }
        let was_up = engine.state == State::Up;
        engine.state = State::Leaving;
        engine.killed = true;
        engine.ended_by_us.get_or_insert(cause);
        let pid = engine.pid();
        if was_up && !self.supervisor.stopping {
            self.announce(&Event::EngineLeaving(id), out);
        }
        out.push(Output::Order(EngineOrder::Kill {
            engine: id,
            pid,
            signal: SIGKILL,
        }));
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
            .filter(|(_, t)| {
                matches!(
                    t.state,
                    TaskState::Waiting | TaskState::Ready(_) | TaskState::Pinned(_)
                )
            })
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

    /// When no engine is left, the fork server exits, and after it the node may.
    pub(crate) fn try_finish(&mut self, out: &mut Vec<Output>) {
        if !self.supervisor.stopping || self.supervisor.finished {
            return;
        }
        if self.engines.n_present(None) > 0 {
            return;
        }
        if !self.supervisor.fork_server_up {
            self.finish(out);
        } else if !core::mem::replace(&mut self.supervisor.fork_server_stopped, true) {
            out.push(Output::StopForkServer);
        }
    }

    /// Shutdown is complete, or timed out.
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
