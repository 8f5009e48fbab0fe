//! Whether memory is short, so that free memory should be released instead of kept warm.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::{Room, Strain};
use crate::platform;

/// How old the information may be: looking takes longer than copying 100 kB.
const FRESH: Duration = Duration::from_millis(200);
/// One process keeps at most one part in this many of the remaining memory warm: other processes do the same.
const WARM_SHARE: u64 = 8;
/// How long observed pressure counts, so that everyone who looks once a second notices it.
const NOTICE: Duration = Duration::from_millis(1500);
/// Stalling on memory for one part in this many of the time is pressure.
const STALLED_SHARE: u32 = 10;

/// Time between two checks while waiting for memory.
const ASK_PERIOD: Duration = Duration::from_millis(20);

struct Watch {
    room: Room,
    looked_at: Instant,
    strain: Strain,
    strain_at: Instant,
    pressed_at: Option<Instant>,
}

static WATCH: Mutex<Option<Watch>> = Mutex::new(None);

fn with_watch<R>(use_it: impl FnOnce(&mut Watch, Instant) -> R) -> R {
    let now = Instant::now();
    let mut watch = WATCH.lock().unwrap_or_else(PoisonError::into_inner);
    let watch = watch.get_or_insert_with(|| Watch {
        room: platform::memory_room(),
        looked_at: now,
        strain: platform::memory_strain(),
        strain_at: now,
        pressed_at: None,
    });
    if now.duration_since(watch.looked_at) >= FRESH {
        watch.room = platform::memory_room();
        watch.looked_at = now;
    }
    use_it(watch, now)
}

/// Whether this process may keep this many unused bytes.
pub(crate) fn may_keep(bytes: u64) -> bool {
    with_watch(|watch, _| !watch.room.is_short && bytes <= watch.room.left_bytes / WARM_SHARE)
}

/// Whether memory is short: little is left, a control group has reached its limit or its `memory.high` since the last
/// call, or processes stall on memory. Call it about once a second.
pub fn memory_is_short() -> bool {
    with_watch(|watch, now| {
        let strain = platform::memory_strain();
        let since = now.duration_since(watch.strain_at);
        if is_strained(watch.strain, strain, since) {
            watch.pressed_at = Some(now);
        }
        watch.strain = strain;
        watch.strain_at = now;
        let is_noticed = |at: Instant| now.duration_since(at) < NOTICE;
        watch.room.is_short || watch.pressed_at.is_some_and(is_noticed)
    })
}

/// Waits at most `longest` until there is room for this many bytes; returns whether there is. The system does not
/// announce when memory becomes available, so this polls.
pub fn await_memory(bytes: u64, longest: Duration) -> bool {
    let deadline = Instant::now() + longest;
    loop {
        if platform::has_room(bytes) {
            return true;
        }
        if Instant::now() >= deadline {
            return false;
        }
        std::thread::sleep(ASK_PERIOD);
    }
}

fn is_strained(before: Strain, after: Strain, since: Duration) -> bool {
    let stalled = Duration::from_micros(after.stalled_us.saturating_sub(before.stalled_us));
    after.limit_hits > before.limit_hits || (!stalled.is_zero() && stalled * STALLED_SHARE >= since)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hits_and_long_stalls_are_strain() {
        let at = |limit_hits, stalled_us| Strain {
            limit_hits,
            stalled_us,
        };
        let second = Duration::from_secs(1);
        assert!(!is_strained(at(3, 500), at(3, 500), Duration::ZERO));
        assert!(is_strained(at(3, 500), at(4, 500), second));
        assert!(!is_strained(at(3, 500), at(3, 90_000), second));
        assert!(is_strained(at(3, 500), at(3, 110_000), second));
    }
}
