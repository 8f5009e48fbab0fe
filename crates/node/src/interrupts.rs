//! Interrupts that were sent and that the task has not acted on.
//!
//! Python notes a signal and acts on it between two bytecode instructions. A signal that arrives
//! just before a blocking call takes effect only after that call. So it is sent again, at doubling
//! intervals, until the task acts on it or ends.
//!
//! The signal is SIGURG, which does nothing by default. SIGINT is left to users: a SIGINT that
//! reaches an engine was sent on purpose and interrupts what runs, while a late SIGURG is known to
//! be meant for a task that has ended.

use broadleaf_core::Nanos;
use broadleaf_proto::EngineId;
use rustix::process::Signal;

use crate::connections::peers::Role;
use crate::node::Node;
use crate::outputs::signal_process;

/// Delay before a signal is first sent again.
const FIRST_AGAIN_NS: Nanos = 10_000_000;
/// Number of times that a signal is sent again: up to 10 s after the first. A task that has not
/// reacted by then ignores interrupts.
const MAX_REPEATS: u32 = 10;

#[derive(Debug)]
struct Sent {
    engine: EngineId,
    offer: u32,
    again_ns: Nanos,
    times: u32,
}

/// See the module.
#[derive(Debug, Default)]
pub struct Interrupts {
    sent: Vec<Sent>,
}

impl Interrupts {
    /// When the next interrupt must be checked, ns of the node's clock.
    pub fn due_ns(&self) -> Option<Nanos> {
        self.sent.iter().map(|s| s.again_ns).min()
    }
}

impl Node {
    /// Interrupts the task of an offer if it is running.
    pub(crate) fn interrupt(&mut self, engine: EngineId, offer: u32) {
        let is_new = !(self.interrupts.sent.iter()).any(|s| s.engine == engine && s.offer == offer);
        if self.signal_task(engine, |board| board.request_interrupt(offer)) && is_new {
            self.interrupts.sent.push(Sent {
                engine,
                offer,
                again_ns: self.now_ns + FIRST_AGAIN_NS,
                times: 0,
            });
        }
    }

    /// Sends the signal again for interrupts that no task has acted on.
    pub(crate) fn repeat_interrupts(&mut self) {
        if self.interrupts.due_ns().is_none_or(|at| at > self.now_ns) {
            return;
        }
        let mut sent = std::mem::take(&mut self.interrupts.sent);
        sent.retain_mut(|s| {
            if s.again_ns > self.now_ns {
                return true;
            }
            s.times += 1;
            s.again_ns = self.now_ns + (FIRST_AGAIN_NS << s.times);
            s.times <= MAX_REPEATS
                && self.signal_task(s.engine, |board| board.is_interrupt_open(s.offer))
        });
        self.interrupts.sent = sent;
    }

    fn signal_task(
        &self,
        engine: EngineId,
        is_wanted: impl Fn(&broadleaf_shm::ClaimBoard) -> bool,
    ) -> bool {
        let peer = self.engine_token(engine).map(|token| &self.peers[token]);
        let Some(Role::Engine { board, pid, .. }) = peer.map(|peer| &peer.role) else {
            return false;
        };
        let is_wanted = is_wanted(board);
        if is_wanted {
            signal_process(*pid, Signal::URG.as_raw());
        }
        is_wanted
    }
}
