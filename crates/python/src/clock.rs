//! The time of day, as this process tells it: it never steps while something is measured.
//!
//! Times of tasks are compared with each other, within a process and between processes of a host, and shown as times of
//! day. The system's clock may be set back by hours while a task runs. So the time of day is read once and then follows
//! the monotonic clock; a step is taken over when nothing is under way.

use std::sync::atomic::{AtomicU64, Ordering};

use rustix::time::{ClockId, clock_gettime};

/// A smaller difference is the time between two readings.
const STEP_NS: u64 = 1_000_000;

/// Time of day minus monotonic time, ns; 0 before it is first read.
static OFFSET_NS: AtomicU64 = AtomicU64::new(0);

fn read_ns(clock: ClockId) -> u64 {
    let time = clock_gettime(clock);
    let part = |value: i64| u64::try_from(value).unwrap_or_default();
    part(time.tv_sec) * 1_000_000_000 + part(time.tv_nsec)
}

/// The offset to use from now on, when another has been measured.
fn next_offset_ns(known_ns: u64, measured_ns: u64) -> u64 {
    if known_ns.abs_diff(measured_ns) < STEP_NS {
        known_ns
    } else {
        measured_ns
    }
}

/// ns since 1970.
pub fn wall_ns() -> u64 {
    let offset_ns = OFFSET_NS.load(Ordering::Relaxed);
    if offset_ns == 0 {
        follow_steps();
        return wall_ns();
    }
    offset_ns + read_ns(ClockId::Monotonic)
}

/// Takes over a step of the system's clock. Called while the caller has nothing under way whose duration will be told;
/// another connection of this process may.
pub fn follow_steps() {
    let before_ns = read_ns(ClockId::Monotonic);
    let real_ns = read_ns(ClockId::Realtime);
    let known_ns = OFFSET_NS.load(Ordering::Relaxed);
    if known_ns != 0 && read_ns(ClockId::Monotonic) - before_ns >= STEP_NS {
        // Another process ran in between, and what was measured is how long.
        return;
    }
    // At least 1, so that it counts as read.
    let measured_ns = real_ns.saturating_sub(before_ns).max(1);
    OFFSET_NS.store(next_offset_ns(known_ns, measured_ns), Ordering::Relaxed);
}
