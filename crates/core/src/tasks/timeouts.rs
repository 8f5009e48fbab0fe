//! Time limits of tasks: when they start, and what happens when they expire. A task that is stopped, because of its timeout
//! or an abort, is interrupted. If it has not ended after the grace period, its engine is killed.

use broadleaf_proto::control::DeathCause;
use broadleaf_proto::ids::{EngineId, TaskKey};
use broadleaf_proto::task::Status;

use crate::engines::offers::Claim;
use crate::tasks::dependencies::NOWHERE;
use crate::tasks::settle::Outcome;
use crate::tasks::{Stopping, TaskState};
use crate::{Controller, Nanos, Output};

impl Controller {
    /// Starts the timeout of the task that is now believed to run.
    pub(crate) fn time_head(&mut self, now: Nanos, engine: EngineId) {
        let Some((key, _)) = self.engines[engine.0 as usize].head() else {
            return;
        };
        let task = self.tasks.at(key);
        if task.timer_at != 0 || task.is_travelling || task.stopping.is_forced() {
            return;
        }
        if let Some(timeout_ns) = self.options.at(task.options).options.timeout_ns {
            self.set_timer(key, now.saturating_add(timeout_ns));
        }
    }

    /// Gives a task that was interrupted while others ran on top of it the full grace period, once it is on top again.
    pub(crate) fn time_uncovered(&mut self, now: Nanos, engine: EngineId) {
        if let Some(key) = self.engines[engine.0 as usize].offers().uncovered() {
            self.limit_end(now, key);
        }
    }

    /// A task that was interrupted because it is to be stopped has the grace period to end.
    pub(crate) fn limit_end(&mut self, now: Nanos, key: TaskKey) {
        if self.tasks.at(key).stopping.is_forced() {
            self.set_timer(key, now.saturating_add(self.config.interrupt_grace_ns));
        }
    }

    pub(crate) fn on_task_timer(&mut self, now: Nanos, key: TaskKey, out: &mut Vec<Output>) {
        let task = self.tasks.at(key);
        task.timer_at = 0;
        match (task.state, task.stopping) {
            (TaskState::Waiting, _) => {
                self.detach(key);
                self.resolve(key, Outcome::bare(Status::Timeout, NOWHERE), out);
            }
            (TaskState::Offered(engine, offer), Stopping::No | Stopping::Asked) => {
                task.stopping = Stopping::Timeout;
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
