//! What fork servers report.

use broadleaf_proto::control::{DeathCause, ForkServerEvent, ForkServerOrder};
use broadleaf_proto::host::EngineOrder;
use broadleaf_proto::ids::{HostId, TaskKey};

use super::Controller;
use crate::engines::{SIGKILL, State};
use crate::{Nanos, Output};

impl Controller {
    pub(super) fn on_fork_server_up(&mut self, out: &mut Vec<Output>) {
        self.supervisor.set_fork_server(true);
        if self.supervisor.is_stopping() {
            self.try_finish(out);
            return;
        }
        for engine in &mut self.engines {
            let is_own = engine.host() == HostId::CONTROLLER;
            if is_own && engine.state() == (State::Starting { spawn_sent: false }) {
                engine.await_hello(true);
                let engine = engine.id();
                let order = ForkServerOrder::Spawn { engine };
                out.push(Output::Order(EngineOrder::ForkServer(order)));
            }
        }
    }

    /// The fork server is the parent of this process and of the engines here, and the process by which the cluster is
    /// known: if it was not told to end, the cluster ends with it.
    pub(super) fn on_fork_server_down(&mut self, now: Nanos, out: &mut Vec<Output>) {
        self.supervisor.set_fork_server(false);
        for engine in &mut self.engines {
            let is_own = engine.host() == HostId::CONTROLLER && engine.guest().is_none();
            if is_own && matches!(engine.state(), State::Starting { .. }) {
                engine.await_hello(false);
                engine.forget_process();
            }
        }
        if self.supervisor.has_stopped_fork_server() {
            self.observers.drop_host(HostId::CONTROLLER, out);
            self.finish(out);
            return;
        }
        self.shutdown(now, out);
        self.observers.drop_host(HostId::CONTROLLER, out);
        self.try_finish(out);
    }

    /// A fork server knows only of processes of its host.
    pub(super) fn on_fork_server_event(
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
                if !self.observers.on_written(host, reading, text, out) {
                    self.totals.ignored += 1;
                }
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
            if !engine.on_spawned(pid) {
                out.push(Output::Order(EngineOrder::Kill {
                    engine: id,
                    pid,
                    signal: SIGKILL,
                }));
            }
            return;
        };
        if engine.spawned_pid() != pid || engine.has_exited() {
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
        engine.note_exit(cause, last_output);
        match engine.state() {
            State::Starting { .. } => self.bury(now, index, out),
            State::Dying if engine.is_link_down() => self.bury(now, index, out),
            State::Up | State::Draining | State::Leaving => {
                // What it sent before must still be read; then its link closes. Tasks that it never started need not
                // wait for that.
                engine.begin_dying();
                let open: Vec<(u32, TaskKey)> = engine.offers().open().collect();
                for (offer, key) in open {
                    self.take_back(id, key, offer, out);
                }
                self.set_engine_timer(index, now.saturating_add(self.config.exit_wait_ns));
            }
            State::Dying | State::Restarting | State::Gone => {}
        }
    }
}
