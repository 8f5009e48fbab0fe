//! The board on which an engine claims the tasks its node has offered, and the node takes offers
//! back: two processes, no system call, exactly one winner.
//!
//! A slot holds zero or a tag: a bit that says "offered", and the part of the offer's number that
//! the slot's place does not say. So the whole number can be read back after the engine's death.

use std::os::fd::{AsFd, OwnedFd};

use broadleaf_proto::limits::CLAIM_SLOTS;
#[cfg(loom)]
use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering};
#[cfg(not(loom))]
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::ShmError;
use crate::platform::{self, Access, Region};

/// Slots of a board; few in the model, whose states are all visited.
const SLOTS: usize = if cfg!(loom) { 2 } else { CLAIM_SLOTS };
const OFFERED: u32 = 1 << 31;
const _: () = assert!(SLOTS.is_power_of_two() && SLOTS >= 2 && u32::MAX as usize / SLOTS < 1 << 31);

fn place(offer: u32) -> (usize, u32) {
    (offer as usize % SLOTS, OFFERED | (offer / SLOTS as u32))
}

/// A word of its own cache line.
#[repr(C, align(64))]
#[derive(Debug)]
struct Line<T>(T);

/// The board's memory. Zero bytes are an empty board.
#[repr(C)]
#[derive(Debug)]
struct Words {
    slots: [AtomicU32; SLOTS],
    /// The running offer plus one, or 0.
    running: Line<AtomicU64>,
    /// The offer to interrupt plus one, or 0.
    interrupt: Line<AtomicU64>,
}

impl Words {
    fn offer(&self, offer: u32) -> bool {
        let (slot, tag) = place(offer);
        self.slots[slot]
            .compare_exchange(0, tag, Ordering::Release, Ordering::Relaxed)
            .is_ok()
    }

    fn claim(&self, offer: u32) -> bool {
        // First `running`, then the claim: who finds the slot empty sees what runs, so a task is
        // never both out of the slot and not yet visible to `request_interrupt`.
        self.running
            .0
            .store(u64::from(offer) + 1, Ordering::Relaxed);
        let won = self.take(offer);
        if !won {
            self.running.0.store(0, Ordering::Release);
        }
        won
    }

    fn take(&self, offer: u32) -> bool {
        let (slot, tag) = place(offer);
        self.slots[slot]
            .compare_exchange(tag, 0, Ordering::AcqRel, Ordering::Acquire)
            .is_ok()
    }

    fn finish(&self) {
        self.running.0.store(0, Ordering::Release);
    }

    fn unclaimed(&self, next_offer: u32) -> Vec<u32> {
        let tags = self.slots.iter().map(|slot| slot.load(Ordering::Acquire));
        let mut offers: Vec<u32> = tags
            .enumerate()
            .filter(|(_, tag)| tag & OFFERED != 0)
            .map(|(slot, tag)| (tag & !OFFERED).wrapping_mul(SLOTS as u32) | slot as u32)
            .collect();
        offers.sort_unstable_by_key(|offer| offer.wrapping_sub(next_offer));
        offers
    }

    fn running(&self) -> Option<u32> {
        let word = self.running.0.load(Ordering::Acquire);
        let offer = u32::try_from(word.checked_sub(1)?).ok()?;
        let (slot, tag) = place(offer);
        // Still offered: the engine is about to try, or died trying; it has not started.
        (self.slots[slot].load(Ordering::Acquire) != tag).then_some(offer)
    }

    fn request_interrupt(&self, offer: u32) -> bool {
        let word = u64::from(offer) + 1;
        if self.running.0.load(Ordering::Acquire) != word {
            return false;
        }
        self.interrupt.0.store(word, Ordering::Release);
        true
    }

    fn is_interrupt_open(&self, offer: u32) -> bool {
        let word = u64::from(offer) + 1;
        self.running.0.load(Ordering::Acquire) == word
            && self.interrupt.0.load(Ordering::Acquire) == word
    }

    fn take_interrupt(&self) -> bool {
        let running = self.running.0.load(Ordering::Relaxed);
        running != 0
            && self
                .interrupt
                .0
                .compare_exchange(running, 0, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok()
    }
}

/// One engine's board: [`CLAIM_SLOTS`] offers, the offer that runs, and a request to interrupt it.
///
/// Node and engine map the same pages. The node offers, revokes and asks for interrupts; the engine
/// claims, finishes and takes interrupts, from one thread (a signal handler on it included). What
/// the node reads is the engine's word: it must look offers up among those it made.
#[derive(Debug)]
pub struct ClaimBoard {
    region: Region,
}

impl ClaimBoard {
    /// An empty board, and the descriptor that gives it to the engine.
    ///
    /// # Errors
    /// [`ShmError::OutOfMemory`] or [`ShmError::System`].
    pub fn create() -> Result<(Self, OwnedFd), ShmError> {
        let fd = platform::create(board_bytes(), &[])?;
        let region = Region::map(fd.as_fd(), Access::SharedWrite, 0, board_bytes())?;
        Ok((Self { region }, fd))
    }

    /// The board behind a received descriptor, which is not needed afterwards.
    ///
    /// # Errors
    /// [`ShmError::NotSealed`] or [`ShmError::SizeMismatch`] when it is no board.
    pub fn from_fd(fd: impl AsFd) -> Result<Self, ShmError> {
        let actual_bytes = platform::sealed_size(fd.as_fd())?;
        if actual_bytes != board_bytes() {
            return Err(ShmError::SizeMismatch {
                claimed_bytes: board_bytes(),
                actual_bytes,
            });
        }
        let region = Region::map(fd.as_fd(), Access::SharedWrite, 0, actual_bytes)?;
        Ok(Self { region })
    }

    #[expect(
        clippy::cast_ptr_alignment,
        reason = "a region starts on a page boundary"
    )]
    fn words(&self) -> &Words {
        // SAFETY: the region is page-aligned, at least as large as `Words`, of sealed size, and lives
        // as long as `self`; every bit pattern is a valid `Words`, and all access is atomic.
        unsafe { &*self.region.as_ptr().cast::<Words>() }
    }

    /// Node: publishes an offer, before the assignment is sent. False, and nothing published, while
    /// the slot still holds the offer [`CLAIM_SLOTS`] before.
    pub fn offer(&self, offer: u32) -> bool {
        self.words().offer(offer)
    }

    /// Engine: claims an offer. True when it is the engine's to run; it then counts as running.
    pub fn claim(&self, offer: u32) -> bool {
        self.words().claim(offer)
    }

    /// Engine: the claimed task has ended.
    pub fn finish(&self) {
        self.words().finish();
    }

    /// Node: takes an offer back. True when the engine can no longer claim it; false when the engine
    /// has claimed it (it runs, or has ended and its result is under way) or it was never offered.
    pub fn revoke(&self, offer: u32) -> bool {
        self.words().take(offer)
    }

    /// Offers neither claimed nor revoked, oldest first, given the number the next offer would have.
    /// Exact once the engine is gone.
    pub fn unclaimed(&self, next_offer: u32) -> Vec<u32> {
        self.words().unclaimed(next_offer)
    }

    /// The offer that the engine has claimed and not finished. After its death: the task it died in.
    pub fn running(&self) -> Option<u32> {
        self.words().running()
    }

    /// Node: asks to interrupt that offer. True when it runs now; then signal the engine. After
    /// `revoke` gave false, false here means that the task has ended.
    pub fn request_interrupt(&self, offer: u32) -> bool {
        self.words().request_interrupt(offer)
    }

    /// Node: whether that offer was asked to be interrupted, still runs, and has not taken the interrupt.
    pub fn is_interrupt_open(&self, offer: u32) -> bool {
        self.words().is_interrupt_open(offer)
    }

    /// Engine, from its signal handler: true once per request, and only while the task that the
    /// request named is still the one that runs.
    pub fn take_interrupt(&self) -> bool {
        self.words().take_interrupt()
    }
}

/// Size of a board's memory: whole pages.
fn board_bytes() -> u64 {
    (size_of::<Words>() as u64).next_multiple_of(platform::page_bytes())
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::atomic::AtomicUsize;
    use std::sync::{Arc, Barrier};

    use super::*;

    fn pair() -> (ClaimBoard, ClaimBoard) {
        let (node, fd) = ClaimBoard::create().unwrap();
        let engine = ClaimBoard::from_fd(&fd).unwrap();
        (node, engine)
    }

    #[test]
    fn an_offer_is_claimed_once_and_runs_until_finished() {
        let (node, engine) = pair();
        assert_eq!(node.running(), None);
        assert!(!engine.claim(0), "nothing offered");
        assert!(node.offer(0));
        assert!(engine.claim(0));
        assert_eq!(node.running(), Some(0));
        engine.finish();
        assert_eq!(node.running(), None);
        assert!(!engine.claim(0));
        assert!(!node.revoke(0));
    }

    #[test]
    fn a_revoked_offer_cannot_be_claimed() {
        let (node, engine) = pair();
        node.offer(9);
        assert!(node.revoke(9));
        assert!(!node.revoke(9));
        assert!(!engine.claim(9));
        assert_eq!(node.running(), None);
    }

    #[test]
    fn a_full_slot_takes_no_second_offer() {
        let (node, engine) = pair();
        assert!(node.offer(3));
        assert!(!node.offer(3 + SLOTS as u32));
        assert!(!engine.claim(3 + SLOTS as u32), "same slot, another offer");
        assert!(engine.claim(3));
        assert!(node.offer(3 + SLOTS as u32));
    }

    #[test]
    fn unclaimed_gives_back_whole_numbers_oldest_first_over_the_wrap() {
        let (node, engine) = pair();
        let first = u32::MAX - 2000;
        let offers: Vec<u32> = (0..SLOTS as u32).map(|i| first.wrapping_add(i)).collect();
        let next = first.wrapping_add(SLOTS as u32);
        assert!(offers.iter().all(|offer| node.offer(*offer)));
        assert_eq!(node.unclaimed(next), offers);
        for offer in offers.iter().step_by(3) {
            assert!(engine.claim(*offer));
        }
        let left = |i: &usize| !i.is_multiple_of(3);
        let expected: Vec<u32> = (0..SLOTS).filter(left).map(|i| offers[i]).collect();
        assert_eq!(node.unclaimed(next), expected);
        assert_eq!(
            node.running(),
            offers.iter().step_by(3).next_back().copied()
        );
    }

    #[test]
    fn an_interrupt_reaches_the_named_task_only_and_once() {
        let (node, engine) = pair();
        assert!(!engine.take_interrupt());
        node.offer(u32::MAX);
        assert!(!node.request_interrupt(u32::MAX), "not claimed yet");
        engine.claim(u32::MAX);
        assert!(!node.is_interrupt_open(u32::MAX), "not asked yet");
        assert!(node.request_interrupt(u32::MAX));
        assert!(node.is_interrupt_open(u32::MAX) && !node.is_interrupt_open(0));
        assert!(engine.take_interrupt());
        assert!(!engine.take_interrupt());
        assert!(!node.is_interrupt_open(u32::MAX), "taken");
        assert!(node.request_interrupt(u32::MAX));
        engine.finish();
        assert!(!engine.take_interrupt(), "between tasks");
        assert!(!node.is_interrupt_open(u32::MAX), "ended");
        node.offer(0);
        engine.claim(0);
        assert!(!engine.take_interrupt(), "meant for the task before");
        assert!(!node.request_interrupt(u32::MAX));
    }

    #[test]
    fn each_offer_has_exactly_one_winner() {
        const ROUNDS: u32 = 200_000;
        let (node, engine) = pair();
        let claimed = Arc::new(AtomicUsize::new(0));
        let start = Arc::new(Barrier::new(2));
        // Offers are made ahead of both, so that the two meet on slots over and over.
        let (ahead, from) = (SLOTS as u32 / 2, u32::MAX - ROUNDS / 2);
        let at = move |i: u32| from.wrapping_add(i);
        (0..ahead).for_each(|i| assert!(node.offer(at(i))));
        let runner = std::thread::spawn({
            let (claimed, start) = (claimed.clone(), start.clone());
            move || {
                start.wait();
                for i in 0..ROUNDS {
                    if engine.claim(at(i)) {
                        claimed.fetch_add(1, Ordering::Relaxed);
                        engine.finish();
                    }
                }
            }
        });
        start.wait();
        let mut revoked = 0;
        for i in 0..ROUNDS {
            revoked += usize::from(node.revoke(at(i)));
            if i + ahead < ROUNDS {
                assert!(node.offer(at(i + ahead)), "the slot was claimed or revoked");
            }
        }
        runner.join().unwrap();
        // Offers that the engine passed before they were made are left over; none was won twice.
        let left = node.unclaimed(at(ROUNDS)).len();
        assert_eq!(
            claimed.load(Ordering::Relaxed) + revoked + left,
            ROUNDS as usize
        );
        assert_eq!(left, 0);
        assert_eq!(node.running(), None);
    }

    #[test]
    fn what_is_no_board_is_refused() {
        let plain = std::fs::File::open("/dev/null").unwrap();
        assert!(matches!(
            ClaimBoard::from_fd(&plain),
            Err(ShmError::NotSealed)
        ));
        let small = platform::create(platform::page_bytes(), &[]).unwrap();
        assert!(matches!(
            ClaimBoard::from_fd(&small),
            Err(ShmError::SizeMismatch { actual_bytes, .. }) if actual_bytes == platform::page_bytes()
        ));
        let large = platform::create(board_bytes() + platform::page_bytes(), &[]).unwrap();
        assert!(ClaimBoard::from_fd(&large).is_err());
    }
}

/// `RUSTFLAGS="--cfg loom" cargo test -p broadleaf-shm --release model`
#[cfg(all(test, loom))]
mod model {
    use loom::sync::Arc;
    use loom::thread;

    use super::*;

    fn empty() -> Arc<Words> {
        Arc::new(Words {
            slots: [AtomicU32::new(0), AtomicU32::new(0)],
            running: Line(AtomicU64::new(0)),
            interrupt: Line(AtomicU64::new(0)),
        })
    }

    #[test]
    fn one_winner_and_a_claimed_task_is_seen_running_or_ended() {
        loom::model(|| {
            let board = empty();
            assert!(board.offer(5));
            let engine = thread::spawn({
                let board = board.clone();
                move || {
                    let won = board.claim(5);
                    let interrupted = won && board.take_interrupt();
                    if won {
                        board.finish();
                    }
                    (won, interrupted)
                }
            });
            let revoked = board.take(5);
            let asked = !revoked && board.request_interrupt(5);
            let ended = !revoked && !asked && board.running().is_none();
            let (won, interrupted) = engine.join().unwrap();
            assert!(won != revoked);
            assert!(
                revoked || asked || ended,
                "claimed, yet neither running nor ended"
            );
            assert!(asked || !interrupted);
            assert_eq!(board.running(), None);
            assert!(board.unclaimed(6).is_empty());
        });
    }

    #[test]
    fn an_interrupt_never_reaches_the_next_task() {
        loom::model(|| {
            let board = empty();
            board.offer(5);
            board.offer(6);
            let engine = thread::spawn({
                let board = board.clone();
                move || {
                    assert!(board.claim(5));
                    board.finish();
                    assert!(board.claim(6));
                    assert!(!board.take_interrupt());
                    board.finish();
                }
            });
            board.request_interrupt(5);
            engine.join().unwrap();
        });
    }
}
