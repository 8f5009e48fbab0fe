//! Interrupts that were sent and that the task has not acted on: of a host's engines, wherever it is.
//!
//! Python notes a signal and acts on it between two bytecode instructions. A signal that arrives just before a blocking
//! call takes effect only after that call. So it is sent again, at doubling intervals, until the task acts on it or
//! ends.

use broadleaf_proto::ids::EngineId;

use crate::Nanos;

/// Delay before a signal is first sent again.
const FIRST_AGAIN_NS: Nanos = 10_000_000;
/// Number of times that a signal is sent again: up to 10 s after the first. A task that has not reacted by then ignores
/// interrupts.
const MAX_REPEATS: u32 = 10;

#[derive(Clone, Debug)]
struct Sent {
    engine: EngineId,
    offer: u32,
    again_at: Nanos,
    times: u32,
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub struct Interrupts {
    sent: Vec<Sent>,
}

impl Interrupts {
    /// A signal is sent for an offer that is running.
    pub fn on_sent(&mut self, now: Nanos, engine: EngineId, offer: u32) {
        let mut known = self.sent.iter();
        if !known.any(|s| s.engine == engine && s.offer == offer) {
            self.sent.push(Sent {
                engine,
                offer,
                again_at: now + FIRST_AGAIN_NS,
                times: 0,
            });
        }
    }

    /// When [`Self::on_due`] must be called.
    pub fn next_due(&self) -> Option<Nanos> {
        self.sent.iter().map(|s| s.again_at).min()
    }

    /// Finds the engines to signal again. `is_open` says what an engine's board says: that the offer still runs and has
    /// not acted on its interrupt.
    pub fn on_due(
        &mut self,
        now: Nanos,
        is_open: impl Fn(EngineId, u32) -> bool,
        out: &mut Vec<EngineId>,
    ) {
        self.sent.retain_mut(|s| {
            if s.again_at > now {
                return true;
            }
            s.times += 1;
            s.again_at = now + (FIRST_AGAIN_NS << s.times);
            let goes_on = s.times <= MAX_REPEATS && is_open(s.engine, s.offer);
            if goes_on {
                out.push(s.engine);
            }
            goes_on
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Nanos = 1_000_000;
    const ENGINE: EngineId = EngineId(3);

    /// The times at which a signal is sent again.
    fn times(machine: &mut Interrupts, is_open: impl Fn(u32, Nanos) -> bool) -> Vec<Nanos> {
        let mut times = Vec::new();
        while let Some(at) = machine.next_due() {
            let mut out = Vec::new();
            machine.on_due(at, |_, offer| is_open(offer, at), &mut out);
            times.extend(out.iter().map(|_| at / MS));
        }
        times
    }

    #[test]
    fn a_signal_is_repeated_at_doubling_intervals_until_the_task_acts() {
        let mut machine = Interrupts::default();
        machine.on_sent(0, ENGINE, 7);
        machine.on_sent(5 * MS, ENGINE, 7);
        let sent = times(&mut machine, |_, at| at < 100 * MS);
        assert_eq!(sent, [10, 30, 70]);
    }

    #[test]
    fn a_task_that_ignores_interrupts_is_left_alone_after_ten_seconds() {
        let mut machine = Interrupts::default();
        machine.on_sent(0, ENGINE, 7);
        let sent = times(&mut machine, |_, _| true);
        assert_eq!((sent.len(), sent.last()), (10, Some(&10_230)));
    }
}
