//! Processor time of tasks: measured for long ones, without a system call for every short one.

use std::sync::atomic::{AtomicU64, Ordering};

use rustix::time::{ClockId, clock_gettime};

/// A shorter task counts as having had the processor all the time: reading its clock takes a tenth of the time of an
/// empty task.
const MEASURED_FROM_NS: u64 = 1_000_000;
/// Age up to which a reading still serves for the start of a task. In the meantime the engine has run short tasks, so
/// it has had the processor.
const MAX_AGE_NS: u64 = 100_000;
/// Number of tasks in a row that begin without a reading because they are expected to be short, however old the last one
/// is. If one of them is long after all, it is charged for what the engine did between those before it: some 0.1 ms.
const MAX_UNREAD: u64 = 16;

/// The clock of this process's processor time, all threads together. Only the main thread uses it.
#[derive(Default)]
pub(super) struct Processor {
    reading: Reading,
    /// Time of tasks that ran on top of the current one.
    inner_ns: AtomicU64,
}

/// The latest.
#[derive(Default)]
struct Reading {
    cpu_ns: AtomicU64,
    /// Wall clock.
    at_ns: AtomicU64,
    /// Tasks that have begun since without one.
    n_unread: AtomicU64,
}

/// What was known when a task began.
pub(super) struct Begun {
    cpu_ns: u64,
    inner_ns: u64,
}

impl Processor {
    fn read(&self, at_ns: u64) -> u64 {
        let time = clock_gettime(ClockId::ProcessCPUTime);
        let part = |value: i64| u64::try_from(value).unwrap_or_default();
        let cpu_ns = part(time.tv_sec) * 1_000_000_000 + part(time.tv_nsec);
        self.reading.cpu_ns.store(cpu_ns, Ordering::Relaxed);
        self.reading.at_ns.store(at_ns, Ordering::Relaxed);
        self.reading.n_unread.store(0, Ordering::Relaxed);
        cpu_ns
    }

    /// A task begins now, which `is_short` if its function's last one was.
    pub(super) fn begin(&self, now_ns: u64, is_short: bool) -> Begun {
        // After the clock was set back, this is large.
        let age_ns = now_ns.wrapping_sub(self.reading.at_ns.load(Ordering::Relaxed));
        let n_unread = self.reading.n_unread.load(Ordering::Relaxed);
        let cpu_ns = if age_ns <= MAX_AGE_NS {
            self.reading.cpu_ns.load(Ordering::Relaxed) + age_ns
        } else if is_short && n_unread < MAX_UNREAD {
            // It has slept in between, which takes no processor time.
            self.reading.n_unread.store(n_unread + 1, Ordering::Relaxed);
            self.reading.cpu_ns.load(Ordering::Relaxed)
        } else {
            self.read(now_ns)
        };
        Begun {
            cpu_ns,
            inner_ns: self.inner_ns.swap(0, Ordering::Relaxed),
        }
    }

    /// It ends now, after `task_ns`; returns its own processor time.
    pub(super) fn end(&self, begun: &Begun, now_ns: u64, task_ns: u64) -> u64 {
        let inner_ns = self.inner_ns.load(Ordering::Relaxed);
        let all_ns = if task_ns < MEASURED_FROM_NS {
            task_ns
        } else {
            self.read(now_ns).saturating_sub(begun.cpu_ns)
        };
        self.inner_ns
            .store(begun.inner_ns + all_ns.max(inner_ns), Ordering::Relaxed);
        all_ns.saturating_sub(inner_ns)
    }
}
