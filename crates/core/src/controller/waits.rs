//! Tasks that wait for tasks: see [`crate::engines::offers`].

use broadleaf_proto::engine::EngineEvent;
use broadleaf_proto::host::EngineOrder;
use broadleaf_proto::ids::{EngineId, TaskKey};

use super::Controller;
use crate::engines::offers::Claim;
use crate::tasks::{Stopping, TaskState};
use crate::{Nanos, Output};

impl Controller {
    pub(super) fn on_engine_event(
        &mut self,
        now: Nanos,
        engine: EngineId,
        event: EngineEvent,
        out: &mut Vec<Output>,
    ) {
        let (EngineEvent::WaitStarted(key) | EngineEvent::WaitEnded(key)) = event;
        let state = self.tasks.state(key);
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
        let offers = self.engines[engine.0 as usize].offers_mut();
        if !offers.suspend(offer) {
            return false;
        }
        // Tasks that the engine may not start in the meantime go back to the front of their queue, latest first.
        let held_up: Vec<(u32, TaskKey)> = offers.held_up().collect();
        for (offer, key) in held_up.into_iter().rev() {
            offers.set_claim(offer, Claim::Returning);
            out.push(Output::Order(EngineOrder::Revoke { engine, key, offer }));
        }
        true
    }

    fn on_wait_ended(&mut self, engine: EngineId, offer: u32) -> bool {
        let offers = self.engines[engine.0 as usize].offers_mut();
        let believed = offers.head();
        if !offers.resume(offer) {
            return false;
        }
        // The task believed to run had not started: its time begins again when it does.
        if let Some((key, _)) = believed
            && self.tasks.at(key).stopping() == Stopping::No
        {
            self.clear_timer(key);
        }
        true
    }
}
