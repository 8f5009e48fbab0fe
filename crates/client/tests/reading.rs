//! Every interleaving of threads that share a link: whatever arrives is read, whoever waits is told, and nobody sleeps
//! for ever beside a socket that can be read.
//!
//! Each thread is the driver's program, one step a lock, system call or notification. From every state that can be
//! reached there must be a way to the end.

use std::collections::{BTreeMap, BTreeSet};

use broadleaf_client::{Background, Looks, Reading, Role};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Wants {
    /// That many messages have been read.
    Messages(u8),
    /// What another thread changes.
    Change,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Waiter {
    Begins,
    Checks(Role),
    /// The reader polls the socket and its bell.
    Polls,
    FallsAsleep(u64),
    Sleeps {
        told: bool,
    },
    Reads,
    Ends(Role),
    Tells,
    ChecksAgain,
    LooksAtBackground,
    Stops,
    Wakes,
    Finished,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Back {
    Begins,
    /// What it polls was decided before.
    Sleeps {
        watches: bool,
        timer: bool,
    },
    Turns {
        woken: bool,
        readable: bool,
    },
    TriesToRead,
    Reads,
    Ends,
    Tells,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Changer {
    Changes,
    TellsNews,
    Rings,
    Tells,
    Finished,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct State {
    reading: Reading,
    to_arrive: u8,
    in_socket: u8,
    read: u8,
    changed: bool,
    bell: bool,
    wake: bool,
    waiters: Vec<(Wants, Waiter)>,
    back: Back,
    changer: Changer,
}

struct World {
    /// A callback waits for the messages.
    has_callbacks: bool,
    /// The background thread's timer goes off.
    timer: bool,
}

impl State {
    fn new(wants: &[Wants], n_messages: u8) -> Self {
        let has_change = wants.contains(&Wants::Change);
        Self {
            reading: Reading::default(),
            to_arrive: n_messages,
            in_socket: 0,
            read: 0,
            changed: false,
            bell: false,
            wake: false,
            waiters: wants.iter().map(|wants| (*wants, Waiter::Begins)).collect(),
            back: Back::Begins,
            changer: if has_change {
                Changer::Changes
            } else {
                Changer::Finished
            },
        }
    }

    fn is_end(&self) -> bool {
        let finished = |(_, waiter): &(Wants, Waiter)| *waiter == Waiter::Finished;
        self.waiters.iter().all(finished) && self.to_arrive == 0 && self.in_socket == 0
    }

    fn is_done(&self, wants: Wants) -> bool {
        match wants {
            Wants::Messages(n) => self.read >= n,
            Wants::Change => self.changed,
        }
    }

    fn read_all(&mut self) {
        self.read += std::mem::take(&mut self.in_socket);
    }

    fn tell(&mut self) {
        for (_, waiter) in &mut self.waiters {
            if let Waiter::Sleeps { told } = waiter {
                *told = true;
            }
        }
    }

    /// A waiting thread's next step; `None` if it sleeps.
    fn step_waiter(&self, index: usize, world: &World) -> Option<Self> {
        let mut next = self.clone();
        let (wants, waiter) = self.waiters[index];
        let is_done = self.is_done(wants);
        next.waiters[index].1 = match waiter {
            Waiter::Begins => Waiter::Checks(next.reading.begin(Looks::Never)),
            Waiter::Checks(role) if is_done => Waiter::Ends(role),
            Waiter::Checks(Role::Reader) => Waiter::Polls,
            Waiter::Checks(Role::Follower(news)) => Waiter::FallsAsleep(news),
            Waiter::Polls if self.in_socket > 0 => {
                next.bell = false;
                Waiter::Reads
            }
            Waiter::Polls if self.bell => {
                next.bell = false;
                Waiter::Ends(Role::Reader)
            }
            Waiter::FallsAsleep(news) if self.reading.is_unchanged(news) => {
                Waiter::Sleeps { told: false }
            }
            Waiter::FallsAsleep(news) => Waiter::Ends(Role::Follower(news)),
            Waiter::Sleeps { told: true } => Waiter::Ends(Role::Follower(0)),
            Waiter::Polls | Waiter::Sleeps { told: false } | Waiter::Finished => return None,
            Waiter::Reads => {
                next.read_all();
                Waiter::Ends(Role::Reader)
            }
            Waiter::Ends(role) => {
                if next.reading.end(role, Looks::Never) {
                    Waiter::Tells
                } else {
                    Waiter::ChecksAgain
                }
            }
            Waiter::Tells => Waiter::ChecksAgain,
            Waiter::ChecksAgain if is_done => Waiter::LooksAtBackground,
            Waiter::ChecksAgain => Waiter::Begins,
            Waiter::LooksAtBackground => match self.reading.background() {
                Background::Watches => Waiter::Finished,
                Background::Looks | Background::Sleeps => Waiter::Stops,
            },
            Waiter::Stops => {
                if next.reading.stop(world.has_callbacks) {
                    Waiter::Wakes
                } else {
                    Waiter::Finished
                }
            }
            Waiter::Wakes => {
                next.wake = true;
                Waiter::Finished
            }
        };
        if waiter == Waiter::Tells {
            next.tell();
        }
        Some(next)
    }

    fn step_back(&self, world: &World) -> Option<Self> {
        let mut next = self.clone();
        next.back = match self.back {
            Back::Begins => Back::Sleeps {
                watches: self.reading.background() == Background::Watches,
                timer: world.timer && self.reading.background_sleep_ns(None).is_some(),
            },
            Back::Sleeps { watches, timer } => {
                let readable = watches && self.in_socket > 0;
                if !readable && !self.wake && !timer {
                    return None;
                }
                let woken = std::mem::take(&mut next.wake);
                Back::Turns { woken, readable }
            }
            Back::Turns { woken, readable } => {
                let does = next.reading.background_turn(woken);
                if does == Background::Watches && readable {
                    Back::TriesToRead
                } else {
                    Back::Begins
                }
            }
            Back::TriesToRead if next.reading.try_read() => Back::Reads,
            Back::Reads => {
                next.read_all();
                Back::Ends
            }
            Back::Ends if next.reading.end_read() => Back::Tells,
            Back::TriesToRead | Back::Ends => Back::Begins,
            Back::Tells => {
                next.tell();
                Back::Begins
            }
        };
        Some(next)
    }

    fn step_changer(&self) -> Option<Self> {
        let mut next = self.clone();
        next.changer = match self.changer {
            Changer::Changes => {
                next.changed = true;
                Changer::TellsNews
            }
            Changer::TellsNews => {
                next.reading.on_changed();
                Changer::Rings
            }
            Changer::Rings => {
                next.bell = true;
                Changer::Tells
            }
            Changer::Tells => {
                next.tell();
                Changer::Finished
            }
            Changer::Finished => return None,
        };
        Some(next)
    }

    fn arrive(&self) -> Option<Self> {
        let mut next = self.clone();
        next.to_arrive = self.to_arrive.checked_sub(1)?;
        next.in_socket += 1;
        Some(next)
    }

    fn successors(&self, world: &World) -> Vec<Self> {
        let waiters = (0..self.waiters.len()).filter_map(|index| self.step_waiter(index, world));
        let others = [self.step_back(world), self.step_changer(), self.arrive()];
        waiters.chain(others.into_iter().flatten()).collect()
    }
}

/// Goes through all states; returns how many there are.
///
/// # Panics
/// If from one of them there is no way to the end, or two threads read at once.
fn explore(wants: &[Wants], n_messages: u8, world: &World) -> usize {
    let start = State::new(wants, n_messages);
    let mut numbers = BTreeMap::from([(start.clone(), 0)]);
    let mut states = vec![start];
    let mut before: Vec<Vec<usize>> = vec![Vec::new()];
    let mut at = 0;
    while at < states.len() {
        let state = states[at].clone();
        let reads = |w: &Waiter| {
            matches!(
                w,
                Waiter::Polls
                    | Waiter::Reads
                    | Waiter::Checks(Role::Reader)
                    | Waiter::Ends(Role::Reader)
            )
        };
        let n_readers = state.waiters.iter().filter(|(_, w)| reads(w)).count()
            + usize::from(matches!(state.back, Back::Reads | Back::Ends));
        assert!(n_readers <= 1, "two threads read: {state:?}");
        for next in state.successors(world) {
            let new = states.len();
            let number = *numbers.entry(next.clone()).or_insert(new);
            if number == new {
                states.push(next);
                before.push(Vec::new());
            }
            before[number].push(at);
        }
        at += 1;
    }
    let ends = (0..states.len()).filter(|number| states[*number].is_end());
    let mut open: Vec<usize> = ends.collect();
    let mut good: BTreeSet<usize> = open.iter().copied().collect();
    while let Some(number) = open.pop() {
        for earlier in &before[number] {
            if good.insert(*earlier) {
                open.push(*earlier);
            }
        }
    }
    let stuck = (0..states.len()).find(|number| !good.contains(number));
    assert!(
        stuck.is_none(),
        "no way to the end: {:?}",
        stuck.map(|n| &states[n])
    );
    states.len()
}

const FIRST: Wants = Wants::Messages(1);
const SECOND: Wants = Wants::Messages(2);

/// Nobody's wake-up depends on a timer while a callback may be due.
const CALLBACKS: World = World {
    has_callbacks: true,
    timer: false,
};
/// Without callbacks nobody needs the background thread before it looks.
const TIMER: World = World {
    has_callbacks: false,
    timer: true,
};

#[test]
fn those_who_wait_for_messages_are_told() {
    for world in [CALLBACKS, TIMER] {
        assert!(explore(&[FIRST], 2, &world) > 100);
        assert!(explore(&[FIRST, SECOND], 2, &world) > 1000);
        assert!(explore(&[FIRST, FIRST, SECOND], 2, &world) > 10_000);
    }
}

#[test]
fn those_who_wait_for_something_else_are_told() {
    for world in [CALLBACKS, TIMER] {
        assert!(explore(&[Wants::Change], 1, &world) > 100);
        assert!(explore(&[FIRST, Wants::Change], 2, &world) > 1000);
    }
}
