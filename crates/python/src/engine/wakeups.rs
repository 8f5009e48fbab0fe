//! SIGINT that somebody sends to an engine's process, such as `kill -INT`.
//!
//! Python's handler in C notes a signal, and the main thread acts on it between two instructions. A call that blocks
//! does not end if the signal came in the instant before it, or if the kernel gave the signal to another thread. So
//! Python also writes the signal's number into a pipe, and a thread wakes the main thread until it has acted.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Signal, getpid, kill_process};

use super::timespec;

/// See the module.
pub struct Wakeups {
    read_end: OwnedFd,
    write_end: OwnedFd,
    has_acted: AtomicBool,
}

impl Wakeups {
    pub fn new() -> io::Result<Arc<Self>> {
        let (read_end, write_end) = pipe_with(PipeFlags::CLOEXEC)?;
        // A signal handler must not wait for room.
        rustix::io::ioctl_fionbio(&write_end, true)?;
        Ok(Arc::new(Self {
            read_end,
            write_end,
            has_acted: AtomicBool::new(false),
        }))
    }

    /// The end that signal handlers write to.
    pub fn write_end(&self) -> BorrowedFd<'_> {
        self.write_end.as_fd()
    }

    /// Its number, for `signal.set_wakeup_fd`.
    pub fn number(&self) -> i32 {
        self.write_end.as_raw_fd()
    }

    /// The main thread has acted on a signal.
    pub fn on_acted(&self) {
        self.has_acted.store(true, Ordering::Release);
    }

    /// Wakes the main thread where it needs that, as long as the process lives. Sleeps until a signal comes.
    pub fn run(&self) {
        let began = Instant::now();
        let now_ns = || began.elapsed().as_nanos() as u64;
        let mut wakeups = broadleaf_engine::Wakeups::default();
        loop {
            let due_ns = wakeups.next_due();
            let longest = due_ns.map(|at| timespec(at.saturating_sub(now_ns())));
            let mut read_end = [PollFd::new(&self.read_end, PollFlags::IN)];
            match poll(&mut read_end, longest.as_ref()) {
                Ok(0) | Err(rustix::io::Errno::INTR) => {}
                Ok(_) => match self.has_interrupt() {
                    Ok(true) => wakeups.on_signal(now_ns()),
                    Ok(false) => {}
                    Err(_) => return,
                },
                Err(_) => return,
            }
            if wakeups.on_due(now_ns(), || self.has_acted.swap(false, Ordering::AcqRel)) {
                // Without a request to interrupt, its handler does nothing; but the call that blocks returns to Python.
                let _ = kill_process(getpid(), Signal::URG);
            }
        }
    }

    /// Reads the numbers of the signals that have come; returns whether a SIGINT is among them.
    fn has_interrupt(&self) -> io::Result<bool> {
        let mut numbers = [0; 64];
        match rustix::io::read(&self.read_end, &mut numbers) {
            Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => {
                let interrupt = Signal::INT.as_raw();
                let mut numbers = numbers[..count].iter();
                Ok(numbers.any(|number| i32::from(*number) == interrupt))
            }
            Err(rustix::io::Errno::INTR) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }
}
