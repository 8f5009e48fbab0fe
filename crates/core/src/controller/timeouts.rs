//! Time limits of tasks that have expired. A task that is stopped, because of its timeout or an abort, is interrupted. If it
//! has not ended after the grace period, its engine is killed.

use broadleaf_proto::control::DeathCause;
use broadleaf_proto::ids::TaskKey;
use broadleaf_proto::task::Status;

use super::Controller;
use crate::engines::offers::Claim;
use crate::results::Outcome;
use crate::tasks::dependencies::NOWHERE;
use crate::tasks::{Stopping, TaskState};
use crate::{Nanos, Output};

impl Controller {
    pub(super) fn on_task_timer(&mut self, now: Nanos, key: TaskKey, out: &mut Vec<Output>) {
        let task = self.tasks.at(key);
        task.take_timer_at();
        match (task.state(), task.stopping()) {
            (TaskState::Waiting, _) => {
                self.detach(key);
                self.resolve(key, Outcome::bare(Status::Timeout, NOWHERE), out);
            }
            (TaskState::Offered(engine, offer), Stopping::No | Stopping::Asked) => {
                task.stop(Stopping::Timeout);
                let claim = self.engines[engine.0 as usize].offers().claim(offer);
                self.take_back(engine, key, offer, out);
                if claim == Some(Claim::Claimed) {
                    self.limit_end(now, key);
                }
            }
            (TaskState::Offered(engine, offer), Stopping::Cancel | Stopping::Timeout)
                if self.engines[engine.0 as usize].offers().is_buried(offer) =>
            {
                // The task is interrupted once the task on top of it, which has its own time limit,
                // has ended.
                self.limit_end(now, key);
            }
            (TaskState::Offered(engine, _), Stopping::Cancel | Stopping::Timeout) => {
                self.kill(now, engine, DeathCause::Unresponsive, out);
            }
            _ => {}
        }
    }
}
