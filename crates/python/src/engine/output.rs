//! Output of an engine's process: it goes to the client of the running task, or else into the engine's log.
//!
//! Descriptors 1 and 2 are pipes, which a thread empties; Python's streams come here directly. Both first take what is
//! already in the pipes, so that each stream keeps its order.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use broadleaf_engine::{Lines, Stack, Stream, WriteTimes, pieces};
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

/// Number of writes that are timed to find the shortest.
const TIMED_WRITES: usize = 16;
/// The pipes behind descriptors 1 and 2.
struct Pipes {
    ends: [OwnedFd; 2],
    /// An epoll descriptor of both.
    ready: OwnedFd,
    write_times: WriteTimes,
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
        Ok(Self {
            ends,
            ready,
            write_times: WriteTimes::new(shortest_write_ns()?),
        })
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
    lines: Lines,
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
    stack: &'static Stack,
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
        stack: &'static Stack,
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
            stack,
            pipes,
            writing: Mutex::new(Writing {
                lines: Lines::new(HELD_BYTES),
                piece: Vec::with_capacity(PIECE_BYTES),
                log,
                recent,
                unsent,
            }),
            holds: AtomicBool::new(false),
            is_at_risk: AtomicBool::new(false),
        })
    }

    /// Whom output belongs to.
    fn task(&self) -> Option<u64> {
        self.stack.task().map(|task| task.0)
    }

    /// Queues all output of the task so far.
    pub fn collect(&self) {
        self.collect_after(u64::MAX);
    }

    /// The same at the end of one that took `task_ns`.
    pub fn collect_after(&self, task_ns: u64) {
        if let Some(pipes) = &self.pipes
            && pipes.write_times.can_have_written(task_ns)
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
        let mut guard = lock(&self.writing);
        let writing = &mut *guard;
        if self.pipes.as_ref().is_some_and(Pipes::has_some) {
            self.drain(writing, true);
        }
        let Some(task) = self.task() else {
            Self::write_outside(&mut writing.recent, &mut writing.log, stream, bytes);
            return Ok(());
        };
        let written = writing.lines.write(stream, bytes);
        let is_queued = !written.complete.is_empty();
        if is_queued {
            if let Some(recent) = &mut writing.recent {
                recent.append(written.complete);
            }
            self.queue(&writing.unsent, task, stream, written.complete);
        }
        if !written.held.is_empty() {
            self.holds.store(true, Ordering::Release);
            (writing.unsent).hold(task, stream as usize, written.held_before, written.held);
        }
        drop(guard);
        if is_queued {
            self.io.on_output()
        } else {
            Ok(())
        }
    }

    /// Queues the unfinished line of a stream, or of both; returns whether there was one.
    pub fn flush(&self, stream: Option<Stream>) -> bool {
        let mut writing = lock(&self.writing);
        if stream.is_none() {
            self.holds.store(false, Ordering::Release);
        }
        let mut had_one = false;
        for each in Stream::ALL {
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
            self.queue_record(&lock(&self.writing).unsent, task, MESSAGES, bytes);
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
        for stream in Stream::ALL {
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
                pipes.write_times.on_found();
            }
            // The held text was written earlier: anything in the pipe at that time would have been taken first.
            self.flush_held(writing, stream);
            if let Some(recent) = &mut writing.recent {
                recent.append(&piece);
            }
            if let Some(task) = self.task() {
                self.queue(&writing.unsent, task, stream, &piece);
            }
        }
        let count = piece.len();
        writing.piece = piece;
        count
    }

    fn flush_held(&self, writing: &mut Writing, stream: Stream) -> bool {
        let held = writing.lines.take(stream);
        if held.is_empty() {
            return false;
        }
        if let Some(task) = self.task() {
            if let Some(recent) = &mut writing.recent {
                recent.append(held);
            }
            self.queue(&writing.unsent, task, stream, held);
        } else {
            writing.unsent.drop_held(stream as usize);
            Self::write_outside(&mut writing.recent, &mut writing.log, stream, held);
        }
        true
    }

    fn write_outside(
        recent: &mut Option<RecentBytes>,
        log: &mut Option<Log>,
        stream: Stream,
        bytes: &[u8],
    ) {
        if let Some(recent) = recent {
            recent.append(bytes);
        }
        if let Some(log) = log {
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

    fn queue(&self, unsent: &UnsentOutput, task: u64, stream: Stream, bytes: &[u8]) {
        for piece in pieces(bytes) {
            self.queue_record(unsent, task, stream.number(), piece);
        }
    }

    fn queue_record(&self, unsent: &UnsentOutput, task: u64, stream: u8, bytes: &[u8]) {
        let record = OutputRecord {
            task,
            engine: self.engine,
            stream,
            bytes: bytes::Bytes::copy_from_slice(bytes),
        };
        let mut link = lock(&self.io.link);
        if link.queued_bytes() == 0 {
            unsent.clear();
        }
        let stream = usize::from(stream) - 1;
        if !unsent.add(task, stream, &record.bytes) {
            self.is_at_risk.store(true, Ordering::Release);
        }
        link.append(FrameKind::Output, |frame| record.encode(frame));
    }
}
