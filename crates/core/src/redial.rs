//! When a relay, or a client, dials again.
//!
//! A pure machine. It begins when the connection broke or the other side has been silent for a while, and ends when
//! the link goes on, over a new connection or the old one. There is one attempt at a time, after growing pauses. How long it
//! goes on is [`crate::liveness`]'s to say, with one exception: where nobody listens, there is nobody to wait for.

use crate::Nanos;

/// The first pause before an attempt, and the longest.
const PAUSE_NS: (Nanos, Nanos) = (50_000_000, 100_000_000);
/// A network that answers at all opens a connection within this time, or within [`PATIENCE`] times as long as it took the
/// first time. No longer: an attempt that was made while the network was cut would not notice that it is back.
const CONNECT_NS: Nanos = 250_000_000;
const PATIENCE: Nanos = 4;

/// What became of an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attempt {
    /// There was no answer, or the connection broke.
    Failed,
    /// The other side's system answered that nobody listens there.
    NobodyListens,
}

/// See the module.
#[derive(Clone, Debug)]
pub struct Redial {
    connect_ns: Nanos,
    /// How long nobody may listen.
    vacant_ns: Nanos,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// The link has a connection that speaks.
    Rests,
    /// The next attempt begins then.
    Pauses {
        until: Nanos,
        pause_ns: Nanos,
        vacant_since: Option<Nanos>,
    },
    /// An attempt is being made; it is the last one if the link spoke meanwhile.
    Dials {
        pause_ns: Nanos,
        vacant_since: Option<Nanos>,
        is_last: bool,
    },
}

impl Redial {
    /// `connect_ns` is how long the first connection took to open; `vacant_ns` how long nobody may listen.
    pub fn new(connect_ns: Nanos, vacant_ns: Nanos) -> Self {
        Self {
            connect_ns: connect_ns.saturating_mul(PATIENCE).max(CONNECT_NS),
            vacant_ns,
            state: State::Rests,
        }
    }

    /// How long an attempt may take to open a connection.
    pub fn connect_ns(&self) -> Nanos {
        self.connect_ns
    }

    /// The connection broke, or the other side is silent.
    pub fn begin(&mut self, now: Nanos) {
        match &mut self.state {
            State::Rests => {
                let (pause_ns, _) = PAUSE_NS;
                self.state = State::Pauses {
                    until: now + pause_ns,
                    pause_ns,
                    vacant_since: None,
                };
            }
            State::Dials { is_last, .. } => *is_last = false,
            State::Pauses { .. } => {}
        }
    }

    /// The link speaks again. An attempt that is being made ends by itself.
    pub fn on_heard(&mut self) {
        match &mut self.state {
            State::Pauses { .. } => self.state = State::Rests,
            State::Dials { is_last, .. } => *is_last = true,
            State::Rests => {}
        }
    }

    /// The link goes on over the connection of the attempt.
    pub fn on_resumed(&mut self) {
        self.state = State::Rests;
    }

    /// When [`Self::on_tick`] must be called.
    pub fn next_tick(&self) -> Option<Nanos> {
        match self.state {
            State::Pauses { until, .. } => Some(until),
            State::Rests | State::Dials { .. } => None,
        }
    }

    /// Whether an attempt is to be made now.
    pub fn on_tick(&mut self, now: Nanos) -> bool {
        match self.state {
            State::Pauses {
                until,
                pause_ns,
                vacant_since,
            } if until <= now => {
                self.state = State::Dials {
                    pause_ns,
                    vacant_since,
                    is_last: false,
                };
                true
            }
            _ => false,
        }
    }

    /// An attempt did not succeed. Returns whether there is no point in another one.
    pub fn on_attempt(&mut self, now: Nanos, attempt: Attempt) -> bool {
        let State::Dials {
            pause_ns,
            vacant_since,
            is_last,
        } = self.state
        else {
            return false;
        };
        if is_last {
            self.state = State::Rests;
            return false;
        }
        let vacant_since = match attempt {
            Attempt::Failed => None,
            Attempt::NobodyListens => vacant_since.or(Some(now)),
        };
        let pause_ns = pause_ns.saturating_mul(2).min(PAUSE_NS.1);
        self.state = State::Pauses {
            until: now + pause_ns,
            pause_ns,
            vacant_since,
        };
        vacant_since.is_some_and(|since| now - since >= self.vacant_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: Nanos = 1_000_000_000;

    /// Lets attempts fail at once; returns when each was made, and when it gave up.
    fn attempts(
        mut machine: Redial,
        until: Nanos,
        outcome: impl Fn(Nanos) -> Attempt,
    ) -> (Vec<Nanos>, Option<Nanos>) {
        machine.begin(0);
        let mut made = Vec::new();
        while let Some(at) = machine.next_tick().filter(|at| *at <= until) {
            assert!(machine.on_tick(at));
            made.push(at);
            if machine.on_attempt(at, outcome(at)) {
                return (made, Some(at));
            }
        }
        (made, None)
    }

    #[test]
    fn pauses_grow_and_there_is_never_a_long_one() {
        let (made, gave_up) = attempts(Redial::new(0, 2 * S), 60 * S, |_| Attempt::Failed);
        assert_eq!(
            made[..4],
            [
                S / 20,
                S / 20 + S / 10,
                S / 20 + 2 * S / 10,
                S / 20 + 3 * S / 10
            ]
        );
        assert!(made.windows(2).all(|w| w[1] - w[0] <= S / 10));
        assert_eq!(gave_up, None);
    }

    #[test]
    fn it_gives_up_only_where_nobody_listens_for_a_while() {
        let (_, gave_up) = attempts(Redial::new(0, 2 * S), 60 * S, |_| Attempt::NobodyListens);
        assert!(gave_up.is_some_and(|at| (2 * S..3 * S).contains(&at)));
        let cut_between = |at: Nanos| {
            if (at / S).is_multiple_of(2) {
                Attempt::NobodyListens
            } else {
                Attempt::Failed
            }
        };
        let (_, gave_up) = attempts(Redial::new(0, 2 * S), 60 * S, cut_between);
        assert_eq!(gave_up, None);
    }

    #[test]
    fn it_rests_once_the_link_speaks_but_not_while_an_attempt_is_made() {
        let mut machine = Redial::new(S, 2 * S);
        assert_eq!(machine.connect_ns(), 4 * S);
        machine.begin(0);
        machine.on_heard();
        assert_eq!(machine.next_tick(), None);
        machine.begin(S);
        assert!(machine.on_tick(2 * S));
        machine.on_heard();
        machine.begin(2 * S);
        assert_eq!(machine.next_tick(), None, "one attempt at a time");
        machine.on_heard();
        assert!(!machine.on_attempt(3 * S, Attempt::Failed));
        assert_eq!(machine.next_tick(), None, "the link spoke meanwhile");
        machine.begin(3 * S);
        assert!(machine.on_tick(4 * S));
        machine.on_resumed();
        machine.begin(3 * S);
        assert!(machine.next_tick().is_some());
    }
}
