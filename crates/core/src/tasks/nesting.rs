//! Tasks that wait for tasks. While an engine's task waits, the engine runs other tasks on top of it, but only those
//! nested deeper than the waiting one.
//!
//! So an engine's stack holds at most one task of each depth, and tasks of equal depth never hold up a waiting one.
//! There is always progress: among the unfinished tasks, a deepest one waits for nothing, and any waiting engine may
//! run it.

use broadleaf_proto::engine::EngineEvent;
use broadleaf_proto::host::EngineOrder;
use broadleaf_proto::ids::{EngineId, TaskKey};

use crate::engines::Engine;
use crate::placement::offers::{Claim, Offer};
use crate::tasks::{Stopping, TaskState};
use crate::{Controller, Nanos, Output};

/// A task that waits for others, or has waited.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Suspended {
    /// The offer's number.
    pub number: u32,
    pub offer: Offer,
    /// Whether it is waiting. Only the last task of a stack may be running.
    pub waits: bool,
}

impl Engine {
    /// The depth that a task must exceed for the engine to start it; `None` if none of its tasks waits.
    pub fn floor(&self) -> Option<u16> {
        let waiting = self.stack.iter().rev().find(|s| s.waits);
        waiting.map(|s| s.offer.depth)
    }

    /// Whether it may start a task of this depth.
    pub fn accepts(&self, depth: u16) -> bool {
        self.stack.is_empty() || self.floor().is_none_or(|floor| depth > floor)
    }

    /// The order of engines: one without tasks comes before one whose tasks all wait, and that before one with a
    /// running task, from which the new task would only be stolen.
    pub fn load(&self) -> u32 {
        (self.outstanding << 8) + self.stack.len() as u32
    }

    pub fn suspended(&self, number: u32) -> Option<&Suspended> {
        self.stack.iter().find(|s| s.number == number)
    }

    /// Number of waiting tasks.
    pub fn n_waiting(&self) -> usize {
        self.stack.iter().filter(|s| s.waits).count()
    }

    /// The task to interrupt if none is named: the one believed to run, or the last one that waits.
    pub fn current(&self) -> Option<(TaskKey, u32)> {
        let top = || self.stack.last().map(|top| (top.offer.key, top.number));
        self.head()
            .or_else(|| top().and_then(|(key, number)| Some((key?, number))))
    }

    /// Whether a task cannot act on an interrupt yet, because another runs on top of it.
    pub fn is_buried(&self, number: u32) -> bool {
        let is_top = self.stack.last().is_some_and(|top| top.number == number);
        self.suspended(number)
            .is_some_and(|s| s.waits && !(is_top && self.outstanding == 0))
    }

    /// The task of an offer waits from now on. False if that is impossible.
    fn suspend(&mut self, number: u32) -> bool {
        if let Some(top) = self.stack.last_mut().filter(|top| !top.waits) {
            if top.number != number {
                return false;
            }
            top.waits = true;
            self.outstanding -= 1;
            return true;
        }
        let depth = self.offers_by_number(number).map(|offer| offer.depth);
        if depth.is_none_or(|depth| !self.accepts(depth)) {
            return false;
        }
        let Some(mut offer) = self.take_out(number) else {
            return false;
        };
        if offer.claim == Claim::Open {
            offer.claim = Claim::Claimed;
        }
        self.stack.push(Suspended {
            number,
            offer,
            waits: true,
        });
        true
    }

    /// The last task of the stack continues. False if that is impossible.
    fn resume(&mut self, number: u32) -> bool {
        let top = self.stack.last_mut();
        let Some(top) = top.filter(|top| top.number == number && top.waits) else {
            return false;
        };
        top.waits = false;
        self.outstanding += 1;
        true
    }

    /// Whether depths grow along the stack, and only the last of it does not wait.
    pub fn is_stack_consistent(&self) -> bool {
        let last = self.stack.len().saturating_sub(1);
        self.stack.iter().take(last).all(|s| s.waits)
            && self
                .stack
                .windows(2)
                .all(|pair| pair[0].offer.depth < pair[1].offer.depth)
            && self.stack.iter().all(|s| s.offer.key.is_some())
    }
}

impl Controller {
    pub(crate) fn on_engine_event(
        &mut self,
        now: Nanos,
        engine: EngineId,
        event: EngineEvent,
        out: &mut Vec<Output>,
    ) {
        let (EngineEvent::WaitStarted(key) | EngineEvent::WaitEnded(key)) = event;
        let state = self.tasks.get(key).map(|t| t.state);
        let Some(TaskState::Offered(_, offer)) =
            state.filter(|state| matches!(state, TaskState::Offered(at, _) if *at == engine))
        else {
            self.totals.ignored += 1;
            return;
        };
        let done = match event {
            EngineEvent::WaitStarted(_) => self.on_wait_started(engine, offer, out),
            EngineEvent::WaitEnded(_) => self.on_wait_ended(engine, offer),
        };
        if !done {
            self.totals.ignored += 1;
            return;
        }
        self.engines[engine.0 as usize].begin_head(now);
        self.time_head(now, engine);
    }

    fn on_wait_started(&mut self, engine: EngineId, offer: u32, out: &mut Vec<Output>) -> bool {
        let state = &mut self.engines[engine.0 as usize];
        if !state.suspend(offer) {
            return false;
        }
        // Tasks that the engine may not start in the meantime go back to the front of their queue, latest first.
        let held_up: Vec<(u32, TaskKey)> = state
            .open_offers()
            .filter(|(number, _)| {
                let depth = state.offers_by_number(*number).map(|o| o.depth);
                depth.is_some_and(|depth| !state.accepts(depth))
            })
            .collect();
        for (offer, key) in held_up.into_iter().rev() {
            state.set_claim(offer, Claim::Returning);
            out.push(Output::Order(EngineOrder::Revoke { engine, key, offer }));
        }
        true
    }

    fn on_wait_ended(&mut self, engine: EngineId, offer: u32) -> bool {
        let state = &mut self.engines[engine.0 as usize];
        let believed = state.head();
        if !state.resume(offer) {
            return false;
        }
        // The task believed to run had not started: its time begins again when it does.
        if let Some((key, _)) = believed
            && self.tasks.at(key).stopping == Stopping::No
        {
            self.clear_timer(key);
        }
        true
    }
}
