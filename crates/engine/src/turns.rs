//! Once nothing is left to run: where the engine looks for more, and how long it sleeps.

use crate::{MS, Nanos, TRIM_NS};

/// Idle time after which dropped ranges are unmapped: the other engines of a broadcast run first.
const UNMAP_AFTER_NS: Nanos = 10 * MS;

/// What ended a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrived {
    /// There may be frames in the socket.
    Frames,
    /// There is something on the lane alone.
    Bell,
}

/// Where the engine looks before it sleeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    /// Nowhere.
    Nowhere,
    /// Into the socket and the lane.
    Everywhere,
    /// At the lane.
    Lane,
}

/// See the module.
#[derive(Clone, Debug)]
pub struct Turns {
    /// Number of tasks since the engine last looked for more.
    n_run: u32,
    /// What there was when it last slept. The bell is heard once, so it is looked for whatever ran in between.
    arrived: Option<Arrived>,
}

impl Default for Turns {
    fn default() -> Self {
        Self {
            n_run: 0,
            arrived: Some(Arrived::Frames),
        }
    }
}

impl Turns {
    /// A task begins.
    #[inline]
    pub fn on_run(&mut self) {
        self.n_run = self.n_run.saturating_add(1);
    }

    /// Nothing is left to run, and replies were sent. If tasks are on their way, there is already something to read, and
    /// nothing to wait for. But an engine that was sent a single task most likely gets the next one for its reply.
    #[inline]
    pub fn look(&mut self) -> Look {
        match (std::mem::take(&mut self.n_run), self.arrived.take()) {
            (1, None) => Look::Nowhere,
            (_, Some(Arrived::Bell)) => Look::Lane,
            (_, Some(Arrived::Frames) | None) => Look::Everywhere,
        }
    }

    /// The engine has slept: until there was something, or for as long as it may.
    #[inline]
    pub fn on_slept(&mut self, arrived: Option<Arrived>) {
        self.arrived = arrived;
    }
}

/// How long the engine sleeps if nothing comes; `None` is for ever.
#[inline]
pub fn longest_sleep_ns(has_retired: bool, needs_trim: bool) -> Option<Nanos> {
    if has_retired {
        Some(UNMAP_AFTER_NS)
    } else {
        needs_trim.then_some(TRIM_NS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn after_a_single_task_the_engine_waits_for_the_next() {
        let mut turns = Turns::default();
        assert_eq!(turns.look(), Look::Everywhere);
        turns.on_run();
        assert_eq!(turns.look(), Look::Nowhere);
        assert_eq!(turns.look(), Look::Everywhere);
        turns.on_run();
        turns.on_run();
        assert_eq!(turns.look(), Look::Everywhere);
    }

    #[test]
    fn what_has_rung_is_on_the_lane() {
        let mut turns = Turns::default();
        turns.on_slept(Some(Arrived::Bell));
        assert_eq!(turns.look(), Look::Lane);
        assert_eq!(turns.look(), Look::Everywhere, "only that one time");
    }

    #[test]
    fn what_has_rung_is_looked_for_whatever_ran_in_between() {
        let mut turns = Turns::default();
        turns.on_slept(Some(Arrived::Bell));
        turns.on_run();
        assert_eq!(turns.look(), Look::Lane);
        turns.on_slept(Some(Arrived::Frames));
        turns.on_run();
        assert_eq!(turns.look(), Look::Everywhere);
        turns.on_slept(None);
        turns.on_run();
        assert_eq!(turns.look(), Look::Nowhere);
    }

    #[test]
    fn an_engine_sleeps_for_ever_if_nothing_is_to_be_released() {
        assert_eq!(longest_sleep_ns(false, false), None);
        assert_eq!(longest_sleep_ns(false, true), Some(TRIM_NS));
        assert_eq!(longest_sleep_ns(true, true), Some(UNMAP_AFTER_NS));
    }
}
