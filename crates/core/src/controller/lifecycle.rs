//! The lives of engines: started, connected, stopped.

use broadleaf_proto::control::{DeathCause, EngineInfo, Event, ForkServerOrder, RefusalReason};
use broadleaf_proto::host::EngineOrder;
use broadleaf_proto::ids::{EngineId, TaskKey};

use super::Controller;
use crate::engines::unclaimed::Unclaimed;
use crate::engines::{SIGKILL, State};
use crate::tasks::TaskState;
use crate::tasks::targets::MAX_ENGINES;
use crate::timers::Timer;
use crate::{Nanos, Output};

impl Controller {
    /// The first input brings the time, so engines requested from the start get their start timeout now.
    pub(super) fn boot(&mut self, now: Nanos) {
        for index in 0..self.engines.len() {
            self.engines[index].begin_start(now, self.config.start_timeout_ns);
            self.set_engine_timer(index, now.saturating_add(self.config.start_timeout_ns));
        }
    }

    /// Makes the fork server start an engine, now or once it is connected.
    pub(super) fn start(&mut self, now: Nanos, index: usize, out: &mut Vec<Output>) {
        let spawn_sent = self.can_spawn(self.engines[index].host());
        self.note_slot(index, out);
        let engine = &mut self.engines[index];
        engine.await_hello(spawn_sent);
        if spawn_sent {
            let engine = engine.id();
            let order = ForkServerOrder::Spawn { engine };
            out.push(Output::Order(EngineOrder::ForkServer(order)));
        }
        engine.begin_start(now, self.config.start_timeout_ns);
        self.set_engine_timer(index, now.saturating_add(self.config.start_timeout_ns));
    }

    /// Requests more engines, in new slots.
    pub(super) fn add_engines(&mut self, now: Nanos, n: u32, out: &mut Vec<Output>) -> bool {
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

    pub(super) fn on_engine_up(&mut self, now: Nanos, info: EngineInfo, out: &mut Vec<Output>) {
        let id = info.engine;
        let Some(index) = self.engine_index(id) else {
            out.push(Output::Order(EngineOrder::Stop { engine: id }));
            return;
        };
        if self.engines[index].has_process() {
            // The engine's successor arrived before the death was reported.
            self.drop_link(now, index, &Unclaimed::default(), out);
            self.engines[index].expect_successor();
            self.bury(now, index, out);
        }
        let info = self.engines[index].on_hello(now, info, &self.config);
        self.clear_engine_timer(index);
        if self.supervisor.is_stopping() || self.is_host_released(index) {
            self.stop_engine(now, index, false, out);
            return;
        }
        self.note_engine(&info, out);
        self.clients.announce(&Event::EngineUp(info), out);
        self.prepare_engine(id, out);
    }

    pub(super) fn on_engine_timer(&mut self, now: Nanos, id: EngineId, out: &mut Vec<Output>) {
        let index = id.0 as usize;
        self.engines[index].take_timer_at();
        match self.engines[index].state() {
            State::Starting { .. } => {
                let pid = self.engines[index].spawned_pid();
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
            State::Leaving if !self.engines[index].is_killed() => {
                let cause = DeathCause::Stopped;
                self.kill(now, id, cause, out);
            }
            State::Leaving | State::Dying => {
                // The other notice has not arrived in time. Without the link's notice, everything
                // offered counts as started: losing a task is better than running it twice.
                if !self.engines[index].is_link_down() {
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
    pub(super) fn stop_engine(
        &mut self,
        now: Nanos,
        index: usize,
        restart: bool,
        out: &mut Vec<Output>,
    ) {
        let has_host = self.has_host(index);
        let engine = &mut self.engines[index];
        let restart = engine.set_restart(restart);
        match engine.state() {
            State::Up | State::Draining => {
                let was_up = engine.begin_leaving(DeathCause::Stopped);
                let id = engine.id();
                // Whoever waits for engines after a restart must not count those that it ends.
                if was_up && !self.supervisor.is_stopping() {
                    self.clients.announce(&Event::EngineLeaving(id), out);
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
                let (engine_id, pid) = (engine.id(), engine.spawned_pid());
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
            State::Gone if restart && has_host && engine.guest().is_none() => {
                engine.count_restart();
                self.start(now, index, out);
            }
            State::Leaving
            | State::Dying
            | State::Starting { .. }
            | State::Restarting
            | State::Gone => {}
        }
    }

    /// Stops the whole cluster.
    pub(super) fn shutdown(&mut self, now: Nanos, out: &mut Vec<Output>) {
        if !self.supervisor.stop() {
            return;
        }
        let at = now
            .saturating_add(self.config.stop_grace_ns)
            .saturating_add(self.config.exit_wait_ns.saturating_mul(3))
            .max(1);
        self.supervisor.set_shutdown_at(at);
        self.timers.set(at, Timer::Shutdown);
        self.clients.announce(&Event::Stopping, out);
        let queued: Vec<TaskKey> = self
            .tasks
            .iter()
            .filter(|(_, t)| {
                matches!(
                    t.state(),
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
}
