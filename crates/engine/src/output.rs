//! What a task writes: it is sent line by line, and only looked for where a task can have written.

use std::sync::atomic::{AtomicU32, Ordering};

use crate::Nanos;

/// Longer text is sent in pieces.
const PIECE_BYTES: usize = 8 * 1024 * 1024;
/// Number of tasks without output after which the thread that empties the pipes is certainly asleep.
const AWAKE_TASKS: u32 = 1000;

/// The index of a stream in an array of both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    /// Descriptor 1.
    Stdout,
    /// Descriptor 2.
    Stderr,
}

impl Stream {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Stdout, Self::Stderr];

    /// The stream of a descriptor.
    pub fn of(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|s| s.number() == number)
    }

    /// Its descriptor, which is also its number in records.
    pub fn number(self) -> u8 {
        self as u8 + 1
    }
}

/// What becomes of what was written.
#[derive(Debug, PartialEq, Eq)]
pub struct Written<'a> {
    /// To be sent, if there is any: lines, or more than is held.
    pub complete: &'a [u8],
    /// Held, if there is any: it goes on with the unfinished line.
    pub held: &'a [u8],
    /// Length of the unfinished line before that.
    pub held_before: usize,
}

#[derive(Debug, Default)]
struct Line {
    bytes: Vec<u8>,
    /// Those that were sent, and are forgotten before the next are added.
    n_sent: usize,
}

impl Line {
    fn forget_sent(&mut self) {
        self.bytes.drain(..self.n_sent);
        self.n_sent = 0;
    }
}

/// Unfinished lines of Python's streams.
#[derive(Debug)]
pub struct Lines {
    lines: [Line; 2],
    max_held_bytes: usize,
}

impl Lines {
    /// Of which no more than this many bytes are held.
    pub fn new(max_held_bytes: usize) -> Self {
        Self {
            lines: Default::default(),
            max_held_bytes,
        }
    }

    /// The running task writes.
    pub fn write(&mut self, stream: Stream, bytes: &[u8]) -> Written<'_> {
        let line = &mut self.lines[stream as usize];
        line.forget_sent();
        let held_before = line.bytes.len();
        line.bytes.extend_from_slice(bytes);
        let end = if line.bytes.len() > self.max_held_bytes {
            line.bytes.len()
        } else {
            let newline = line.bytes.iter().rposition(|b| *b == b'\n');
            newline.map_or(0, |at| at + 1)
        };
        line.n_sent = end;
        let held_before = if end > 0 { 0 } else { held_before };
        Written {
            complete: &line.bytes[..end],
            held: &line.bytes[end + held_before..],
            held_before,
        }
    }

    /// The unfinished line of a stream, which is sent now or not at all; empty if there is none.
    pub fn take(&mut self, stream: Stream) -> &[u8] {
        let line = &mut self.lines[stream as usize];
        line.forget_sent();
        line.n_sent = line.bytes.len();
        &line.bytes
    }
}

/// The pieces in which text is sent.
pub fn pieces(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    text.chunks(PIECE_BYTES)
}

/// Whether a task that has ended can have written to a descriptor. Most are over in less time than a write takes, so the
/// system is not asked.
#[derive(Debug)]
pub struct WriteTimes {
    /// Time of the shortest write that wakes nobody.
    lone_ns: Nanos,
    /// Number of tasks that may still end while the thread that empties the pipes is awake.
    reader_awake: AtomicU32,
}

impl WriteTimes {
    /// On a machine where the shortest write takes this long.
    pub fn new(lone_ns: Nanos) -> Self {
        Self {
            lone_ns,
            reader_awake: AtomicU32::new(AWAKE_TASKS),
        }
    }

    /// A task ended after this time. A write that wakes the thread that empties the pipes takes several times as long as
    /// one that wakes nobody; we rely on twice as long.
    #[inline]
    pub fn can_have_written(&self, task_ns: Nanos) -> bool {
        let awake = self.reader_awake.load(Ordering::Relaxed);
        if awake == 0 {
            return task_ns >= self.lone_ns * 2;
        }
        self.reader_awake.store(awake - 1, Ordering::Relaxed);
        task_ns >= self.lone_ns
    }

    /// There was something in a pipe.
    pub fn on_found(&self) {
        self.reader_awake.store(AWAKE_TASKS, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_sent_and_their_rest_is_held() {
        let mut lines = Lines::new(8);
        let held = Written {
            complete: b"",
            held: b"ab",
            held_before: 0,
        };
        assert_eq!(lines.write(Stream::Stdout, b"ab"), held);
        let more = Written {
            complete: b"",
            held: b"c",
            held_before: 2,
        };
        assert_eq!(lines.write(Stream::Stdout, b"c"), more);
        let ended = Written {
            complete: b"abcd\n",
            held: b"e",
            held_before: 0,
        };
        assert_eq!(lines.write(Stream::Stdout, b"d\ne"), ended);
        assert_eq!(lines.take(Stream::Stderr), b"");
        assert_eq!(lines.take(Stream::Stdout), b"e");
        assert_eq!(lines.take(Stream::Stdout), b"", "once");
        assert_eq!(lines.write(Stream::Stdout, b"long line").complete.len(), 9);
    }

    #[test]
    fn the_system_is_asked_after_tasks_that_can_have_written() {
        let times = WriteTimes::new(100);
        assert!(!times.can_have_written(99));
        assert!(times.can_have_written(100), "the reader may be awake");
        for _ in 0..AWAKE_TASKS {
            times.can_have_written(1);
        }
        assert!(!times.can_have_written(199), "it sleeps, and was not woken");
        assert!(times.can_have_written(200));
        times.on_found();
        assert!(times.can_have_written(100));
    }
}
