//! SIGINT that somebody sends to an engine's process, such as `kill -INT`.
//!
//! Python's handler in C notes a signal, and the main thread acts on it between two instructions. A call that blocks
//! does not end if the signal came in the instant before it, or if the kernel gave the signal to another thread. So
//! Python also writes the signal's number into a pipe, and a thread wakes the main thread until it has acted.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Signal, getpid, kill_process};

/// Time that the main thread has to act before it is woken.
const FIRST_AGAIN: Duration = Duration::from_millis(10);
/// Number of times that it is woken, each after twice the time: for 10 s. A task with a handler of its own does not
/// report that it has acted.
const MAX_AGAIN: u32 = 10;

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
        let mut numbers = [0; 64];
        loop {
            match rustix::io::read(&self.read_end, &mut numbers) {
                Ok(0) => return,
                Ok(count) => {
                    let interrupt = Signal::INT.as_raw();
                    if (numbers[..count].iter()).any(|number| i32::from(*number) == interrupt) {
                        self.wake_until_acted();
                    }
                }
                Err(rustix::io::Errno::INTR) => {}
                Err(_) => return,
            }
        }
    }

    fn wake_until_acted(&self) {
        for times in 0..MAX_AGAIN {
            std::thread::sleep(FIRST_AGAIN * (1 << times));
            if self.has_acted.swap(false, Ordering::AcqRel) {
                return;
            }
            // Without a request to interrupt, its handler does nothing; but the call that blocks returns to Python.
            let _ = kill_process(getpid(), Signal::URG);
        }
    }
}
