//! Output of an engine's process: it goes to the client of the running task, or else into the engine's log.
//!
//! Descriptors 1 and 2 are pipes, which a thread empties; Python's streams come here directly. Both first take what is
//! already in the pipes, so that each stream keeps its order.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use broadleaf_net::LinkError;
use broadleaf_proto::task::OutputRecord;
use broadleaf_proto::{EngineId, FrameKind};
use broadleaf_shm::{HELD_BYTES, RecentBytes, UnsentOutput, flush_c_stdout, line_buffer_c_stdout};
use pyo3::prelude::*;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::time::Timespec;

use super::log::{Log, PIECE_BYTES};
use super::outgoing::Io;
use crate::clock::wall_ns;
use crate::payload::lock;

/// Number that means that no task is running.
const NO_TASK: u64 = u64::MAX;
/// Longer text is sent in pieces.
const TEXT_PIECE_BYTES: usize = 8 * 1024 * 1024;
/// Number of writes that are timed to find the shortest.
const TIMED_WRITES: usize = 16;
/// Number of tasks without output after which the thread that empties the pipes is certainly asleep.
const AWAKE_TASKS: u32 = 1000;

/// The index of a stream in an array of both.
#[derive(Clone, Copy)]
pub enum Stream {
    Stdout,
    Stderr,
}

const STREAMS: [Stream; 2] = [Stream::Stdout, Stream::Stderr];

impl Stream {
    /// The stream of a descriptor.
    pub fn of(number: u8) -> Option<Self> {
        match number {
            1 => Some(Self::Stdout),
            2 => Some(Self::Stderr),
            _ => None,
        }
    }

    /// Its descriptor, which is also its number in records.
    fn number(self) -> u8 {
        self as u8 + 1
    }
}

/// The pipes behind descriptors 1 and 2.
struct Pipes {
    ends: [OwnedFd; 2],
    /// An epoll descriptor of both.
    ready: OwnedFd,
    /// Time of the shortest write that wakes nobody.
    lone_write_ns: u64,
    /// Number of tasks that may still end while the thread that empties the pipes is awake.
    reader_awake: AtomicU32,
}

impl Pipes {
    fn open(numbers: [i32; 2]) -> io::Result<Self> {
        let mut options = File::options();
        options.read(true);
        options.custom_flags(rustix::fs::OFlags::NONBLOCK.bits() as i32);
        let ends = [reopen(numbers[0], &options)?, reopen(numbers[1], &options)?];
        let ready = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        for end in &ends {
            epoll::add(&ready, end, EventData::new_u64(0), EventFlags::IN)?;
        }
        let lone_write_ns = shortest_write_ns()?;
        Ok(Self {
            ends,
            ready,
            lone_write_ns,
            reader_awake: AtomicU32::new(AWAKE_TASKS),
        })
    }

    /// Whether a task that took this long can have written to a descriptor. A write that wakes the thread that empties
    /// the pipes takes several times as long as one that wakes nobody; we rely on twice as long.
    fn can_have_written(&self, task_ns: u64) -> bool {
        let awake = self.reader_awake.load(Ordering::Relaxed);
        if awake == 0 {
            return task_ns >= self.lone_write_ns * 2;
        }
        self.reader_awake.store(awake - 1, Ordering::Relaxed);
        task_ns >= self.lone_write_ns
    }

    /// Waits until there is something in one of them, for at most `longest` if that is given; returns whether there is.
    fn wait(&self, longest: Option<&Timespec>) -> bool {
        let mut events = [epoll::Event {
            flags: EventFlags::empty(),
            data: EventData::new_u64(0),
        }];
        epoll::wait(&self.ready, &mut events[..], longest) != Ok(0)
    }

    fn has_some(&self) -> bool {
        self.wait(Some(&Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        }))
    }
}

/// Our own duplicate of a descriptor of Python's.
fn reopen(number: i32, options: &OpenOptions) -> io::Result<OwnedFd> {
    Ok(options.open(format!("/proc/self/fd/{number}"))?.into())
}

/// Time of the shortest write into a pipe on this machine, by the clock that times tasks.
fn shortest_write_ns() -> io::Result<u64> {
    let (read_end, write_end) = pipe_with(PipeFlags::CLOEXEC)?;
    let mut shortest_ns = u64::MAX;
    for _ in 0..TIMED_WRITES {
        let started_ns = wall_ns();
        rustix::io::write(&write_end, b"x")?;
        shortest_ns = shortest_ns.min(wall_ns().saturating_sub(started_ns));
        rustix::io::read(&read_end, &mut [0; 1])?;
    }
    Ok(shortest_ns)
}

/// State that is written in order, one writer at a time.
struct Writing {
    /// Unfinished lines of Python's streams.
    held: [Vec<u8>; 2],
    piece: Vec<u8>,
    /// What the pipes are emptied into.
    log: Option<Log>,
    /// What is reported if this process dies.
    recent: Option<RecentBytes>,
    /// Output that the node finds if this process dies before it is sent.
    unsent: UnsentOutput,
}

/// The descriptors that Python passes if output is captured.
#[derive(FromPyObject)]
pub struct Captured {
    stdout_read: i32,
    stderr_read: i32,
    recent: i32,
    recent_bytes: u64,
    log_path: String,
}

/// See the module.
pub struct Output {
    io: Arc<Io>,
    engine: EngineId,
    current: AtomicU64,
    pipes: Option<Pipes>,
    writing: Mutex<Writing>,
    /// Whether part of a line is held.
    holds: AtomicBool,
    /// Whether more is queued than the node would find if this process died.
    is_at_risk: AtomicBool,
}

impl Output {
    /// Without `captured`, output outside of tasks goes to the descriptors.
    pub fn new(
        io: Arc<Io>,
        engine: EngineId,
        captured: Option<Captured>,
        unsent: UnsentOutput,
    ) -> io::Result<Self> {
        line_buffer_c_stdout();
        let (mut pipes, mut log, mut recent) = (None, None, None);
        if let Some(captured) = captured {
            pipes = Some(Pipes::open([captured.stdout_read, captured.stderr_read])?);
            log = Some(Log::open(&captured.log_path)?);
            let memfd = reopen(captured.recent, File::options().read(true).write(true))?;
            let mapped = RecentBytes::map(memfd, captured.recent_bytes);
            recent = Some(mapped.map_err(|error| io::Error::other(error.to_string()))?);
        }
        Ok(Self {
            io,
            engine,
            current: AtomicU64::new(NO_TASK),
            pipes,
            writing: Mutex::new(Writing {
                held: [Vec::new(), Vec::new()],
                piece: Vec::with_capacity(PIECE_BYTES),
                log,
                recent,
                unsent,
            }),
            holds: AtomicBool::new(false),
            is_at_risk: AtomicBool::new(false),
        })
    }

    /// The key of the running task.
    pub fn task(&self) -> Option<u64> {
        Some(self.current.load(Ordering::Acquire)).filter(|key| *key != NO_TASK)
    }

    /// From here on output belongs to this task. Returns the key of the previous task, on top of which it runs.
    pub fn start_task(&self, key: u64) -> Option<u64> {
        let before = self.task();
        self.current.store(key, Ordering::Release);
        before
    }

    /// Queues all output of the task, which took `task_ns`; from here on output belongs to the task `before`.
    pub fn end_task(&self, task_ns: u64, before: Option<u64>) {
        self.collect_after(task_ns);
        self.current
            .store(before.unwrap_or(NO_TASK), Ordering::Release);
    }

    /// Queues all output of the task so far.
    pub fn collect(&self) {
        self.collect_after(u64::MAX);
    }

    fn collect_after(&self, task_ns: u64) {
        if let Some(pipes) = &self.pipes
            // Most tasks are over in less time than a write takes, so they need not ask the system.
            && pipes.can_have_written(task_ns)
        {
            flush_c_stdout();
            let has_some = pipes.has_some();
            // Otherwise the other thread has just taken it and is still handling it.
            let mut writing = lock(&self.writing);
            if has_some {
                self.drain(&mut writing, true);
            }
        }
        if self.holds.load(Ordering::Acquire) {
            self.flush(None);
        }
    }

    /// Accepts what Python writes to a stream; it is sent line by line. Call `await_room` after this.
    pub fn write(&self, stream: Stream, bytes: &[u8]) -> Result<(), LinkError> {
        let mut writing = lock(&self.writing);
        if self.pipes.as_ref().is_some_and(Pipes::has_some) {
            self.drain(&mut writing, true);
        }
        let Some(task) = self.task() else {
            Self::write_outside(&mut writing, stream, bytes);
            return Ok(());
        };
        let mut held = std::mem::take(&mut writing.held[stream as usize]);
        let held_before = held.len();
        held.extend_from_slice(bytes);
        let end = if held.len() > HELD_BYTES {
            held.len()
        } else {
            held.iter()
                .rposition(|b| *b == b'\n')
                .map_or(0, |at| at + 1)
        };
        if end > 0 {
            if let Some(recent) = &mut writing.recent {
                recent.append(&held[..end]);
            }
            self.queue(&writing, task, stream, &held[..end]);
            held.drain(..end);
        }
        if !held.is_empty() {
            self.holds.store(true, Ordering::Release);
            let known = if end > 0 { 0 } else { held_before };
            (writing.unsent).hold(task, stream as usize, known, &held[known..]);
        }
        writing.held[stream as usize] = held;
        drop(writing);
        if end > 0 { self.io.on_output() } else { Ok(()) }
    }

    /// Queues the unfinished line of a stream, or of both; returns whether there was one.
    pub fn flush(&self, stream: Option<Stream>) -> bool {
        let mut writing = lock(&self.writing);
        if stream.is_none() {
            self.holds.store(false, Ordering::Release);
        }
        let mut had_one = false;
        for each in STREAMS {
            if stream.is_none_or(|wanted| wanted.number() == each.number()) {
                had_one |= self.flush_held(&mut writing, each);
            }
        }
        had_one
    }

    /// Sends a message of the running task unchanged.
    pub fn send_message(&self, bytes: &[u8]) -> Result<(), LinkError> {
        const MESSAGES: u8 = 3;
        if let Some(task) = self.task() {
            self.queue_record(&lock(&self.writing), task, MESSAGES, bytes);
        }
        self.io.on_output()
    }

    /// Empties the pipes as long as the process lives. No Python code runs here, so writers may hold the interpreter
    /// lock.
    pub fn run_reader(&self) {
        let Some(pipes) = &self.pipes else {
            return;
        };
        loop {
            if pipes.wait(None) {
                self.drain(&mut lock(&self.writing), false);
                // The main thread will notice a broken link. The log is written all the same.
                let _ = self.io.flush().and_then(|_| self.await_room());
            }
        }
    }

    /// Takes what is in the pipes, but no more than fits in them, so that an endless writer holds nobody up.
    fn drain(&self, writing: &mut Writing, all: bool) {
        let Some(pipes) = &self.pipes else {
            return;
        };
        for stream in STREAMS {
            let end = pipes.ends[stream as usize].as_fd();
            let mut taken_bytes = 0;
            while taken_bytes < PIECE_BYTES {
                let count = self.take(writing, stream, end);
                taken_bytes += count;
                if count == 0 || !all {
                    break;
                }
            }
        }
    }

    fn take(&self, writing: &mut Writing, stream: Stream, end: BorrowedFd<'_>) -> usize {
        let mut piece = std::mem::take(&mut writing.piece);
        if let Some(log) = &mut writing.log {
            log.take(end, &mut piece);
        }
        if !piece.is_empty() {
            if let Some(pipes) = &self.pipes {
                pipes.reader_awake.store(AWAKE_TASKS, Ordering::Relaxed);
            }
            // The held text was written earlier: anything in the pipe at that time would have been taken first.
            self.flush_held(writing, stream);
            if let Some(recent) = &mut writing.recent {
                recent.append(&piece);
            }
            if let Some(task) = self.task() {
                self.queue(writing, task, stream, &piece);
            }
        }
        let count = piece.len();
        writing.piece = piece;
        count
    }

    fn flush_held(&self, writing: &mut Writing, stream: Stream) -> bool {
        let held = std::mem::take(&mut writing.held[stream as usize]);
        if held.is_empty() {
            return false;
        }
        if let Some(task) = self.task() {
            if let Some(recent) = &mut writing.recent {
                recent.append(&held);
            }
            self.queue(writing, task, stream, &held);
        } else {
            writing.unsent.drop_held(stream as usize);
            Self::write_outside(writing, stream, &held);
        }
        true
    }

    fn write_outside(writing: &mut Writing, stream: Stream, bytes: &[u8]) {
        if let Some(recent) = &mut writing.recent {
            recent.append(bytes);
        }
        if let Some(log) = &mut writing.log {
            log.append(bytes);
            return;
        }
        let mut rest = bytes;
        while !rest.is_empty() {
            let written = match stream {
                Stream::Stdout => rustix::io::write(rustix::stdio::stdout(), rest),
                Stream::Stderr => rustix::io::write(rustix::stdio::stderr(), rest),
            };
            match written {
                Ok(count) => rest = &rest[count..],
                Err(rustix::io::Errno::INTR) => {}
                // A full disk, or a descriptor that the user has closed.
                Err(_) => return,
            }
        }
    }

    /// Whether `await_room` need not wait.
    pub fn has_room(&self) -> bool {
        !self.is_at_risk.load(Ordering::Acquire) && self.io.has_room()
    }

    /// Waits while much is queued, or anything that would be lost with this process.
    pub fn await_room(&self) -> Result<(), LinkError> {
        if self.is_at_risk.swap(false, Ordering::AcqRel) {
            self.io.drain()
        } else {
            self.io.await_room()
        }
    }

    fn queue(&self, writing: &Writing, task: u64, stream: Stream, bytes: &[u8]) {
        for piece in bytes.chunks(TEXT_PIECE_BYTES) {
            self.queue_record(writing, task, stream.number(), piece);
        }
    }

    fn queue_record(&self, writing: &Writing, task: u64, stream: u8, bytes: &[u8]) {
        let record = OutputRecord {
            task,
            engine: self.engine,
            stream,
            bytes: bytes::Bytes::copy_from_slice(bytes),
        };
        let mut link = lock(&self.io.link);
        if link.queued_bytes() == 0 {
            writing.unsent.clear();
        }
        let stream = usize::from(stream) - 1;
        if !writing.unsent.add(task, stream, &record.bytes) {
            self.is_at_risk.store(true, Ordering::Release);
        }
        link.append(FrameKind::Output, |frame| record.encode(frame));
    }
}
