//! What happens when. Entries are removed when they no longer apply, so the set is no larger than the number of tasks
//! and engines that have a timer.

use std::collections::BTreeSet;

use broadleaf_proto::ids::{EngineId, HostId, TaskKey};

use crate::Nanos;

/// What to do when it is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Timer {
    /// The task's next step: its dependency timeout while it waits, or else its timeout, then a kill.
    Task(TaskKey),
    /// The next step of the engine's life, depending on its state.
    Engine(EngineId),
    /// The host's time is nearly over.
    Host(HostId),
    /// The fork server's time to exit is over.
    Shutdown,
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub(crate) struct Timers {
    set: BTreeSet<(Nanos, Timer)>,
    /// When to look again at tasks that wait although an engine is idle: they are short, or too short to be worth moving.
    look_again_at: Option<Nanos>,
}

impl Timers {
    pub fn set(&mut self, at: Nanos, timer: Timer) {
        self.set.insert((at, timer));
    }
    pub fn cancel(&mut self, at: Nanos, timer: Timer) {
        self.set.remove(&(at, timer));
    }
    /// When the next thing is due.
    pub fn next(&self) -> Option<Nanos> {
        let first = self.set.first().map(|(at, _)| *at);
        first.into_iter().chain(self.look_again_at).min()
    }
    pub fn pop_due(&mut self, now: Nanos) -> Option<Timer> {
        let (at, _) = self.set.first()?;
        if *at > now {
            return None;
        }
        self.set.pop_first().map(|(_, timer)| timer)
    }
    /// Somebody could do something for waiting tasks at that time.
    pub fn look_again(&mut self, at: Option<Nanos>) {
        self.look_again_at = self.look_again_at.into_iter().chain(at).min();
    }
    /// Somebody has looked, or looks now if that is due: it is not due any more.
    pub fn end_look(&mut self, until: Nanos) {
        self.look_again_at = self.look_again_at.filter(|at| *at > until);
    }
    /// When somebody looks again at waiting tasks.
    pub fn look_again_at(&self) -> Option<Nanos> {
        self.look_again_at
    }
    pub fn contains(&self, at: Nanos, timer: Timer) -> bool {
        self.set.contains(&(at, timer))
    }
    pub fn len(&self) -> usize {
        self.set.len()
    }
}
