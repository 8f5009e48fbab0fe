//! Chooses the cores that a payload thread runs on.
//!
//! With few cores, payload wakes up on whichever core is free; every message of a small task then
//! finds another thread running, or another core asleep. So the thread stays on the last core while
//! that has enough idle time.

use std::hash::{BuildHasher, RandomState};
use std::time::{Duration, Instant};

use rustix::thread::CpuSet;
use rustix::time::ClockId;

use crate::reports::host_counts::processor_ticks;

/// With more cores than this, there is a free one for a small task anyway.
const FEW_CORES: usize = 4;
/// Time between two checks of the last core, while payload moves.
const LOOK: Duration = Duration::from_millis(200);
/// A last core that is idle for less than this share of the time is overloaded.
const SHORT: f64 = 0.03;
/// The idle share that must remain beside the payload thread, because other threads may need it as
/// well.
const SPARE: f64 = 0.1;
/// How long a thread that found the last core overloaded stays away from it.
const AWAY: Duration = Duration::from_secs(2);
/// Only one in this many threads that notice the same thing at the same time acts on it.
const ONE_OF: u64 = 4;

/// See the module.
#[derive(Debug)]
pub struct Cores {
    /// All cores that the thread may use, in order; empty if there is no choice.
    usable: Vec<usize>,
    keeps_to_last: bool,
    look: Option<Look>,
    away_until: Option<Instant>,
}

/// What a check of the last core has measured.
#[derive(Clone, Copy, Debug)]
struct Look {
    at: Instant,
    /// Idle time of the last core, in ticks.
    idle: u64,
    total: u64,
    /// Processor time of the thread itself.
    own_ns: u64,
}

impl Cores {
    /// Restricts this thread to the last `cores` cores that it may use; with 0, to the last one as
    /// long as that suffices.
    pub fn new(cores: usize) -> Self {
        let usable = usable_cores().unwrap_or_default();
        let n = usable.len();
        let mut made = Self {
            usable,
            keeps_to_last: false,
            look: None,
            away_until: None,
        };
        if cores > 0 {
            // If the affinity cannot be set, payload runs anyway.
            let _ = keep_to(&made.usable[n - cores.min(n)..]);
        }
        if cores > 0 || !(2..=FEW_CORES).contains(&n) {
            made.usable.clear();
        }
        made
    }

    /// Checks, if it is time, whether the thread should stay on the last core. Called while payload
    /// moves.
    pub fn on_tick(&mut self, now: Instant) {
        let Some(&last) = self.usable.last() else {
            return;
        };
        let before = self.look;
        if before.is_some_and(|before| now.duration_since(before.at) < LOOK) {
            return;
        }
        self.look = look(last, now);
        let is_chosen = RandomState::new().hash_one(now).is_multiple_of(ONE_OF);
        if let (Some(before), Some(after), true) = (before, self.look, is_chosen) {
            self.on_looks(&before, &after);
        }
    }

    /// Moves to the last core, or away from it, depending on the measurement.
    fn on_looks(&mut self, before: &Look, after: &Look) {
        let taken = after.at.duration_since(before.at);
        // After a pause there is nothing to compare with yet.
        if taken > 2 * LOOK || after.total <= before.total {
            return;
        }
        // Idle counters may go back by a tick.
        let idle_ticks = after.idle.saturating_sub(before.idle);
        let idle = idle_ticks as f64 / (after.total - before.total) as f64;
        let own_ns = after.own_ns.saturating_sub(before.own_ns);
        let own = own_ns as f64 / taken.as_nanos() as f64;
        if self.keeps_to_last && idle < SHORT {
            self.keeps_to_last = false;
            self.away_until = Some(after.at + AWAY);
            let _ = keep_to(&self.usable);
        } else if !self.keeps_to_last
            && idle >= own + SPARE
            && self.away_until.is_none_or(|until| after.at >= until)
        {
            self.keeps_to_last = true;
            let _ = keep_to(&self.usable[self.usable.len() - 1..]);
        }
    }
}

fn usable_cores() -> rustix::io::Result<Vec<usize>> {
    let allowed = rustix::thread::sched_getaffinity(None)?;
    let usable = (0..CpuSet::MAX_CPU).filter(|core| allowed.is_set(*core));
    Ok(usable.collect())
}

fn keep_to(cores: &[usize]) -> rustix::io::Result<()> {
    let mut set = CpuSet::new();
    for core in cores {
        set.set(*core);
    }
    rustix::thread::sched_setaffinity(None, &set)
}

/// Measures a core and this thread; `None` if the system does not provide the figures.
fn look(core: usize, now: Instant) -> Option<Look> {
    let text = std::fs::read_to_string("/proc/stat").ok()?;
    let (idle, total) = processor_ticks(&text, &format!("cpu{core}"))?;
    let own = rustix::time::clock_gettime(ClockId::ThreadCPUTime);
    Some(Look {
        at: now,
        idle,
        total,
        own_ns: own.tv_sec.cast_unsigned() * 1_000_000_000 + own.tv_nsec.cast_unsigned(),
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // a test fails by panicking
mod tests {
    use super::*;

    fn cores_after(cores: usize) -> Vec<usize> {
        std::thread::spawn(move || {
            Cores::new(cores);
            usable_cores().unwrap()
        })
        .join()
        .unwrap()
    }

    #[test]
    fn payload_keeps_to_the_last_cores_it_may_use() {
        let all = cores_after(0);
        assert_eq!(cores_after(1), all[all.len() - 1..]);
        assert_eq!(cores_after(all.len() + 1), all);
    }

    /// Simulates two cores in a thread of its own: for each round, how idle the last core was and
    /// how much of a core the thread used; returns the cores it may use after each round.
    fn cores_by_round(rounds: Vec<(u64, u64)>) -> Vec<Vec<usize>> {
        let rounds = move || {
            let started = Instant::now();
            let mut cores = Cores::new(0);
            let all = usable_cores().unwrap();
            cores.usable = vec![all[0], all[all.len() - 1]];
            keep_to(&cores.usable).unwrap();
            let mut before = Look {
                at: started,
                idle: 0,
                total: 0,
                own_ns: 0,
            };
            let mut seen = Vec::new();
            for (idle, own) in rounds {
                let after = Look {
                    at: before.at + LOOK,
                    idle: before.idle + idle,
                    total: before.total + 100,
                    own_ns: before.own_ns + own * (LOOK.as_nanos() as u64 / 100),
                };
                cores.on_looks(&before, &after);
                before = after;
                seen.push(usable_cores().unwrap());
            }
            seen
        };
        std::thread::spawn(rounds).join().unwrap()
    }

    #[test]
    fn it_keeps_to_the_last_core_while_that_has_time() {
        let all = cores_after(0);
        let last = vec![all[all.len() - 1]];
        let mut both = vec![all[0], last[0]];
        both.dedup();
        // Too little room beside it; room; busy with its own work, but not overloaded; overloaded;
        // room again, but too soon.
        let seen = cores_by_round(vec![(50, 45), (50, 20), (10, 90), (0, 20), (90, 20)]);
        assert_eq!(seen, [&both, &last, &last, &both, &both].map(Clone::clone));
        // After this many rounds the thread may return.
        let mut rounds = vec![(50, 20), (0, 20)];
        rounds.extend([(50, 20); 10]);
        let seen = cores_by_round(rounds);
        assert_eq!(seen[1..].iter().filter(|cores| **cores == last).count(), 1);
        assert_eq!(seen[11], last);
    }

    #[test]
    fn ticks_that_begin_payload_or_come_too_soon_change_nothing() {
        let mut cores = Cores::new(0);
        cores.usable = usable_cores().unwrap();
        let now = Instant::now();
        cores.on_tick(now);
        let looked = cores.look.unwrap().at;
        cores.on_tick(now + LOOK / 2);
        assert_eq!(cores.look.unwrap().at, looked);
        assert!(!cores.keeps_to_last);
    }

    #[test]
    fn this_systems_figures_of_a_core_are_read() {
        assert!(look(usable_cores().unwrap()[0], Instant::now()).is_some());
    }
}
