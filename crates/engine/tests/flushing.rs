//! Random sequences of tasks under a clock of the test's own: however long they take, whatever they print, and whatever an
//! engine expects of them, nothing that it has queued waits longer than it may, and the flusher sleeps once nothing is.

#![cfg(not(loom))]

use broadleaf_engine::{Batching, Before, Flushing, Turn};
use proptest::prelude::*;

const US: u64 = 1000;
const MS: u64 = 1000 * US;
const DELAY_NS: u64 = 200 * US;
/// The longest that a reply may wait for a task that was expected to be short.
const GUARD_NS: u64 = 10 * MS;
/// The word has times of this precision.
const EXACT_NS: u64 = 8;
const MAX_BYTES: usize = 100;

#[derive(Clone, Debug)]
struct Task {
    is_expected_short: bool,
    duration_ns: u64,
    /// When it prints, in parts of a hundred of its duration.
    prints: Vec<u64>,
    /// What the engine waits for after it, if it has to wait.
    idle_ns: Option<u64>,
    bytes: usize,
    /// As it begins the socket is full, and the node reads again after this time.
    blocked_ns: Option<u64>,
}

fn duration_ns() -> impl Strategy<Value = u64> {
    prop_oneof![
        6 => 1..40 * US,
        2 => 40 * US..400 * US,
        1 => MS..40 * MS,
    ]
}

fn task() -> impl Strategy<Value = Task> {
    (
        any::<bool>(),
        duration_ns(),
        proptest::collection::vec(0..100_u64, 0..3),
        proptest::option::weighted(0.2, duration_ns()),
        1..40_usize,
        proptest::option::weighted(0.1, duration_ns()),
    )
        .prop_map(
            |(is_expected_short, duration_ns, mut prints, idle_ns, bytes, blocked_ns)| {
                prints.sort_unstable();
                Task {
                    is_expected_short,
                    duration_ns,
                    prints,
                    idle_ns,
                    bytes,
                    blocked_ns,
                }
            },
        )
}

/// What the flusher does.
#[derive(Clone, Copy, Debug)]
enum Flusher {
    Asks,
    Sleeps,
    /// Until then, unless it is woken.
    Pauses {
        until_ns: u64,
        turn: Turn,
    },
}

struct Engine {
    now_ns: u64,
    flushing: Flushing,
    flusher: Flusher,
    /// The time of what is queued, its length, and whether a task printed it.
    queued: Vec<(u64, usize, bool)>,
    /// The socket takes nothing until then.
    blocked_until_ns: u64,
    n_turns: u64,
    n_sent: usize,
}

impl Engine {
    fn new() -> Self {
        Self {
            now_ns: MS,
            flushing: Flushing::new(Batching {
                delay_ns: DELAY_NS,
                max_bytes: MAX_BYTES,
            }),
            flusher: Flusher::Asks,
            queued: Vec::new(),
            blocked_until_ns: 0,
            n_turns: 0,
            n_sent: 0,
        }
    }

    /// Returns whether the socket took all.
    fn flush(&mut self) -> bool {
        if self.now_ns < self.blocked_until_ns && !self.queued.is_empty() {
            self.flushing.on_flushed(Some(self.now_ns));
            return false;
        }
        self.n_sent += self.queued.len();
        self.queued.clear();
        self.flushing.on_flushed(None);
        true
    }

    fn queued_bytes(&self) -> usize {
        self.queued.iter().map(|(_, bytes, _)| bytes).sum()
    }

    fn wake(&mut self) {
        self.flusher = Flusher::Asks;
    }

    /// User code, or the engine's sleep: the flusher does what is due in between.
    fn pass(&mut self, until_ns: u64) {
        loop {
            match self.flusher {
                Flusher::Asks => {
                    self.n_turns += 1;
                    self.flusher = match self.flushing.turn(self.now_ns) {
                        Turn::Sleep => Flusher::Sleeps,
                        turn @ (Turn::Trim(ns) | Turn::Check(ns)) => Flusher::Pauses {
                            until_ns: self.now_ns + ns,
                            turn,
                        },
                    };
                }
                Flusher::Pauses { until_ns: at, turn } if at <= until_ns => {
                    self.now_ns = at;
                    if matches!(turn, Turn::Trim(_)) || self.flushing.is_due(at) {
                        let _ = self.flush();
                    }
                    self.flushing.on_done();
                    self.flusher = Flusher::Asks;
                }
                Flusher::Sleeps | Flusher::Pauses { .. } => break,
            }
            self.check();
        }
        self.now_ns = until_ns;
        self.check();
    }

    fn check(&self) {
        for (since_ns, _, is_output) in &self.queued {
            let longest_ns = if *is_output {
                DELAY_NS
            } else {
                DELAY_NS + GUARD_NS
            };
            let since_ns = self.blocked_until_ns.max(*since_ns);
            let age_ns = self.now_ns.saturating_sub(since_ns);
            // What the socket did not take is tried again after the same time.
            let again_ns = if self.blocked_until_ns == since_ns {
                GUARD_NS
            } else {
                0
            };
            assert!(
                age_ns <= longest_ns + again_ns + EXACT_NS,
                "something waits for {age_ns} ns while {:?}",
                self.flusher
            );
        }
    }

    fn run(&mut self, task: &Task) {
        if let Some(blocked_ns) = task.blocked_ns {
            self.blocked_until_ns = self.now_ns + blocked_ns;
        }
        match self.flushing.before_user_code(task.is_expected_short) {
            Before::Nothing => {}
            Before::Send => {
                if !self.flush() && self.flushing.on_rest() {
                    self.wake();
                }
            }
            Before::WakeFlusher => self.wake(),
        }
        let (began_ns, ends_ns) = (self.now_ns, self.now_ns + task.duration_ns);
        for part in &task.prints {
            self.pass(began_ns + task.duration_ns * part / 100);
            self.queued.push((self.now_ns, 1, true));
            if self.flushing.on_output(|| self.now_ns) {
                self.wake();
            }
        }
        self.pass(ends_ns);
        self.queued.push((ends_ns, task.bytes, false));
        if (self.flushing).on_reply(self.queued_bytes(), task.duration_ns, ends_ns) {
            let _ = self.flush();
        }
        let is_blocked = self.now_ns < self.blocked_until_ns;
        assert!(
            is_blocked || self.queued_bytes() < MAX_BYTES,
            "a full batch is sent"
        );
        if let Some(idle_ns) = task.idle_ns {
            // It waits for the socket, too.
            self.now_ns = self.now_ns.max(self.blocked_until_ns);
            let _ = self.flush();
            self.pass(self.now_ns + idle_ns);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn nothing_waits_longer_than_it_may(tasks in proptest::collection::vec(task(), 1..60)) {
        let mut engine = Engine::new();
        for task in &tasks {
            engine.run(task);
        }
        engine.now_ns = engine.now_ns.max(engine.blocked_until_ns);
        engine.flush();
        let n_queued: usize = tasks.iter().map(|task| 1 + task.prints.len()).sum();
        prop_assert_eq!(engine.n_sent, n_queued);
        let far_ns = engine.now_ns + 1000 * MS;
        engine.pass(engine.now_ns + 2 * GUARD_NS);
        let n_turns = engine.n_turns;
        engine.pass(far_ns);
        prop_assert_eq!(engine.n_turns, n_turns, "it wakes up for nothing");
    }

    /// A thread that wakes up takes the time of a dozen empty tasks.
    #[test]
    fn short_tasks_do_not_wake_the_flusher(n_tasks in 1..2000_u64, duration_ns in 1..10 * US) {
        let mut engine = Engine::new();
        let task = Task { is_expected_short: true, duration_ns, prints: Vec::new(), idle_ns: None, bytes: 1, blocked_ns: None };
        for _ in 0..n_tasks {
            engine.run(&task);
        }
        prop_assert!(engine.n_turns <= 2 + 2 * (n_tasks * duration_ns / GUARD_NS + 1));
    }
}
