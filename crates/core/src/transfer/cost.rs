//! Estimates what a broadcast costs, in closed form; `python/broadleaf/plan/transfer.py` has the
//! same model.
//!
//! A host can send one message while it receives one. The origin is not counted among the hosts.

use broadleaf_proto::limits::CHUNK_BYTES;

/// One hop between two hosts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Hop {
    /// Seconds per message.
    pub latency_s: f64,
    /// Seconds per byte.
    pub seconds_per_byte: f64,
}

impl Default for Hop {
    /// 100 us and 2.5 Gb/s, used until measured. On a slower link, a plan for a faster one costs
    /// milliseconds; the opposite error costs tenths of a millisecond.
    fn default() -> Self {
        Self {
            latency_s: 100e-6,
            seconds_per_byte: 3.2e-9,
        }
    }
}

impl Hop {
    /// Seconds for one message.
    fn message(self, bytes: f64) -> f64 {
        self.latency_s + bytes * self.seconds_per_byte
    }
}

/// The form of the tree that an object travels down. Hosts have positions in an order; the origin
/// is at 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Topology {
    /// Every host receives from the origin.
    Flat,
    /// Position r receives from r with its lowest set bit cleared.
    Binomial,
    /// Each host receives from the one before it.
    Chain,
    /// A complete tree with this many branches per node.
    Kary(u32),
}

impl Topology {
    /// The parent of a position above 0; always a lower position.
    pub fn parent(self, position: usize) -> usize {
        match self {
            Self::Flat => 0,
            Self::Binomial => position & (position - 1),
            Self::Chain => position - 1,
            Self::Kary(arity) => (position - 1) / arity.max(1) as usize,
        }
    }

    /// The name used in options and reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Flat => "flat",
            Self::Binomial => "binomial",
            Self::Chain => "chain",
            Self::Kary(_) => "k-ary",
        }
    }
}

/// A topology, its chunk size, and the time until the last host has the whole object.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    /// The topology.
    pub topology: Topology,
    /// Size of a chunk.
    pub chunk_bytes: u32,
    /// Seconds.
    pub seconds: f64,
}

/// Arities tried for a k-ary tree.
const ARITIES: [u32; 4] = [2, 3, 4, 8];
/// Maximum size of a chunk in a topology that gains nothing from smaller ones.
const MAX_WHOLE_CHUNK_BYTES: u64 = 256 * 1024;

/// Maximum size of a chunk that is passed on before the rest has arrived. A larger one leaves the
/// host's cache between decryption, copy and encryption, and saves nothing, because the chunks of a
/// stream do not wait for each other.
const MAX_PIPELINED_CHUNK_BYTES: u32 = 64 * 1024;

/// Longest round trip within one network. It is measured between processes, which on busy hosts take a millisecond to
/// answer.
const SHORT_NS: u64 = 2_000_000;
/// Bandwidth assumed of a longer link: 1 Gb/s. What was measured may be what a limit allowed.
const LONG_BYTES_PER_S: f64 = 125e6;

/// Whether a round trip of this length is one within a network. So is 0, for one that was not measured.
pub(super) fn is_short(round_trip_ns: u64) -> bool {
    round_trip_ns <= SHORT_NS
}

/// Whether what waits on a link with this round trip may be limited to so many bytes: always within one network, and on
/// a longer link only if that keeps it busy.
pub fn may_limit(waiting_bytes: usize, round_trip_ns: u64) -> bool {
    let trip_bytes = round_trip_ns as f64 / 1e9 * LONG_BYTES_PER_S;
    is_short(round_trip_ns) || waiting_bytes as f64 >= trip_bytes
}

/// Levels of a k-ary tree below the origin.
pub fn depth(hosts: usize, arity: u32) -> u32 {
    let (mut depth, mut room, mut level) = (0, 0_usize, 1_usize);
    while room < hosts {
        level = level.saturating_mul(arity.max(1) as usize);
        room = room.saturating_add(level);
        depth += 1;
    }
    depth
}

/// The smallest arity whose tree is at most this deep.
pub fn arity_for(hosts: usize, max_depth: u32) -> u32 {
    let max_depth = max_depth.max(1);
    (1..=hosts.max(1) as u32)
        .find(|arity| depth(hosts, *arity) <= max_depth)
        .unwrap_or(1)
}

/// The chunk size, and the time when a chunk passes `waiting` positions before it reaches the last.
#[expect(clippy::cast_sign_loss, reason = "a count of pieces is never negative")]
fn pieces(waiting: f64, bytes: u64, hop: Hop) -> (u32, f64) {
    let n = bytes as f64;
    let best = if hop.latency_s > 0.0 {
        (n * hop.latency_s / (waiting.max(1e-9) * hop.seconds_per_byte)).sqrt()
    } else {
        0.0
    };
    // Chunks are pipelined, so chunks smaller than the optimum cost little and larger ones cost
    // much.
    let min = f64::from(CHUNK_BYTES.0) * 2.0;
    let chunk = best.clamp(min, f64::from(CHUNK_BYTES.1) / 4.0);
    let chunk_bytes = (chunk as u32).next_multiple_of(4096);
    let count = n / f64::from(chunk_bytes);
    let seconds = (waiting + count.max(1.0)) * hop.message(f64::from(chunk_bytes).min(n));
    (chunk_bytes.min(MAX_PIPELINED_CHUNK_BYTES), seconds)
}

/// Estimates a topology's time for an object of this size sent to this many hosts.
pub fn estimate(topology: Topology, hosts: usize, bytes: u64, hop: Hop) -> Estimate {
    let n = bytes as f64;
    let whole = (bytes / 8).clamp(u64::from(CHUNK_BYTES.0) * 2, MAX_WHOLE_CHUNK_BYTES) as u32;
    let whole = whole.next_multiple_of(4096);
    let (chunk_bytes, seconds) = match topology {
        Topology::Flat => (whole, hosts as f64 * hop.message(n)),
        Topology::Binomial => {
            let rounds = usize::BITS - hosts.leading_zeros();
            (whole, f64::from(rounds) * hop.message(n))
        }
        Topology::Chain => pieces(hosts.saturating_sub(1) as f64, bytes, hop),
        Topology::Kary(arity) => {
            let waiting = depth(hosts, arity).saturating_sub(1);
            let (chunk_bytes, seconds) = pieces(f64::from(waiting), bytes, hop);
            (chunk_bytes, f64::from(arity) * seconds)
        }
    };
    Estimate {
        topology,
        chunk_bytes,
        seconds,
    }
}

/// The topology that takes the least time.
pub fn choose(hosts: usize, bytes: u64, hop: Hop) -> Estimate {
    let kary = ARITIES.into_iter().map(Topology::Kary);
    let topologies = [Topology::Flat, Topology::Binomial].into_iter().chain(kary);
    let of = |topology| estimate(topology, hosts, bytes, hop);
    topologies.fold(of(Topology::Chain), |best, topology| {
        let other = of(topology);
        if other.seconds < best.seconds {
            other
        } else {
            best
        }
    })
}

/// The mean of the previous value and the new one.
pub(super) fn blend(before: f64, now: f64) -> f64 {
    if before > 0.0 {
        before / 2.0 + now / 2.0
    } else {
        now
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIGABIT: Hop = Hop {
        latency_s: 100e-6,
        seconds_per_byte: 8e-9,
    };

    #[test]
    fn every_parent_is_a_lower_position() {
        let topologies = [
            Topology::Flat,
            Topology::Binomial,
            Topology::Chain,
            Topology::Kary(1),
            Topology::Kary(3),
        ];
        for topology in topologies {
            for position in 1..200 {
                assert!(
                    topology.parent(position) < position,
                    "{topology:?} {position}"
                );
            }
        }
        assert_eq!(Topology::Binomial.parent(6), 4);
        assert_eq!(Topology::Kary(3).parent(4), 1);
    }

    #[test]
    fn large_objects_go_down_a_chain_and_small_ones_do_not() {
        for hosts in [2, 4, 8, 16] {
            assert_eq!(choose(hosts, 64 << 20, GIGABIT).topology, Topology::Chain);
        }
        assert_ne!(choose(64, 66_000, GIGABIT).topology, Topology::Chain);
    }

    #[test]
    fn what_is_chosen_before_bandwidth_is_known_is_right_for_slow_links() {
        for hosts in [2, 4, 8] {
            let unmeasured = choose(hosts, 100_000, Hop::default()).topology;
            assert_eq!(unmeasured, choose(hosts, 100_000, GIGABIT).topology);
        }
    }

    #[test]
    fn a_chain_takes_little_longer_than_one_hop() {
        let one = GIGABIT.message(64e6);
        let chain = estimate(Topology::Chain, 16, 64_000_000, GIGABIT);
        assert!(chain.seconds < 1.12 * one, "{chain:?}");
        assert!(estimate(Topology::Flat, 16, 64_000_000, GIGABIT).seconds > 15.9 * one);
    }

    #[test]
    fn any_limit_holds_within_a_network_and_on_a_long_link_one_that_keeps_it_busy() {
        assert!(may_limit(4096, 200_000));
        assert!(may_limit(256 * 1024, 2_000_000));
        assert!(!may_limit(256 * 1024, 20_000_000));
        assert!(may_limit(8 * 1024 * 1024, 20_000_000));
    }

    #[test]
    fn depths_and_arities_fit_each_other() {
        assert_eq!(depth(12, 3), 2);
        assert_eq!(depth(13, 3), 3);
        assert_eq!(arity_for(12, 2), 3);
        assert_eq!(arity_for(5, 1), 5);
        assert_eq!(arity_for(5, 9), 1);
    }
}
