//! Output of a process: what another process still has of it after its death, and the C library's buffer.

use std::ffi::{c_char, c_int, c_void};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::{copy_nonoverlapping, null_mut};
use std::sync::atomic::{AtomicU64, Ordering, compiler_fence};

use crate::claims::{board_bytes, memory_bytes};
use crate::platform::{self, Access, Region};
use crate::{Mapping, Segment, ShmError};

// Output that an engine has written and its node may not have received: in memory that the node still has when the
// engine is killed.
//
// Output is counted per stream, in bytes handed to the engine's link. The output here begins at a known count, so the
// node, which counts what arrives, knows which part never arrived.

/// Kinds of output: standard output, standard error, messages.
pub const OUTPUT_STREAMS: usize = 3;
/// Maximum length of an unfinished line that is kept.
pub const HELD_BYTES: usize = 4096;
/// Number of streams that have lines: the first ones.
const LINE_STREAMS: usize = 2;
/// Space for what is written between two passes of the thread that sends it: the end of the memory of a claim board.
pub const UNSENT_BYTES: usize = 24 * 1024;
const ENTRIES_BYTES: usize = UNSENT_BYTES - size_of::<Head>() - LINE_STREAMS * HELD_BYTES;
/// Task, begin and length of an entry, and its stream.
const ENTRY_HEAD_BYTES: usize = 4 * size_of::<u64>();

/// An unfinished line.
#[repr(C)]
#[derive(Debug)]
struct Held {
    task: AtomicU64,
    /// Where in its stream it begins: it has left since if the stream is past it.
    begin_bytes: AtomicU64,
    len_bytes: AtomicU64,
}

/// The beginning of the memory. The unfinished lines' bytes follow, then the entries.
#[repr(C)]
#[derive(Debug)]
struct Head {
    /// Bytes of entries.
    len_bytes: AtomicU64,
    /// How much of each stream was handed to the link.
    handed_bytes: [AtomicU64; OUTPUT_STREAMS],
    held: [Held; LINE_STREAMS],
}

/// A piece of output that did not arrive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnsentPiece {
    /// The task that wrote it, as the engine knows it.
    pub task: u64,
    /// From 0.
    pub stream: usize,
    /// What was written.
    pub bytes: Vec<u8>,
}

/// See the module. One thread at a time writes, and the node reads once the engine's link has closed.
#[derive(Debug)]
pub struct UnsentOutput {
    region: Region,
}

impl UnsentOutput {
    /// For an engine: in the memory of its claim board.
    ///
    /// # Errors
    /// [`ShmError::NotSealed`] or [`ShmError::SizeMismatch`] if it is not such memory, [`ShmError::System`] if
    /// it cannot be mapped.
    pub fn of_engine(board: impl AsFd) -> Result<Self, ShmError> {
        Self::map(board.as_fd(), Access::SharedWrite)
    }

    /// For a node: the same, for reading.
    ///
    /// # Errors
    /// As [`UnsentOutput::of_engine`].
    pub fn of_node(board: impl AsFd) -> Result<Self, ShmError> {
        Self::map(board.as_fd(), Access::SharedRead)
    }

    fn map(board: BorrowedFd<'_>, access: Access) -> Result<Self, ShmError> {
        let actual_bytes = platform::sealed_size(board)?;
        let claimed_bytes = memory_bytes();
        if actual_bytes != claimed_bytes {
            return Err(ShmError::SizeMismatch {
                claimed_bytes,
                actual_bytes,
            });
        }
        let region = Region::map(board, access, board_bytes(), UNSENT_BYTES as u64)?;
        Ok(Self { region })
    }

    #[expect(
        clippy::cast_ptr_alignment,
        reason = "a region starts on a page boundary"
    )]
    fn head(&self) -> &Head {
        // SAFETY: the region is page-aligned, larger than `Head`, of sealed size, and lives as long as `self`; every
        // bit pattern is a valid `Head`, and all access is atomic.
        unsafe { &*self.region.as_ptr().cast::<Head>() }
    }

    fn write(&self, at: usize, bytes: &[u8]) {
        assert!(
            at <= UNSENT_BYTES && bytes.len() <= UNSENT_BYTES - at,
            "invariant: what is written lies in the memory"
        );
        // SAFETY: the range lies in the region, which an engine's side maps writable. Only this process writes, one
        // thread at a time, and the node copies the data before it looks at it.
        unsafe { copy_nonoverlapping(bytes.as_ptr(), self.region.as_ptr().add(at), bytes.len()) };
    }

    /// Engine: begins or continues an unfinished line, of which `before_bytes` are already here. The whole line is no
    /// longer than [`HELD_BYTES`].
    pub fn hold(&self, task: u64, stream: usize, before_bytes: usize, more: &[u8]) {
        let held = &self.head().held[stream];
        if before_bytes == 0 {
            held.len_bytes.store(0, Ordering::Release);
            held.task.store(task, Ordering::Relaxed);
            let handed_bytes = self.head().handed_bytes[stream].load(Ordering::Relaxed);
            held.begin_bytes.store(handed_bytes, Ordering::Release);
        }
        self.write(held_offset(stream) + before_bytes, more);
        // Set last: a process that dies before this has not written it.
        let len_bytes = (before_bytes + more.len()) as u64;
        held.len_bytes.store(len_bytes, Ordering::Release);
    }

    /// Engine: an unfinished line was written elsewhere, and is not to be reported.
    pub fn drop_held(&self, stream: usize) {
        self.head().held[stream]
            .len_bytes
            .store(0, Ordering::Release);
    }

    /// Engine: the kernel now has everything that was handed to the link, so it outlives this process.
    pub fn clear(&self) {
        self.head().len_bytes.store(0, Ordering::Release);
    }

    /// Engine: `bytes` are about to be handed to the link; they begin with the held line of that stream, if there is
    /// one. False if they do not fit here and so may be lost.
    pub fn add(&self, task: u64, stream: usize, bytes: &[u8]) -> bool {
        let head = self.head();
        let begin_bytes = head.handed_bytes[stream].load(Ordering::Relaxed);
        let len_bytes = head.len_bytes.load(Ordering::Relaxed) as usize;
        let fits = bytes.len() + ENTRY_HEAD_BYTES <= ENTRIES_BYTES.saturating_sub(len_bytes);
        if fits {
            let offset = entries_offset() + len_bytes;
            let numbers = [task, begin_bytes, bytes.len() as u64, stream as u64];
            for (number, at) in numbers.iter().zip((offset..).step_by(size_of::<u64>())) {
                self.write(at, &number.to_le_bytes());
            }
            self.write(offset + ENTRY_HEAD_BYTES, bytes);
            let len_bytes = len_bytes + ENTRY_HEAD_BYTES + bytes.len();
            head.len_bytes.store(len_bytes as u64, Ordering::Release);
        }
        head.handed_bytes[stream].store(begin_bytes + bytes.len() as u64, Ordering::Release);
        fits
    }

    /// Node: the output here beyond the `arrived_bytes` of each stream, in the order in which it was written.
    ///
    /// It comes from the engine: lengths are checked, and the tasks must be looked up among those it was given.
    pub fn missing(&self, arrived_bytes: &[u64; OUTPUT_STREAMS]) -> Vec<UnsentPiece> {
        let mut memory = vec![0; UNSENT_BYTES];
        // SAFETY: the region is that long and readable. An engine that is still alive may be writing; then the copied
        // bytes are arbitrary, as they may be anyway.
        unsafe {
            copy_nonoverlapping(self.region.as_ptr(), memory.as_mut_ptr(), UNSENT_BYTES);
        }
        missing(&memory, arrived_bytes)
    }
}

const fn held_offset(stream: usize) -> usize {
    size_of::<Head>() + stream * HELD_BYTES
}

const fn entries_offset() -> usize {
    held_offset(LINE_STREAMS)
}

fn number(memory: &[u8], at: usize) -> Option<u64> {
    let bytes = memory.get(at..at.checked_add(size_of::<u64>())?)?;
    Some(u64::from_le_bytes(bytes.try_into().ok()?))
}

/// See [`UnsentOutput::missing`].
fn missing(memory: &[u8], arrived_bytes: &[u64; OUTPUT_STREAMS]) -> Vec<UnsentPiece> {
    let mut pieces = Vec::new();
    let mut arrived_bytes = *arrived_bytes;
    let mut take = |task, stream: usize, begin_bytes: u64, bytes: &[u8]| {
        let arrived = &mut arrived_bytes[stream];
        let known = arrived.saturating_sub(begin_bytes);
        *arrived = (*arrived).max(begin_bytes.saturating_add(bytes.len() as u64));
        // A message is only useful as a whole.
        let known = usize::try_from(known).unwrap_or(usize::MAX);
        let is_cut = stream >= LINE_STREAMS && known > 0;
        if let Some(bytes) = bytes.get(known..).filter(|b| !b.is_empty() && !is_cut) {
            let bytes = bytes.to_vec();
            pieces.push(UnsentPiece {
                task,
                stream,
                bytes,
            });
        }
    };
    let len_bytes = number(memory, 0).unwrap_or(0);
    let len_bytes = usize::try_from(len_bytes).map_or(ENTRIES_BYTES, |len| len.min(ENTRIES_BYTES));
    let mut entries = memory
        .get(entries_offset()..entries_offset() + len_bytes)
        .unwrap_or(&[]);
    while let (Some(task), Some(begin_bytes), Some(len_bytes), Some(stream)) = (
        number(entries, 0),
        number(entries, 8),
        number(entries, 16),
        number(entries, 24),
    ) {
        let rest = &entries[ENTRY_HEAD_BYTES..];
        let (Ok(len), Ok(stream)) = (usize::try_from(len_bytes), usize::try_from(stream)) else {
            break;
        };
        if len > rest.len() || stream >= OUTPUT_STREAMS {
            break;
        }
        take(task, stream, begin_bytes, &rest[..len]);
        entries = &rest[len..];
    }
    for stream in 0..LINE_STREAMS {
        let at = std::mem::offset_of!(Head, held) + stream * size_of::<Held>();
        let handed_at = std::mem::offset_of!(Head, handed_bytes) + stream * size_of::<u64>();
        let numbers = [at, at + 8, at + 16, handed_at].map(|at| number(memory, at).unwrap_or(0));
        let [task, begin_bytes, len_bytes, handed_bytes] = numbers;
        let len = usize::try_from(len_bytes).map_or(0, |len| len.min(HELD_BYTES));
        let offset = held_offset(stream);
        // A line that has left since is part of what was handed over.
        if begin_bytes >= handed_bytes
            && let Some(bytes) = memory.get(offset..offset + len)
        {
            take(task, stream, begin_bytes, bytes);
        }
    }
    pieces
}

// The latest output of a process, in memory that another process still has after this one died.

/// The total number of bytes written, little-endian; byte `n` is at `n` modulo the size of the rest.
const HEAD_BYTES: usize = size_of::<u64>();

/// The writer's view of such memory.
#[derive(Debug)]
pub struct RecentBytes {
    memory: Mapping,
    written_bytes: u64,
}

impl RecentBytes {
    /// Memory of `len_bytes`, all zero, behind a memfd of sealed size that nobody else writes.
    ///
    /// # Errors
    /// [`ShmError`] if it is not such a memfd, has no space after its header, or cannot be mapped.
    pub fn map(memfd: OwnedFd, len_bytes: u64) -> Result<Self, ShmError> {
        let segment = Segment::from_fd(memfd, len_bytes)?;
        segment.map_readonly(HEAD_BYTES as u64, 1)?;
        Ok(Self {
            memory: segment.map_shared(0, len_bytes)?,
            written_bytes: 0,
        })
    }

    /// Stores `bytes`, overwriting the oldest. Bytes that a process was storing as it died are lost.
    pub fn append(&mut self, bytes: &[u8]) {
        let room_bytes = self.memory.len() - HEAD_BYTES;
        let newest = &bytes[bytes.len().saturating_sub(room_bytes)..];
        let skipped = (bytes.len() - newest.len()) as u64;
        let start = ((self.written_bytes + skipped) % room_bytes as u64) as usize;
        let (first, second) = newest.split_at(newest.len().min(room_bytes - start));
        self.written_bytes += bytes.len() as u64;
        let head = self.written_bytes.to_le_bytes();
        let memory = self.memory.as_mut_ptr();
        // SAFETY: the view is writable, starts on a page and has `HEAD_BYTES + room_bytes`; `start` and the length of
        // either part lie in the room. Another process reads by system calls alone, and only this one writes.
        unsafe {
            let room = memory.add(HEAD_BYTES);
            copy_nonoverlapping(first.as_ptr(), room.add(start), first.len());
            copy_nonoverlapping(second.as_ptr(), room, second.len());
            // The number is written last: a process that dies in between has not stored these bytes.
            compiler_fence(Ordering::Release);
            copy_nonoverlapping(head.as_ptr(), memory, HEAD_BYTES);
        }
    }
}

// The C library's buffer of its standard output: memory of this process that no system call can see.

/// `_IOLBF` in every C library for Linux.
const LINE_BUFFERED: c_int = 1;

unsafe extern "C" {
    /// A `FILE *`.
    static stdout: *mut c_void;
    fn fflush(stream: *mut c_void) -> c_int;
    fn setvbuf(stream: *mut c_void, buffer: *mut c_char, mode: c_int, size: usize) -> c_int;
}

/// Makes C output leave line by line, as on a terminal.
pub fn line_buffer_c_stdout() {
    // SAFETY: the C library sets `stdout` before `main`; without a buffer of ours it goes on using its own.
    unsafe { setvbuf(stdout, null_mut(), LINE_BUFFERED, 0) };
}

/// Flushes an unfinished line of C code to descriptor 1.
pub fn flush_c_stdout() {
    // SAFETY: the C library sets `stdout` before `main`, and locks it here itself.
    unsafe { fflush(stdout) };
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::io::pread;

    fn pair() -> (UnsentOutput, UnsentOutput) {
        let (_, fd) = crate::ClaimBoard::create().unwrap();
        (
            UnsentOutput::of_node(&fd).unwrap(),
            UnsentOutput::of_engine(&fd).unwrap(),
        )
    }

    fn piece(task: u64, stream: usize, bytes: &[u8]) -> UnsentPiece {
        let bytes = bytes.to_vec();
        UnsentPiece {
            task,
            stream,
            bytes,
        }
    }

    #[test]
    fn what_arrived_is_not_missing() {
        let (node, engine) = pair();
        assert_eq!(node.missing(&[0; 3]), []);
        assert!(engine.add(7, 0, b"one\n"));
        assert!(engine.add(7, 1, b"error\n"));
        assert!(engine.add(8, 0, b"two\n"));
        assert!(engine.add(8, 2, b"picture"));
        let all = [
            piece(7, 0, b"one\n"),
            piece(7, 1, b"error\n"),
            piece(8, 0, b"two\n"),
            piece(8, 2, b"picture"),
        ];
        assert_eq!(node.missing(&[0; 3]), all);
        assert_eq!(node.missing(&[4, 0, 0]), all[1..]);
        assert_eq!(
            node.missing(&[6, 6, 1]),
            [piece(8, 0, b"o\n")],
            "half a message is none"
        );
        assert_eq!(node.missing(&[8, 6, 7]), []);
        engine.clear();
        assert_eq!(node.missing(&[0; 3]), []);
        assert!(engine.add(9, 0, b"three\n"));
        assert_eq!(node.missing(&[8, 6, 7]), [piece(9, 0, b"three\n")]);
    }

    #[test]
    fn an_unfinished_line_is_missing_until_it_is_handed_over() {
        let (node, engine) = pair();
        engine.add(1, 0, b"before\n");
        engine.hold(1, 0, 0, b"un");
        engine.hold(1, 0, 2, b"finished");
        assert_eq!(
            node.missing(&[0; 3]),
            [piece(1, 0, b"before\n"), piece(1, 0, b"unfinished")]
        );
        engine.add(1, 0, b"unfinished, no more\n");
        assert_eq!(
            node.missing(&[7, 0, 0]),
            [piece(1, 0, b"unfinished, no more\n")]
        );
        engine.hold(2, 0, 0, b"next");
        engine.clear();
        assert_eq!(node.missing(&[27, 0, 0]), [piece(2, 0, b"next")]);
        engine.drop_held(0);
        assert_eq!(node.missing(&[27, 0, 0]), []);
    }

    #[test]
    fn what_does_not_fit_is_counted_all_the_same() {
        let (node, engine) = pair();
        let long = vec![b'x'; ENTRIES_BYTES - ENTRY_HEAD_BYTES];
        assert!(engine.add(1, 0, &long));
        assert!(!engine.add(1, 0, b"more\n"));
        engine.clear();
        assert!(engine.add(1, 0, b"last\n"));
        let arrived = long.len() as u64 + 5;
        assert_eq!(node.missing(&[arrived, 0, 0]), [piece(1, 0, b"last\n")]);
        assert!(!engine.add(1, 0, &vec![b'x'; UNSENT_BYTES]));
    }

    #[test]
    fn whatever_an_engine_leaves_there_is_read() {
        let mut memory = vec![0_u8; UNSENT_BYTES];
        let mut state = 1_u64;
        for _ in 0..2000 {
            for byte in memory.iter_mut().step_by(3) {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                // Small numbers get furthest.
                *byte = if state.is_multiple_of(3) {
                    state as u8
                } else {
                    0
                };
            }
            memory[..8].copy_from_slice(&(state % UNSENT_BYTES as u64).to_le_bytes());
            let pieces = missing(&memory, &[state % 64, 0, state]);
            assert!(
                pieces.iter().map(|p| p.bytes.len()).sum::<usize>() <= UNSENT_BYTES,
                "no byte is told twice"
            );
        }
        assert_eq!(missing(&memory[..40], &[0; 3]), []);
    }

    #[test]
    fn what_is_no_such_memory_is_refused() {
        let small = platform::create(platform::page_bytes(), &[]).unwrap();
        assert!(matches!(
            UnsentOutput::of_node(&small),
            Err(ShmError::SizeMismatch { .. })
        ));
    }

    #[test]
    fn the_newest_bytes_are_kept() {
        const ROOM: usize = 4096 - HEAD_BYTES;
        let segment = Segment::create_open(4096).unwrap();
        let memfd = segment.fd().try_clone_to_owned().unwrap();
        let mut recent = RecentBytes::map(memfd, 4096).unwrap();
        let mut all: Vec<u8> = Vec::new();
        for len in [0, 1, 7, 1000, 3000, 80, ROOM, ROOM + 1, 10_000, 3] {
            let bytes: Vec<u8> = (0..len).map(|at| (at * 7 + len) as u8).collect();
            recent.append(&bytes);
            all.extend(&bytes);
            let mut memory = vec![0; 4096];
            assert_eq!(pread(segment.fd(), &mut memory[..], 0), Ok(4096));
            let (head, room) = memory.split_at(HEAD_BYTES);
            assert_eq!(head, (all.len() as u64).to_le_bytes());
            let kept = all.len().min(ROOM);
            for at in all.len() - kept..all.len() {
                assert_eq!(room[at % ROOM], all[at], "byte {at} of {}", all.len());
            }
        }
    }

    #[test]
    fn memory_without_room_is_refused() {
        let segment = Segment::create_open(HEAD_BYTES as u64).unwrap();
        let memfd = segment.fd().try_clone_to_owned().unwrap();
        assert!(RecentBytes::map(memfd, HEAD_BYTES as u64).is_err());
    }
}
