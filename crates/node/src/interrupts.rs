//! Sends interrupts to engines; [`broadleaf_core::interrupts`] says when again.
//!
//! The signal is SIGURG, which does nothing by default. SIGINT is left to users: a SIGINT that
//! reaches an engine was sent on purpose and interrupts what runs, while a late SIGURG is known to
//! be meant for a task that has ended.

use broadleaf_proto::EngineId;
use rustix::process::Signal;

use crate::connections::peers::Role;
use crate::node::Node;
use crate::outputs::signal_process;

impl Node {
    /// Interrupts the task of an offer if it is running.
    pub(crate) fn interrupt(&mut self, engine: EngineId, offer: u32) {
        if self
            .board(engine)
            .is_some_and(|b| b.request_interrupt(offer))
        {
            self.interrupts.on_sent(self.now_ns, engine, offer);
            self.signal_engine(engine);
        }
    }

    /// Sends the signal again for interrupts that no task has acted on.
    pub(crate) fn repeat_interrupts(&mut self) {
        if self.interrupts.next_due().is_none_or(|at| at > self.now_ns) {
            return;
        }
        let mut interrupts = std::mem::take(&mut self.interrupts);
        let is_open = |engine, offer: u32| {
            let board = self.board(engine);
            board.is_some_and(|b| b.is_interrupt_open(offer))
        };
        let mut again = Vec::new();
        interrupts.on_due(self.now_ns, is_open, &mut again);
        self.interrupts = interrupts;
        for engine in again {
            self.signal_engine(engine);
        }
    }

    fn signal_engine(&self, engine: EngineId) {
        let peer = self.engine_token(engine).map(|token| &self.peers[token]);
        if let Some(Role::Engine { pid, .. }) = peer.map(|peer| &peer.role) {
            signal_process(*pid, Signal::URG.as_raw());
        }
    }
}
