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
pub(crate) struct Timers(BTreeSet<(Nanos, Timer)>);

impl Timers {
    pub fn set(&mut self, at: Nanos, timer: Timer) {
        self.0.insert((at, timer));
    }
    pub fn cancel(&mut self, at: Nanos, timer: Timer) {
        self.0.remove(&(at, timer));
    }
    pub fn next(&self) -> Option<Nanos> {
        self.0.first().map(|(at, _)| *at)
    }
    pub fn pop_due(&mut self, now: Nanos) -> Option<Timer> {
        if self.next()? > now {
            return None;
        }
        self.0.pop_first().map(|(_, timer)| timer)
    }
    pub fn contains(&self, at: Nanos, timer: Timer) -> bool {
        self.0.contains(&(at, timer))
    }
    pub fn len(&self) -> usize {
        self.0.len()
    }
}
