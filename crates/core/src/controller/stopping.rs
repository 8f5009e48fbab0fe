//! Engines that are ended by force, and the end of the cluster.

use broadleaf_proto::control::{DeathCause, Event};
use broadleaf_proto::host::EngineOrder;
use broadleaf_proto::ids::EngineId;

use super::Controller;
use crate::engines::SIGKILL;
use crate::timers::Timer;
use crate::{Nanos, Output};

impl Controller {
    /// Ends an engine's process.
    pub(super) fn kill(
        &mut self,
        now: Nanos,
        id: EngineId,
        cause: DeathCause,
        out: &mut Vec<Output>,
    ) {
        let index = id.0 as usize;
        let engine = &mut self.engines[index];
        let Some(was_up) = engine.kill(cause) else {
            return;
        };
        let pid = engine.pid();
        if was_up && !self.supervisor.is_stopping() {
            self.clients.announce(&Event::EngineLeaving(id), out);
        }
        out.push(Output::Order(EngineOrder::Kill {
            engine: id,
            pid,
            signal: SIGKILL,
        }));
        self.set_engine_timer(index, now.saturating_add(self.config.exit_wait_ns));
    }

    /// When no engine is left, the fork server exits, and after it the node may.
    pub(super) fn try_finish(&mut self, out: &mut Vec<Output>) {
        if !self.supervisor.is_stopping() || self.supervisor.is_finished() {
            return;
        }
        if self.engines.n_present(None) > 0 {
            return;
        }
        if !self.supervisor.has_fork_server() {
            self.finish(out);
        } else if self.supervisor.stop_fork_server() {
            out.push(Output::StopForkServer);
        }
    }

    /// Shutdown is complete, or timed out.
    pub(super) fn finish(&mut self, out: &mut Vec<Output>) {
        let (is_new, at) = self.supervisor.finish();
        if at != 0 {
            self.timers.cancel(at, Timer::Shutdown);
        }
        if is_new {
            out.push(Output::Finished);
        }
    }
}
