//! Interrupts that were sent and that the task has not taken.
//!
//! Python notes a signal and acts on it between two instructions. One that comes in the instant before a call that
//! blocks is acted on only after that call, so it is sent again, each time after twice the time, until the task takes
//! it or ends.
//!
//! The signal is SIGURG, which does nothing by default. SIGINT is left to users: one that reaches an engine was sent on
//! purpose and interrupts what runs, while a SIGURG that comes late is known to be meant for a task that has ended.

use broadleaf_core::Nanos;
use broadleaf_proto::EngineId;
use rustix::process::Signal;

use crate::node::Node;
use crate::outputs::signal_process;
use crate::peers::Role;

/// Time until a signal is first sent again.
const FIRST_AGAIN_NS: Nanos = 10_000_000;
/// Times a signal is sent again: to 10 s after the first. Whoever has not taken it then has other plans.
const MOST_AGAIN: u32 = 10;

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
    /// When the next one is to be looked at, ns of the node's clock.
    pub fn due_ns(&self) -> Option<Nanos> {
        self.sent.iter().map(|s| s.again_ns).min()
    }
}

impl Node {
    /// Interrupts the task of an offer, if it runs.
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

    /// Signals again where an interrupt is still to be taken.
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
            s.times <= MOST_AGAIN
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
