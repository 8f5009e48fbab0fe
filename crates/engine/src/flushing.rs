//! When replies and output leave an engine: those of tiny tasks together, and nothing waits for user code for long.
//!
//! Two threads act on this: the main one, which runs user code between its calls, and the flusher, which sends what user
//! code would hold back and sleeps as long as nobody needs it. All that they share is one word, so each sees every change
//! that the other made before it: either what is queued finds the flusher awake, or the flusher finds it queued. What the
//! word says is only true of what is queued if it is changed by whoever writes to the link, under the link's lock
//! ([`Flushing::on_flushed`]), and after something was queued (all others).

#[cfg(loom)]
use loom::sync::atomic::{AtomicU64, Ordering};
#[cfg(not(loom))]
use std::sync::atomic::{AtomicU64, Ordering};

use crate::{MS, Nanos, TRIM_NS};

/// How long a reply waits behind a task that was expected to be short and is not.
const GUARD_NS: Nanos = 10 * MS;

/// Number of queued bytes above which code that writes output waits.
const MAX_QUEUED_BYTES: usize = 4 * 1024 * 1024;

/// What the flusher is needed for, in the order of urgency: the two lowest bits of the word.
const NEED: u64 = 0b011;
/// For nothing: it sleeps until somebody needs it.
const ASLEEP: u64 = 0;
/// Free memory ages, and the main thread may run user code for a long time.
const TRIM: u64 = 1;
/// A task that is expected to be short runs, and replies are queued.
const GUARD: u64 = 2;
/// Something is queued that must be sent within the batching delay, while user code runs.
const PROMPT: u64 = 3;
/// A running task wrote some of what is queued.
const HAS_OUTPUT: u64 = 0b100;
/// The rest is the time of the oldest of what is queued; 0 if nothing is.
const SINCE: u64 = !0b111;

/// How replies are batched.
#[derive(Clone, Copy, Debug)]
pub struct Batching {
    /// Longest time that a reply waits for others.
    pub delay_ns: Nanos,
    /// Number of queued bytes that are not held back.
    pub max_bytes: usize,
}

/// What to do with what is queued before user code runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Before {
    /// Nothing.
    Nothing,
    /// Send it.
    Send,
    /// Wake the flusher, which sends it if the code is long after all.
    WakeFlusher,
}

/// What the flusher does next. With its time, it waits for that time unless it is woken, and asks again if it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// It sleeps until it is woken.
    Sleep,
    /// It sends what has been released meanwhile.
    Trim(Nanos),
    /// It sends what is queued, if [`Flushing::is_due`] by then.
    Check(Nanos),
}

/// See the module.
#[derive(Debug)]
pub struct Flushing {
    word: AtomicU64,
    batching: Batching,
}

/// Time from `since_ns` to `now_ns`; infinite if the clock was set back in between, so that nothing waits for it.
#[inline]
fn age_ns(since_ns: Nanos, now_ns: Nanos) -> Nanos {
    now_ns.checked_sub(since_ns).unwrap_or(Nanos::MAX)
}

/// As it stands in the word.
#[inline]
fn since(now_ns: Nanos) -> u64 {
    (now_ns & SINCE).max(!SINCE + 1)
}

impl Flushing {
    /// Of an engine that has nothing queued.
    pub fn new(batching: Batching) -> Self {
        Self {
            word: AtomicU64::new(ASLEEP),
            batching,
        }
    }

    /// Whether a task of this length is too short to send its reply by itself.
    #[inline]
    pub fn is_short(&self, task_ns: Nanos) -> bool {
        task_ns < self.batching.delay_ns / 4
    }

    /// A task ended at `completed_ns` after `task_ns`, and its reply was queued; returns whether to send it now. Replies of
    /// tiny tasks are batched; that of a longer task is not held back.
    #[inline]
    #[must_use = "it is held back otherwise"]
    pub fn on_reply(&self, queued_bytes: usize, task_ns: Nanos, completed_ns: Nanos) -> bool {
        let since_ns = self.word.load(Ordering::Acquire) & SINCE;
        if since_ns == 0 {
            self.mark(completed_ns, 0);
        }
        let is_old = since_ns != 0 && age_ns(since_ns, completed_ns) >= self.batching.delay_ns;
        is_old || !self.is_short(task_ns) || queued_bytes >= self.batching.max_bytes
    }

    /// Something was queued that may wait for the next reply, but not for user code.
    pub fn on_queued(&self, now_ns: impl FnOnce() -> Nanos) {
        if self.word.load(Ordering::Acquire) & SINCE == 0 {
            self.mark(now_ns(), 0);
        }
    }

    /// Changes the word, unless there is nothing to change; returns whether there was.
    #[inline]
    fn change(&self, to: impl Fn(u64) -> Option<u64>) -> bool {
        (self.word)
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, to)
            .is_ok()
    }

    /// Something of this time is queued, and perhaps older things are.
    #[inline]
    fn mark(&self, now_ns: Nanos, kind: u64) {
        self.change(|word| {
            let since = if word & SINCE == 0 { since(now_ns) } else { 0 };
            Some(word | since | kind)
        });
    }

    /// Free memory ages from now on; returns whether the flusher must be woken.
    #[must_use = "it sleeps until it is woken"]
    pub fn on_free_memory(&self) -> bool {
        self.need(TRIM)
    }

    /// A running task wrote something, which is queued; returns whether the flusher must be woken.
    #[must_use = "it sleeps until it is woken"]
    pub fn on_output(&self, now_ns: impl FnOnce() -> Nanos) -> bool {
        let word = self.word.load(Ordering::Acquire);
        if word & HAS_OUTPUT == 0 || word & SINCE == 0 {
            self.mark(now_ns(), HAS_OUTPUT);
        }
        self.need(PROMPT)
    }

    /// Whether code that writes output may go on with this many bytes queued; otherwise it waits until the node has read
    /// some.
    pub fn has_room(queued_bytes: usize) -> bool {
        queued_bytes < MAX_QUEUED_BYTES
    }

    /// Whether so much is queued that it is sent without waiting for the flusher.
    pub fn is_full(&self, queued_bytes: usize) -> bool {
        queued_bytes >= self.batching.max_bytes
    }

    /// User code is about to run, and may be long if it is not known to be short.
    #[inline]
    #[must_use = "user code holds back what is queued"]
    pub fn before_user_code(&self, is_short: bool) -> Before {
        if self.word.load(Ordering::Acquire) & SINCE == 0 {
            Before::Nothing
        } else if !is_short {
            Before::Send
        } else if self.need(GUARD) {
            Before::WakeFlusher
        } else {
            Before::Nothing
        }
    }

    /// Somebody has written to the link what was queued, and has its lock: all of it, or there is a rest of this time.
    #[inline]
    pub fn on_flushed(&self, rest_since_ns: Option<Nanos>) {
        let Some(rest_since_ns) = rest_since_ns else {
            // At the end of a turn nothing was queued, most of the time.
            if self.word.load(Ordering::Acquire) & !NEED != 0 {
                self.word.fetch_and(NEED, Ordering::AcqRel);
            }
            return;
        };
        self.change(|word| Some(word & !SINCE | since(rest_since_ns)));
    }

    /// The node reads so slowly that not all was written that was to be sent before user code: the flusher writes the rest.
    /// Returns whether it must be woken.
    #[must_use = "user code holds back the rest"]
    pub fn on_rest(&self) -> bool {
        self.need(GUARD)
    }

    /// Returns whether the flusher must be woken: it does nothing so urgent.
    #[inline]
    fn need(&self, need: u64) -> bool {
        self.change(|word| (word & NEED < need).then_some(word & !NEED | need))
    }

    /// The flusher: what it does now. From here until it sleeps it has a lock that whoever wakes it takes.
    pub fn turn(&self, now_ns: Nanos) -> Turn {
        let word = self.word.load(Ordering::Acquire);
        match word & NEED {
            ASLEEP => Turn::Sleep,
            TRIM => Turn::Trim(TRIM_NS),
            GUARD => Turn::Check(GUARD_NS),
            _ => Turn::Check(self.until_due_ns(word, now_ns)),
        }
    }

    /// Whether what is queued has waited for as long as it may, or nothing is.
    pub fn is_due(&self, now_ns: Nanos) -> bool {
        self.until_due_ns(self.word.load(Ordering::Acquire), now_ns) == 0
    }

    fn until_due_ns(&self, word: u64, now_ns: Nanos) -> Nanos {
        match word & SINCE {
            0 => 0,
            since_ns => (self.batching.delay_ns).saturating_sub(age_ns(since_ns, now_ns)),
        }
    }

    /// The flusher has done what it was needed for. It is still needed for what is queued. Unless that is so it looks after
    /// this whether free memory ages, and says so: what is freed later finds it needed for nothing.
    pub fn on_done(&self) {
        self.change(|word| {
            let need = match (word & SINCE, word & HAS_OUTPUT) {
                (0, _) => ASLEEP,
                (_, 0) => GUARD,
                _ => PROMPT,
            };
            Some(word & !NEED | need)
        });
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const DELAY_NS: Nanos = MS / 5;

    fn flushing() -> Flushing {
        Flushing::new(Batching {
            delay_ns: DELAY_NS,
            max_bytes: 1000,
        })
    }

    #[test]
    fn replies_of_tiny_tasks_are_batched() {
        let flushing = flushing();
        assert!(!flushing.on_reply(10, 1, MS));
        assert!(!flushing.on_reply(20, 1, MS + DELAY_NS / 2));
        assert!(flushing.on_reply(30, 1, MS + DELAY_NS), "the first is old");
        flushing.on_flushed(None);
        assert!(!flushing.on_reply(10, 1, MS + DELAY_NS));
        assert!(flushing.on_reply(1000, 1, MS + DELAY_NS), "a full batch");
        assert!(
            flushing.on_reply(20, DELAY_NS, MS + DELAY_NS),
            "a long task"
        );
        assert!(flushing.on_reply(30, 1, MS / 2), "the clock was set back");
    }

    #[test]
    fn user_code_that_may_be_long_holds_nothing_back() {
        let flushing = flushing();
        assert_eq!(flushing.before_user_code(false), Before::Nothing);
        assert!(!flushing.on_reply(10, 1, MS));
        assert_eq!(flushing.before_user_code(true), Before::WakeFlusher);
        assert_eq!(flushing.before_user_code(true), Before::Nothing, "woken");
        assert_eq!(flushing.turn(MS), Turn::Check(GUARD_NS));
        assert!(flushing.is_due(MS + DELAY_NS));
        assert_eq!(flushing.before_user_code(false), Before::Send);
        flushing.on_flushed(Some(MS + DELAY_NS));
        assert!(!flushing.on_rest(), "it is awake");
        assert_eq!(flushing.before_user_code(false), Before::Send, "a rest");
        assert!(!flushing.is_due(MS + DELAY_NS), "which is younger");
        flushing.on_flushed(None);
        flushing.on_done();
        assert_eq!(flushing.turn(MS), Turn::Sleep);
        assert!(!flushing.on_reply(10, 1, MS));
        flushing.on_flushed(Some(MS));
        assert!(flushing.on_rest());
        assert_eq!(flushing.turn(MS), Turn::Check(GUARD_NS));
    }

    #[test]
    fn the_most_urgent_need_counts() {
        let flushing = flushing();
        assert!(flushing.on_free_memory());
        assert!(!flushing.on_free_memory(), "woken");
        assert_eq!(flushing.turn(0), Turn::Trim(TRIM_NS));
        assert!(flushing.on_output(|| MS));
        assert!(!flushing.on_output(|| 2 * MS));
        assert!(!flushing.on_free_memory(), "it is awake");
        assert_eq!(flushing.turn(MS), Turn::Check(DELAY_NS));
        assert_eq!(flushing.turn(MS + 1 + DELAY_NS), Turn::Check(0));
        flushing.on_done();
        let later = Turn::Check(DELAY_NS / 2);
        assert_eq!(flushing.turn(MS + DELAY_NS / 2), later, "not sent");
        flushing.on_flushed(None);
        assert!(!flushing.on_reply(10, 1, 2 * MS));
        flushing.on_done();
        assert_eq!(flushing.turn(2 * MS), Turn::Check(GUARD_NS), "a reply");
    }

    #[test]
    fn writers_wait_while_much_is_queued() {
        assert!(flushing().is_full(1000) && !flushing().is_full(999));
        assert!(Flushing::has_room(1000) && !Flushing::has_room(MAX_QUEUED_BYTES));
    }
}

/// `make test-loom`
#[cfg(all(test, loom))]
mod model {
    use loom::sync::{Arc, Condvar, Mutex};
    use loom::thread;

    use super::*;

    /// What the driver has.
    struct Shared {
        flushing: Flushing,
        /// Queued messages, and those that were sent.
        link: Mutex<(u32, u32)>,
        has_free_memory: Mutex<bool>,
        lock: Mutex<()>,
        changed: Condvar,
    }

    impl Shared {
        fn new() -> Arc<Self> {
            Arc::new(Self {
                flushing: Flushing::new(Batching {
                    delay_ns: MS,
                    max_bytes: 1000,
                }),
                link: Mutex::new((0, 0)),
                has_free_memory: Mutex::new(false),
                lock: Mutex::new(()),
                changed: Condvar::new(),
            })
        }

        fn queue(&self) {
            self.link.lock().unwrap().0 += 1;
        }

        fn flush(&self) -> u32 {
            let mut link = self.link.lock().unwrap();
            link.1 += std::mem::take(&mut link.0);
            self.flushing.on_flushed(None);
            link.1
        }

        fn wake(&self) {
            drop(self.lock.lock().unwrap());
            self.changed.notify_one();
        }

        /// The flusher, until that many messages were sent and nothing is free.
        fn run_flusher(&self, n_messages: u32) {
            loop {
                let guard = self.lock.lock().unwrap();
                match self.flushing.turn(0) {
                    Turn::Sleep => {
                        drop(self.changed.wait(guard).unwrap());
                        continue;
                    }
                    Turn::Trim(_) | Turn::Check(_) => drop(guard),
                }
                *self.has_free_memory.lock().unwrap() = false;
                let n_sent = self.flush();
                self.flushing.on_done();
                if *self.has_free_memory.lock().unwrap() {
                    let _ = self.flushing.on_free_memory();
                }
                if n_sent == n_messages {
                    return;
                }
            }
        }
    }

    /// A lost wake-up is a deadlock, which the model reports.
    #[test]
    fn model_no_reply_stays_behind_user_code() {
        loom::model(|| {
            let shared = Shared::new();
            let flusher = {
                let shared = Arc::clone(&shared);
                thread::spawn(move || shared.run_flusher(2))
            };
            for _ in 0..2 {
                shared.queue();
                assert!(!shared.flushing.on_reply(1, 1, MS));
                if shared.flushing.before_user_code(true) == Before::WakeFlusher {
                    shared.wake();
                }
            }
            flusher.join().unwrap();
        });
    }

    #[test]
    fn model_output_is_sent_while_its_task_runs() {
        loom::model(|| {
            let shared = Shared::new();
            let flusher = {
                let shared = Arc::clone(&shared);
                thread::spawn(move || shared.run_flusher(2))
            };
            shared.queue();
            assert!(!shared.flushing.on_reply(1, 1, MS));
            if shared.flushing.before_user_code(true) == Before::WakeFlusher {
                shared.wake();
            }
            shared.queue();
            if shared.flushing.on_output(|| MS) {
                shared.wake();
            }
            flusher.join().unwrap();
        });
    }

    #[test]
    fn model_what_is_queued_is_known_whoever_sends() {
        loom::model(|| {
            let shared = Shared::new();
            let other = {
                let shared = Arc::clone(&shared);
                thread::spawn(move || {
                    shared.queue();
                    shared.flush();
                })
            };
            shared.queue();
            assert!(!shared.flushing.on_reply(1, 1, MS));
            let known = shared.flushing.before_user_code(false) == Before::Send;
            let n_queued = shared.link.lock().unwrap().0;
            other.join().unwrap();
            let is_known = shared.flushing.before_user_code(false) == Before::Send;
            assert!(
                known || n_queued == 0 || is_known,
                "user code holds it back"
            );
            let n_queued = shared.link.lock().unwrap().0;
            assert!(is_known || n_queued == 0, "it is forgotten");
        });
    }

    #[test]
    fn model_free_memory_is_looked_at() {
        loom::model(|| {
            let shared = Shared::new();
            let flusher = {
                let shared = Arc::clone(&shared);
                thread::spawn(move || shared.run_flusher(1))
            };
            shared.queue();
            assert!(!shared.flushing.on_reply(1, 1, MS));
            if shared.flushing.before_user_code(true) == Before::WakeFlusher {
                shared.wake();
            }
            *shared.has_free_memory.lock().unwrap() = true;
            if shared.flushing.on_free_memory() {
                shared.wake();
            }
            flusher.join().unwrap();
            let is_free = *shared.has_free_memory.lock().unwrap();
            let is_asleep = shared.flushing.turn(0) == Turn::Sleep;
            assert!(!(is_free && is_asleep), "it is forgotten");
        });
    }
}
