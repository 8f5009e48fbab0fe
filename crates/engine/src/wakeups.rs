//! A SIGINT that somebody sent to the engine's process, and that its main thread has not acted on: the thread is woken
//! again and again, by the rule of [`Interrupts`].

use broadleaf_core::interrupts::Interrupts;
use broadleaf_proto::EngineId;

use crate::Nanos;

/// This engine and what it runs, to a machine that knows those of a host.
const THIS: (EngineId, u32) = (EngineId(0), 0);

/// See the module.
#[derive(Clone, Debug, Default)]
pub struct Wakeups {
    unheeded: Interrupts,
}

impl Wakeups {
    /// A SIGINT came. It counts from now on, instead of an earlier one.
    pub fn on_signal(&mut self, now: Nanos) {
        self.unheeded = Interrupts::default();
        self.unheeded.on_sent(now, THIS.0, THIS.1);
    }

    /// When [`Self::on_due`] must be called.
    pub fn next_due(&self) -> Option<Nanos> {
        self.unheeded.next_due()
    }

    /// Returns whether to wake the main thread. It is asked whether it has acted, if that is still of interest.
    pub fn on_due(&mut self, now: Nanos, has_acted: impl Fn() -> bool) -> bool {
        let mut again = Vec::new();
        (self.unheeded).on_due(now, |_, _| !has_acted(), &mut again);
        !again.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MS;

    /// The times at which the main thread is woken.
    fn times(machine: &mut Wakeups, acts_at: Nanos) -> Vec<Nanos> {
        let mut times = Vec::new();
        while let Some(at) = machine.next_due() {
            if machine.on_due(at, || at >= acts_at) {
                times.push(at / MS);
            }
        }
        times
    }

    #[test]
    fn the_main_thread_is_woken_until_it_acts() {
        let mut machine = Wakeups::default();
        machine.on_signal(0);
        assert_eq!(times(&mut machine, 100 * MS), [10, 30, 70]);
        assert_eq!(machine.next_due(), None, "and then nothing more is due");
    }

    #[test]
    fn a_handler_that_does_not_say_so_is_left_alone_after_ten_seconds() {
        let mut machine = Wakeups::default();
        machine.on_signal(0);
        let woken = times(&mut machine, Nanos::MAX);
        assert_eq!((woken.len(), woken.last()), (10, Some(&10_230)));
    }

    #[test]
    fn another_signal_counts_from_its_own_time() {
        let mut machine = Wakeups::default();
        machine.on_signal(0);
        assert!(machine.on_due(10 * MS, || false));
        machine.on_signal(15 * MS);
        assert!(!machine.on_due(20 * MS, || false), "nothing is due");
        assert_eq!(times(&mut machine, 100 * MS), [25, 45, 85]);
    }
}
