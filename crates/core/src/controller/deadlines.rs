//! Timers of tasks and engines: when each is set, and for how long.

use broadleaf_proto::ids::{EngineId, TaskKey};

use super::Controller;
use crate::Nanos;
use crate::timers::Timer;

impl Controller {
    /// Sets a task's only timer.
    pub(super) fn set_timer(&mut self, key: TaskKey, at: Nanos) {
        self.clear_timer(key);
        let at = at.max(1);
        self.tasks.at(key).set_timer_at(at);
        self.timers.set(at, Timer::Task(key));
    }

    pub(super) fn clear_timer(&mut self, key: TaskKey) {
        let at = self.tasks.at(key).take_timer_at();
        if at != 0 {
            self.timers.cancel(at, Timer::Task(key));
        }
    }

    pub(super) fn set_engine_timer(&mut self, index: usize, at: Nanos) {
        self.clear_engine_timer(index);
        let engine = &mut self.engines[index];
        let at = at.max(1);
        engine.set_timer_at(at);
        self.timers.set(at, Timer::Engine(engine.id()));
    }

    pub(super) fn clear_engine_timer(&mut self, index: usize) {
        let engine = &mut self.engines[index];
        let at = engine.take_timer_at();
        if at != 0 {
            self.timers.cancel(at, Timer::Engine(engine.id()));
        }
    }

    /// Starts the timeout of the task that is now believed to run.
    pub(super) fn time_head(&mut self, now: Nanos, engine: EngineId) {
        let Some((key, _)) = self.engines[engine.0 as usize].head() else {
            return;
        };
        let task = self.tasks.at(key);
        if task.timer_at() != 0 || task.is_travelling() || task.stopping().is_forced() {
            return;
        }
        if let Some(timeout_ns) = self.options.at(task.options()).options.timeout_ns {
            self.set_timer(key, now.saturating_add(timeout_ns));
        }
    }

    /// Gives a task that was interrupted while others ran on top of it the full grace period, once it is on top again.
    pub(super) fn time_uncovered(&mut self, now: Nanos, engine: EngineId) {
        if let Some(key) = self.engines[engine.0 as usize].offers().uncovered() {
            self.limit_end(now, key);
        }
    }

    /// A task that was interrupted because it is to be stopped has the grace period to end.
    pub(super) fn limit_end(&mut self, now: Nanos, key: TaskKey) {
        if self.tasks.at(key).stopping().is_forced() {
            self.set_timer(key, now.saturating_add(self.config.interrupt_grace_ns));
        }
    }
}
