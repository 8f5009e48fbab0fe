//! The board on which an engine claims the tasks its node has offered, and the node takes offers
//! back: two processes, no system call, exactly one winner.
//!
//! A slot holds zero or a tag: a bit that says "offered", and the part of the offer's number that the slot's position
//! does not imply. So the whole number can be recovered after the engine's death.

use std::os::fd::{AsFd, OwnedFd};

use broadleaf_proto::limits::{CLAIM_SLOTS, MAX_NESTING};
#[cfg(loom)]
use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering};
#[cfg(not(loom))]
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::ShmError;
use crate::lane::Place;
use crate::output::UNSENT_BYTES;
use crate::platform::{self, Access, Region};

/// Number of unfinished tasks that an engine may have begun; all but the last wait for others.
const LEVELS: usize = if cfg!(loom) {
    2
} else {
    MAX_NESTING as usize + 1
};
/// Number of slots on a board; small in the model, which visits all states.
const SLOTS: usize = if cfg!(loom) { 2 } else { CLAIM_SLOTS };
const OFFERED: u32 = 1 << 31;
const _: () = assert!(SLOTS.is_power_of_two() && SLOTS >= 2 && u32::MAX as usize / SLOTS < 1 << 31);

fn slot_and_tag(offer: u32) -> (usize, u32) {
    (offer as usize % SLOTS, OFFERED | (offer / SLOTS as u32))
}

/// What the engine has begun at one level of its stack, on a cache line of its own.
#[repr(C, align(64))]
#[derive(Debug)]
struct Level {
    /// The offer that was claimed and has not finished plus one, or 0.
    running: AtomicU64,
    /// The offer to interrupt plus one, or 0.
    interrupt: AtomicU64,
}

/// The board's memory. All zeros mean an empty board.
#[repr(C)]
#[derive(Debug)]
struct Words {
    slots: [AtomicU32; SLOTS],
    /// On the page of the first level, which every task uses.
    place: Place,
    levels: [Level; LEVELS],
}

impl Words {
    fn offer(&self, offer: u32) -> bool {
        let (slot, tag) = slot_and_tag(offer);
        self.slots[slot]
            .compare_exchange(0, tag, Ordering::Release, Ordering::Relaxed)
            .is_ok()
    }

    fn claim(&self, level: usize, offer: u32) -> bool {
        // `running` is set first, then the claim: whoever finds the slot empty sees what runs, so a task is never out
        // of the slot without being visible to `request_interrupt`.
        let running = &self.levels[level].running;
        running.store(u64::from(offer) + 1, Ordering::Relaxed);
        let won = self.take(offer);
        if !won {
            running.store(0, Ordering::Release);
        }
        won
    }

    fn take(&self, offer: u32) -> bool {
        let (slot, tag) = slot_and_tag(offer);
        self.slots[slot]
            .compare_exchange(tag, 0, Ordering::AcqRel, Ordering::Acquire)
            .is_ok()
    }

    fn finish(&self, level: usize) {
        self.levels[level].running.store(0, Ordering::Release);
    }

    fn is_offered(&self, offer: u32) -> bool {
        let (slot, tag) = slot_and_tag(offer);
        self.slots[slot].load(Ordering::Acquire) == tag
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

    fn running(&self) -> Vec<u32> {
        let words = (self.levels.iter()).map(|level| level.running.load(Ordering::Acquire));
        let offers = words.filter_map(|word| u32::try_from(word.checked_sub(1)?).ok());
        // Still offered: the engine is about to claim it, or died doing so; it has not started.
        offers.filter(|offer| !self.is_offered(*offer)).collect()
    }

    fn level_of(&self, word: u64) -> Option<&Level> {
        self.levels
            .iter()
            .find(|level| level.running.load(Ordering::Acquire) == word)
    }

    fn request_interrupt(&self, offer: u32) -> bool {
        let word = u64::from(offer) + 1;
        let level = self.level_of(word);
        if let Some(level) = level {
            level.interrupt.store(word, Ordering::Release);
        }
        level.is_some()
    }

    fn is_interrupt_open(&self, offer: u32) -> bool {
        let word = u64::from(offer) + 1;
        self.level_of(word)
            .is_some_and(|level| level.interrupt.load(Ordering::Acquire) == word)
    }

    fn is_interrupt_requested(&self, level: usize) -> bool {
        let level = &self.levels[level];
        let running = level.running.load(Ordering::Relaxed);
        running != 0 && level.interrupt.load(Ordering::Acquire) == running
    }

    fn take_interrupt(&self, level: usize) -> bool {
        let level = &self.levels[level];
        let running = level.running.load(Ordering::Relaxed);
        running != 0
            && level
                .interrupt
                .compare_exchange(running, 0, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok()
    }
}

/// One engine's board: [`CLAIM_SLOTS`] offers, the offers that run, and requests to interrupt them.
///
/// An engine runs several offers if one of its tasks waits for others: each further one runs one level higher, while
/// all those below wait.
///
/// Node and engine map the same pages. The node offers, revokes and asks for interrupts; the engine claims, finishes
/// and takes interrupts, from one thread (a signal handler on it included). What the node reads comes from the engine:
/// the node must look up offers among those it made.
#[derive(Debug)]
pub struct ClaimBoard {
    region: Region,
}

impl ClaimBoard {
    /// An empty board, and the descriptor that gives it to the node. The memory after it also has room for an
    /// [`UnsentOutput`](crate::UnsentOutput).
    ///
    /// # Errors
    /// [`ShmError::OutOfMemory`] or [`ShmError::System`].
    pub fn create() -> Result<(Self, OwnedFd), ShmError> {
        let fd = platform::create(memory_bytes(), &[])?;
        let region = Region::map(fd.as_fd(), Access::SharedWrite, 0, board_bytes())?;
        Ok((Self { region }, fd))
    }

    /// The board behind a received descriptor, which is not needed afterwards.
    ///
    /// # Errors
    /// [`ShmError::NotSealed`] or [`ShmError::SizeMismatch`] if it is not a board.
    pub fn from_fd(fd: impl AsFd) -> Result<Self, ShmError> {
        let actual_bytes = platform::sealed_size(fd.as_fd())?;
        if actual_bytes != memory_bytes() {
            return Err(ShmError::SizeMismatch {
                claimed_bytes: memory_bytes(),
                actual_bytes,
            });
        }
        let region = Region::map(fd.as_fd(), Access::SharedWrite, 0, board_bytes())?;
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

    /// Node: publishes an offer, before the assignment is sent. Returns false and publishes nothing while the slot
    /// still holds the offer [`CLAIM_SLOTS`] positions earlier.
    pub fn offer(&self, offer: u32) -> bool {
        self.words().offer(offer)
    }

    /// Number of levels of a board.
    pub const LEVELS: usize = LEVELS;

    /// Engine: claims an offer. True if the engine may run it; it then counts as running at this level.
    pub fn claim(&self, level: usize, offer: u32) -> bool {
        self.words().claim(level, offer)
    }

    /// Engine: the task claimed at this level has ended.
    pub fn finish(&self, level: usize) {
        self.words().finish(level);
    }

    /// The engine's place on its host's lane.
    pub fn place(&self) -> &Place {
        &self.words().place
    }

    /// Whether an offer is neither claimed nor revoked.
    pub fn is_offered(&self, offer: u32) -> bool {
        self.words().is_offered(offer)
    }

    /// Node: takes an offer back. True if the engine can no longer claim it; false if the engine has claimed it (it
    /// runs, or has ended and its result is on its way) or it was never offered.
    pub fn revoke(&self, offer: u32) -> bool {
        self.words().take(offer)
    }

    /// Offers that are neither claimed nor revoked, oldest first, given the number of the next offer. Exact once the
    /// engine is gone.
    pub fn unclaimed(&self, next_offer: u32) -> Vec<u32> {
        self.words().unclaimed(next_offer)
    }

    /// The offers that the engine has claimed and not finished, by level. After its death, these are the tasks that it
    /// died in.
    pub fn running(&self) -> Vec<u32> {
        self.words().running()
    }

    /// Node: asks to interrupt that offer. True if it is running; then signal the engine. If `revoke` returned false,
    /// false here means that the task has ended.
    pub fn request_interrupt(&self, offer: u32) -> bool {
        self.words().request_interrupt(offer)
    }

    /// Node: whether an interrupt was requested for that offer, which still runs and has not taken it.
    pub fn is_interrupt_open(&self, offer: u32) -> bool {
        self.words().is_interrupt_open(offer)
    }

    /// Engine, from its signal handler: whether the task that runs at this level is to be interrupted.
    pub fn is_interrupt_requested(&self, level: usize) -> bool {
        self.words().is_interrupt_requested(level)
    }

    /// Engine, from its signal handler: true once per request, and only while the requested task is still the one that
    /// runs at this level.
    pub fn take_interrupt(&self, level: usize) -> bool {
        self.words().take_interrupt(level)
    }
}

/// Size of a board: whole pages.
pub(crate) fn board_bytes() -> u64 {
    (size_of::<Words>() as u64).next_multiple_of(platform::page_bytes())
}

/// Size of the memory that an engine shares with its node: the board, and its unsent output.
pub(crate) fn memory_bytes() -> u64 {
    board_bytes() + UNSENT_BYTES as u64
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

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
        let large = platform::create(memory_bytes() + platform::page_bytes(), &[]).unwrap();
        assert!(ClaimBoard::from_fd(&large).is_err());
    }
}

/// `make test-loom`
#[cfg(all(test, loom))]
mod model {
    use loom::sync::Arc;
    use loom::thread;

    use super::*;

    fn empty_level() -> Level {
        Level {
            running: AtomicU64::new(0),
            interrupt: AtomicU64::new(0),
        }
    }

    fn empty() -> Arc<Words> {
        Arc::new(Words {
            slots: [AtomicU32::new(0), AtomicU32::new(0)],
            place: Place::empty(),
            levels: [empty_level(), empty_level()],
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
                    let won = board.claim(0, 5);
                    let interrupted = won && board.take_interrupt(0);
                    if won {
                        board.finish(0);
                    }
                    (won, interrupted)
                }
            });
            let revoked = board.take(5);
            let asked = !revoked && board.request_interrupt(5);
            let ended = !revoked && !asked && board.running().is_empty();
            let (won, interrupted) = engine.join().unwrap();
            assert!(won != revoked);
            assert!(
                revoked || asked || ended,
                "claimed, yet neither running nor ended"
            );
            assert!(asked || !interrupted);
            assert!(board.running().is_empty());
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
                    assert!(board.claim(0, 5));
                    board.finish(0);
                    assert!(board.claim(0, 6));
                    assert!(!board.take_interrupt(0));
                    board.finish(0);
                }
            });
            board.request_interrupt(5);
            engine.join().unwrap();
        });
    }
}
