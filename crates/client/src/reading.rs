//! Who reads the link.
//!
//! The thread that wants a reply reads it: waking another one for that costs more than a thousand function calls. So of
//! the threads that wait, one has the reader's role and polls the socket; the others follow it, and look again when it
//! has read or has given up its role. The background thread reads only while nobody waits.
//!
//! All of a driver's threads share one [`Reading`] under a lock. Each call is one step, so what can happen is every
//! interleaving of these calls: `tests/reading.rs` goes through all of them.

use crate::Nanos;

const MS: Nanos = 1_000_000;

/// Maximum time that a thread which must look goes without doing so.
const SLICE_NS: Nanos = 100 * MS;
/// How often the background thread, when it has left the socket to others, checks whether they still read it. Each check
/// wakes it, which delays a round trip on the same core.
const LOOK_NS: Nanos = 100 * MS;
/// How often it checks while a thread waits for long that may run a signal's handler, which may wait for a callback.
const HANDLER_LOOK_NS: Nanos = 1000 * MS;

/// Whether a waiting thread must also look at something that nobody wakes it for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Looks {
    /// It sleeps until something happens to the connection.
    Never,
    /// It looks after a slice: at signals, which the kernel may give to another thread or in the instant before this one
    /// sleeps, or at a condition that any code may make true.
    EverySlice,
}

impl Looks {
    /// How long a thread may sleep at once with this much time left, where `None` is for ever. `None` if its time is
    /// over.
    #[inline]
    pub fn longest_sleep_ns(self, left_ns: Option<Nanos>) -> Option<Option<Nanos>> {
        let slice = (self == Self::EverySlice).then_some(SLICE_NS);
        match left_ns {
            Some(0) => None,
            Some(left) => Some(Some(slice.map_or(left, |slice| slice.min(left)))),
            None => Some(slice),
        }
    }

    /// As long as a thread may sleep that cannot be woken.
    pub const DEAF_NS: Nanos = SLICE_NS;
}

/// What a thread does in one step of waiting.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// It polls the socket and reads.
    Reader,
    /// It sleeps until the news are others than these.
    Follower(u64),
}

/// What the background thread does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Background {
    /// It polls the socket: nobody waits.
    #[default]
    Watches,
    /// It has left the socket to waiting threads, and looks a little later whether they still read it.
    Looks,
    /// It has left the socket to waiting threads until one of them wakes it.
    Sleeps,
}

/// See the module.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Reading {
    has_reader: bool,
    /// Threads in a step of waiting.
    n_waiting: usize,
    /// Those of them that look at something else as well.
    n_looking: usize,
    /// Counts what those who follow are told about.
    news: u64,
    background: Background,
    lost: bool,
}

impl Reading {
    /// A thread begins a step of waiting. It checks what it waits for after that, and before it sleeps: what changes
    /// later it is told about.
    #[inline]
    pub fn begin(&mut self, looks: Looks) -> Role {
        self.n_waiting += 1;
        self.n_looking += usize::from(looks == Looks::EverySlice);
        if std::mem::replace(&mut self.has_reader, true) {
            Role::Follower(self.news)
        } else {
            Role::Reader
        }
    }

    /// A step is over; returns whether those who follow must be told.
    #[inline]
    #[must_use = "those who follow sleep until they are told"]
    pub fn end(&mut self, role: Role, looks: Looks) -> bool {
        self.n_waiting -= 1;
        self.n_looking -= usize::from(looks == Looks::EverySlice);
        role == Role::Reader && self.leave_role()
    }

    /// A thread that does not wait reads what is there, unless another one reads.
    #[inline]
    pub fn try_read(&mut self) -> bool {
        !std::mem::replace(&mut self.has_reader, true)
    }

    /// It has read; returns whether those who follow must be told.
    #[inline]
    #[must_use = "those who follow sleep until they are told"]
    pub fn end_read(&mut self) -> bool {
        self.leave_role()
    }

    /// The reader's role is free again, perhaps after a read: the threads that wait check what they wait for, and one of
    /// them takes it.
    #[inline]
    fn leave_role(&mut self) -> bool {
        self.has_reader = false;
        let is_followed = self.n_waiting > 0;
        self.news += u64::from(is_followed);
        is_followed
    }

    /// Something that threads wait for has changed, although nothing was read: all are told, the reader as well.
    pub fn on_changed(&mut self) {
        self.news += 1;
    }

    /// What was unresolved has ended as lost.
    pub fn on_lost(&mut self) {
        self.lost = true;
        self.on_changed();
    }

    /// Whether what was unresolved has ended as lost.
    pub fn is_lost(&self) -> bool {
        self.lost
    }

    /// Whether a follower has not been told anything since its step began.
    #[inline]
    pub fn is_unchanged(&self, news: u64) -> bool {
        self.news == news
    }

    /// A thread stops waiting, or runs code in the middle of it; returns whether the background thread must be woken. It
    /// must if it sleeps, and if a callback may be due before it looks the next time.
    #[must_use = "the background thread sleeps until it is woken"]
    pub fn stop(&mut self, has_callbacks: bool) -> bool {
        match self.background {
            Background::Watches => false,
            Background::Looks => has_callbacks,
            Background::Sleeps => {
                self.background = Background::Looks;
                true
            }
        }
    }

    /// The background thread decides what it does next: it was `woken` or not since the last time.
    ///
    /// While threads wait, it looks once more a little later, and then sleeps until one of them stops.
    pub fn background_turn(&mut self, woken: bool) -> Background {
        self.background = if self.n_waiting == 0 {
            Background::Watches
        } else if self.background == Background::Watches || woken {
            Background::Looks
        } else {
            Background::Sleeps
        };
        self.background
    }

    /// What the background thread does.
    #[inline]
    pub fn background(&self) -> Background {
        self.background
    }

    /// How long the background thread sleeps at most if nothing happens. While it watches, it is told how often it has
    /// something else to do.
    pub fn background_sleep_ns(&self, chores_ns: Option<Nanos>) -> Option<Nanos> {
        match self.background {
            Background::Watches => chores_ns,
            Background::Looks => Some(LOOK_NS),
            Background::Sleeps => (self.n_looking > 0).then_some(HANDLER_LOOK_NS),
        }
    }
}

/// When a reader polls the socket without sleeping.
///
/// A reply from idle engines arrives in less time than it takes to wake a sleeping thread.
#[derive(Clone, Copy, Debug)]
pub struct Spin {
    /// How long after the last submission.
    pub spin_ns: Nanos,
    /// Cores that the process may use.
    pub n_cores: u64,
}

impl Spin {
    /// Until when to poll, if at all. With more unresolved tasks than can run at the same time somebody else needs the
    /// processor.
    #[inline]
    pub fn until(&self, sent_ns: Nanos, unresolved: u64, n_engines: u64) -> Nanos {
        if unresolved <= n_engines.min(self.n_cores) {
            sent_ns + self.spin_ns
        } else {
            0
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_reads_and_the_others_follow() {
        let mut reading = Reading::default();
        assert_eq!(reading.begin(Looks::Never), Role::Reader);
        let follower = reading.begin(Looks::Never);
        assert_eq!(follower, Role::Follower(0));
        assert!(!reading.try_read());
        assert!(reading.is_unchanged(0));
        assert!(
            reading.end(Role::Reader, Looks::Never),
            "another one must read"
        );
        assert!(!reading.is_unchanged(0));
        assert!(!reading.end(follower, Looks::Never));
        assert!(reading.try_read());
        assert!(!reading.end_read(), "nobody follows");
    }

    #[test]
    fn the_background_thread_leaves_the_socket_and_comes_back() {
        let mut reading = Reading::default();
        assert_eq!(reading.background_sleep_ns(Some(7)), Some(7));
        assert_eq!(reading.background_turn(false), Background::Watches);
        assert_eq!(reading.begin(Looks::EverySlice), Role::Reader);
        assert_eq!(reading.background_turn(false), Background::Looks);
        assert_eq!(reading.background_sleep_ns(None), Some(LOOK_NS));
        assert!(!reading.stop(false), "it looks soon enough");
        assert!(reading.stop(true), "but a callback does not wait for that");
        assert_eq!(reading.background_turn(true), Background::Looks);
        assert_eq!(reading.background_turn(false), Background::Sleeps);
        assert_eq!(reading.background_sleep_ns(None), Some(HANDLER_LOOK_NS));
        assert!(!reading.end(Role::Reader, Looks::EverySlice));
        assert_eq!(reading.background_sleep_ns(None), None);
        assert!(reading.stop(false));
        assert!(!reading.stop(false), "woken once");
        assert_eq!(reading.background_turn(true), Background::Watches);
        assert!(!reading.stop(true));
    }

    #[test]
    fn a_thread_sleeps_no_longer_than_it_may() {
        assert_eq!(Looks::Never.longest_sleep_ns(None), Some(None));
        assert_eq!(Looks::Never.longest_sleep_ns(Some(5)), Some(Some(5)));
        assert_eq!(Looks::Never.longest_sleep_ns(Some(0)), None);
        let looks = Looks::EverySlice;
        assert_eq!(looks.longest_sleep_ns(None), Some(Some(SLICE_NS)));
        assert_eq!(looks.longest_sleep_ns(Some(5)), Some(Some(5)));
        assert_eq!(
            looks.longest_sleep_ns(Some(SLICE_NS + 1)),
            Some(Some(SLICE_NS))
        );
    }

    #[test]
    fn a_reader_spins_only_for_tasks_that_run() {
        let spin = Spin {
            spin_ns: 50,
            n_cores: 2,
        };
        assert_eq!(spin.until(1000, 2, 4), 1050);
        assert_eq!(spin.until(1000, 3, 4), 0);
        assert_eq!(spin.until(1000, 2, 1), 0);
    }
}
