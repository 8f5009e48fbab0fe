//! The lane of a host: how one task reaches many engines with one wake-up call, and how their answers come back with
//! one.
//!
//! Each engine has a *place*, in the memory that it shares with its node: room for one task and for one answer. All
//! engines of a host share the *lane*: the number of answers that their node waits for. Whoever gives the last one wakes
//! the node, and nobody else does, unless the node is in a hurry.
//!
//! Tasks and answers keep their order with what goes through the engine's socket: each says how many frames were sent
//! before it.

use std::os::fd::{AsFd, OwnedFd};

use broadleaf_proto::LaneWord;
#[cfg(loom)]
use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering};
#[cfg(not(loom))]
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::ShmError;
use crate::platform::{self, Access, Region};

/// Words of a letter; few in the model, which visits all states.
const WORDS: usize = if cfg!(loom) { 1 } else { 126 };
/// A longer record goes through the socket.
pub const LETTER_BYTES: usize = WORDS * size_of::<u64>();

/// A record for the other side, from one writer to one reader. All zeros mean that there is none.
#[repr(C, align(64))]
#[derive(Debug)]
pub(crate) struct Letter {
    /// Length of the record plus one, or 0.
    state: AtomicU32,
    /// See [`Taken`].
    round: AtomicU32,
    /// Number of frames that its writer has sent before it.
    position: AtomicU64,
    words: [AtomicU64; WORDS],
}

/// A record that was taken, and how many frames were sent before it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Taken {
    /// See [`Taken`].
    pub position: u64,
    /// The round of the lane that a task belongs to; 0 for an answer.
    pub round: u32,
    /// The record, as its writer left it: it may be anything.
    pub record: Vec<u8>,
}

impl Letter {
    fn is_empty(&self) -> bool {
        self.state.load(Ordering::Acquire) == 0
    }

    fn put(&self, position: u64, round: u32, record: &[u8]) -> bool {
        if record.len() > LETTER_BYTES || !self.is_empty() {
            return false;
        }
        self.position.store(position, Ordering::Relaxed);
        self.round.store(round, Ordering::Relaxed);
        for (word, bytes) in self.words.iter().zip(record.chunks(size_of::<u64>())) {
            let mut whole = [0; size_of::<u64>()];
            whole[..bytes.len()].copy_from_slice(bytes);
            word.store(u64::from_le_bytes(whole), Ordering::Relaxed);
        }
        // Set last: whoever sees it sees the record.
        let state = record.len() as u32 + 1;
        self.state.store(state, Ordering::Release);
        true
    }

    fn position(&self) -> Option<u64> {
        (!self.is_empty()).then(|| self.position.load(Ordering::Relaxed))
    }

    fn take(&self) -> Option<Taken> {
        let len = self.state.load(Ordering::Acquire).checked_sub(1)? as usize;
        // The other process may have written anything.
        let len = len.min(LETTER_BYTES);
        let words = &self.words[..len.div_ceil(size_of::<u64>())];
        let mut record = Vec::with_capacity(size_of_val(words));
        for word in words {
            record.extend_from_slice(&word.load(Ordering::Relaxed).to_le_bytes());
        }
        record.truncate(len);
        let position = self.position.load(Ordering::Relaxed);
        let round = self.round.load(Ordering::Relaxed);
        self.state.store(0, Ordering::Release);
        Some(Taken {
            position,
            round,
            record,
        })
    }
}

/// An engine's place on its host's lane.
///
/// The node puts a task there and takes the answer; the engine takes the task and puts the answer.
#[repr(C)]
#[derive(Debug)]
pub struct Place {
    task: Letter,
    answer: Letter,
}

impl Place {
    /// Node: whether the engine has taken the last task.
    pub fn is_free(&self) -> bool {
        self.task.is_empty()
    }

    /// Node: leaves a task of a round, after `position` frames. False if there is one, or the record is longer than
    /// [`LETTER_BYTES`].
    pub fn put_task(&self, position: u64, round: u32, record: &[u8]) -> bool {
        self.task.put(position, round, record)
    }

    /// Engine: the position of a task that is there.
    pub fn task_position(&self) -> Option<u64> {
        self.task.position()
    }

    /// Engine: takes the task that is there.
    pub fn take_task(&self) -> Option<Taken> {
        self.task.take()
    }

    /// Engine: leaves an answer, as [`Place::put_task`].
    pub fn put_answer(&self, position: u64, record: &[u8]) -> bool {
        self.answer.put(position, 0, record)
    }

    /// Node: the position of an answer that is there.
    pub fn answer_position(&self) -> Option<u64> {
        self.answer.position()
    }

    /// Node: takes the answer that is there.
    pub fn take_answer(&self) -> Option<Taken> {
        self.answer.take()
    }

    #[cfg(all(test, loom))]
    pub(crate) fn empty() -> Self {
        let letter = || Letter {
            state: AtomicU32::new(0),
            round: AtomicU32::new(0),
            position: AtomicU64::new(0),
            words: std::array::from_fn(|_| AtomicU64::new(0)),
        };
        Self {
            task: letter(),
            answer: letter(),
        }
    }
}

/// A [`LaneWord`] that several processes change.
#[repr(C)]
#[derive(Debug)]
struct Count(AtomicU64);

impl Count {
    fn begin(&self, n_tasks: u32) -> u32 {
        // Only the node begins rounds, and counts of the last one change nothing that is read here.
        let next = LaneWord(self.0.load(Ordering::Relaxed)).begin(n_tasks);
        self.0.store(next.0, Ordering::Release);
        next.round()
    }

    fn n_missing(&self) -> u32 {
        LaneWord(self.0.load(Ordering::Acquire)).n_missing()
    }

    fn hurry(&self) {
        // Whoever counts its answer after this sees it; the answers of all others are seen after this.
        let hurry = LaneWord::default().hurry();
        self.0.fetch_or(hurry.0, Ordering::AcqRel);
    }

    fn count_answer(&self, round: u32) -> bool {
        let mut must_wake = false;
        let _ = (self.0).fetch_update(Ordering::AcqRel, Ordering::Acquire, |word| {
            let (next, wakes) = LaneWord(word).count(round);
            must_wake = wakes;
            next.map(|next| next.0)
        });
        must_wake
    }
}

/// See the module. An engine that counts wrongly wakes its node too early or too late, no more.
#[derive(Debug)]
pub struct Lane {
    region: Region,
}

impl Lane {
    /// A lane, and the descriptor that gives it to the engines.
    ///
    /// # Errors
    /// [`ShmError::OutOfMemory`] or [`ShmError::System`].
    pub fn create() -> Result<(Self, OwnedFd), ShmError> {
        let fd = platform::create(platform::page_bytes(), &[])?;
        let region = Region::map(fd.as_fd(), Access::SharedWrite, 0, platform::page_bytes())?;
        Ok((Self { region }, fd))
    }

    /// The lane behind a received descriptor, which is not needed afterwards.
    ///
    /// # Errors
    /// [`ShmError::NotSealed`] or [`ShmError::SizeMismatch`] if it is not a lane.
    pub fn from_fd(fd: impl AsFd) -> Result<Self, ShmError> {
        let (claimed_bytes, actual_bytes) =
            (platform::page_bytes(), platform::sealed_size(fd.as_fd())?);
        if actual_bytes != claimed_bytes {
            return Err(ShmError::SizeMismatch {
                claimed_bytes,
                actual_bytes,
            });
        }
        let region = Region::map(fd.as_fd(), Access::SharedWrite, 0, claimed_bytes)?;
        Ok(Self { region })
    }

    #[expect(
        clippy::cast_ptr_alignment,
        reason = "a region starts on a page boundary"
    )]
    fn count(&self) -> &Count {
        // SAFETY: the region is page-aligned, at least as large as `Count`, of sealed size, and lives as long as
        // `self`; every bit pattern is a valid `Count`, and all access is atomic.
        unsafe { &*self.region.as_ptr().cast::<Count>() }
    }

    /// Memory that it takes.
    pub fn len_bytes(&self) -> u64 {
        self.region.len() as u64
    }

    /// Node: so many engines are about to get a task. Returns the number of their round. Nobody owes an answer from before,
    /// but who gave one through its socket may not have counted it yet.
    pub fn begin(&self, n_tasks: u32) -> u32 {
        self.count().begin(n_tasks)
    }

    /// Node: the number of answers that have not been counted.
    pub fn n_missing(&self) -> u32 {
        self.count().n_missing()
    }

    /// Node: from here on each answer wakes it. Look at all places after this.
    pub fn hurry(&self) {
        self.count().hurry();
    }

    /// Engine: what it owed in this round is in its place, or on its way through the socket, or it owes nothing because the
    /// task was taken back. Returns whether to wake the node for what is in its place.
    pub fn count_answer(&self, round: u32) -> bool {
        self.count().count_answer(round)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::ClaimBoard;

    #[test]
    fn a_record_is_taken_once_and_as_it_was_put() {
        let (node, fd) = ClaimBoard::create().unwrap();
        let engine = ClaimBoard::from_fd(&fd).unwrap();
        for len in [0, 1, 7, 8, 9, 300, LETTER_BYTES] {
            let record: Vec<u8> = (0..len).map(|n| n as u8 ^ 0x5a).collect();
            assert!(node.place().put_task(7, 5, &record));
            assert!(!node.place().is_free());
            assert!(!node.place().put_task(8, 5, b"another"));
            assert_eq!(engine.place().task_position(), Some(7));
            let taken = engine.place().take_task().unwrap();
            assert_eq!((taken.position, taken.round), (7, 5));
            assert_eq!(taken.record, record);
            assert!(node.place().is_free());
            assert!(engine.place().take_task().is_none());
            assert!(engine.place().put_answer(9, &record));
            assert_eq!(node.place().answer_position(), Some(9));
            assert_eq!(node.place().take_answer().unwrap().record, record);
        }
        assert!(!node.place().put_task(0, 0, &[0; LETTER_BYTES + 1]));
    }

    #[test]
    fn a_length_that_cannot_be_is_cut() {
        let (board, _) = ClaimBoard::create().unwrap();
        board
            .place()
            .answer
            .state
            .store(u32::MAX, Ordering::Relaxed);
        let taken = board.place().take_answer().unwrap();
        assert_eq!(taken.record.len(), LETTER_BYTES);
    }

    #[test]
    fn answers_are_counted_in_their_round_by_all_who_map_it() {
        let (node, fd) = Lane::create().unwrap();
        let engines = [(); 2].map(|()| Lane::from_fd(&fd).unwrap());
        let early = node.begin(2);
        assert!(!engines[0].count_answer(early));
        assert_eq!(node.n_missing(), 1);
        let round = node.begin(2);
        assert!(!engines[1].count_answer(early), "too late");
        assert_eq!(node.n_missing(), 2);
        let wakes = [0, 1].map(|n: usize| engines[n].count_answer(round));
        assert_eq!(wakes, [false, true]);
        let round = node.begin(2);
        node.hurry();
        assert!(engines[0].count_answer(round));
        assert_eq!(node.n_missing(), 1);
    }

    #[test]
    fn what_is_no_lane_is_refused() {
        let plain = std::fs::File::open("/dev/null").unwrap();
        assert!(matches!(Lane::from_fd(&plain), Err(ShmError::NotSealed)));
        let large = platform::create(2 * platform::page_bytes(), &[]).unwrap();
        assert!(matches!(
            Lane::from_fd(&large),
            Err(ShmError::SizeMismatch { .. })
        ));
    }
}

/// `make test-loom`
#[cfg(all(test, loom))]
mod model {
    use loom::sync::Arc;
    use loom::thread;

    use super::*;

    /// Whatever the node has not found when it looks at all places in a hurry, it is woken for.
    #[test]
    fn no_answer_is_overlooked() {
        loom::model(|| {
            let count = Arc::new(Count(AtomicU64::new(0)));
            let round = count.begin(2);
            let places = Arc::new([Place::empty(), Place::empty()]);
            let engines = [0, 1].map(|n: usize| {
                let (count, places) = (count.clone(), places.clone());
                thread::spawn(move || {
                    assert!(places[n].put_answer(0, &[n as u8]));
                    count.count_answer(round)
                })
            });
            count.hurry();
            let found = [0, 1].map(|n: usize| places[n].take_answer().is_some());
            let wakes = engines.map(|engine| engine.join().unwrap());
            for n in 0..2 {
                assert!(found[n] || wakes[n]);
            }
        });
    }

    /// Whoever gives the last answer wakes the node, which then finds all.
    #[test]
    fn the_last_one_wakes_the_node_for_all() {
        loom::model(|| {
            let count = Arc::new(Count(AtomicU64::new(0)));
            let round = count.begin(2);
            let places = Arc::new([Place::empty(), Place::empty()]);
            let engine = |n: usize| {
                let (count, places) = (count.clone(), places.clone());
                move || {
                    assert!(places[n].put_answer(0, &[n as u8]));
                    let wakes = count.count_answer(round);
                    if wakes {
                        assert!(places.iter().all(|place| place.take_answer().is_some()));
                    }
                    wakes
                }
            };
            let other = thread::spawn(engine(1));
            let wakes = engine(0)();
            assert!(wakes != other.join().unwrap());
        });
    }

    /// Counts of an earlier round, however late, take nobody's wake-up.
    #[test]
    fn who_counts_late_takes_nobodys_wake_up() {
        loom::model(|| {
            let count = Arc::new(Count(AtomicU64::new(0)));
            let early = count.begin(2);
            let round = count.begin(1);
            let late = [(); 2].map(|()| {
                let count = count.clone();
                thread::spawn(move || count.count_answer(early))
            });
            count.hurry();
            assert!(count.count_answer(round));
            for engine in late {
                assert!(!engine.join().unwrap());
            }
        });
    }
}
