//! What a broadcast costs, in closed form: the twin of `python/broadleaf/plan/transfer.py`.
//!
//! A machine can send one message while it receives one. The origin is one of p = hosts + 1 machines.

use broadleaf_proto::limits::CHUNK_BYTES;

/// One hop between two hosts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Hop {
    /// Seconds a message.
    pub latency_s: f64,
    /// Seconds a byte.
    pub seconds_per_byte: f64,
}

impl Default for Hop {
    /// 100 us and 2.5 Gb/s, until it was measured: on a slower link a plan for a faster one costs milliseconds, the
    /// other way round it costs tenths of one.
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

/// The form of the tree that an object travels down. Parents are given by place in the order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// Everyone gets it from the origin.
    Flat,
    /// Place r gets it from r without its lowest bit.
    Binomial,
    /// Each gets it from the one before.
    Chain,
    /// A complete tree with so many branches.
    Kary(u32),
}

impl Shape {
    /// The parent of a place above 0; a lower place.
    pub fn parent(self, place: usize) -> usize {
        match self {
            Self::Flat => 0,
            Self::Binomial => place & (place - 1),
            Self::Chain => place - 1,
            Self::Kary(arity) => (place - 1) / arity.max(1) as usize,
        }
    }

    /// Its name, as options and reports spell it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Flat => "flat",
            Self::Binomial => "binomial",
            Self::Chain => "chain",
            Self::Kary(_) => "k-ary",
        }
    }
}

/// A shape, the pieces it works in, and the time until the last host has all.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    /// The shape.
    pub shape: Shape,
    /// Bytes of a piece.
    pub chunk_bytes: u32,
    /// Seconds.
    pub seconds: f64,
}

/// Arities tried for a k-ary tree.
const ARITIES: [u32; 4] = [2, 3, 4, 8];
/// Pieces of an object whose shape does not gain from smaller ones.
const WHOLE_CHUNK_BYTES: u64 = 256 * 1024;

/// Most bytes of a piece that is passed on before the rest has come: a larger one leaves a host's cache between
/// decryption, copy and encryption, and saves nothing, as the pieces of a stream do not wait for each other.
const MOST_PIECE_BYTES: u32 = 64 * 1024;

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

/// The least arity whose tree is no deeper.
pub fn arity_for(hosts: usize, most_depth: u32) -> u32 {
    let most = most_depth.max(1);
    (1..=hosts.max(1) as u32)
        .find(|arity| depth(hosts, *arity) <= most)
        .unwrap_or(1)
}

/// Pieces, and the time that `waiting` places in front of the last cost with them.
#[expect(clippy::cast_sign_loss, reason = "a count of pieces is never negative")]
fn pieces(waiting: f64, bytes: u64, hop: Hop) -> (u32, f64) {
    let n = bytes as f64;
    let best = if hop.latency_s > 0.0 {
        (n * hop.latency_s / (waiting.max(1e-9) * hop.seconds_per_byte)).sqrt()
    } else {
        0.0
    };
    // A piece waits for nobody alone, so smaller ones than the optimum are cheap, larger ones are not.
    let least = f64::from(CHUNK_BYTES.0) * 2.0;
    let chunk = best.clamp(least, f64::from(CHUNK_BYTES.1) / 4.0);
    let chunk_bytes = (chunk as u32).next_multiple_of(4096);
    let count = n / f64::from(chunk_bytes);
    let seconds = (waiting + count.max(1.0)) * hop.message(f64::from(chunk_bytes).min(n));
    (chunk_bytes.min(MOST_PIECE_BYTES), seconds)
}

/// What a shape takes for an object of that size to that many hosts.
pub fn estimate(shape: Shape, hosts: usize, bytes: u64, hop: Hop) -> Estimate {
    let n = bytes as f64;
    let whole = (bytes / 8).clamp(u64::from(CHUNK_BYTES.0) * 2, WHOLE_CHUNK_BYTES) as u32;
    let whole = whole.next_multiple_of(4096);
    let (chunk_bytes, seconds) = match shape {
        Shape::Flat => (whole, hosts as f64 * hop.message(n)),
        Shape::Binomial => {
            let rounds = usize::BITS - hosts.leading_zeros();
            (whole, f64::from(rounds) * hop.message(n))
        }
        Shape::Chain => pieces(hosts.saturating_sub(1) as f64, bytes, hop),
        Shape::Kary(arity) => {
            let waiting = depth(hosts, arity).saturating_sub(1);
            let (chunk_bytes, seconds) = pieces(f64::from(waiting), bytes, hop);
            (chunk_bytes, f64::from(arity) * seconds)
        }
    };
    Estimate {
        shape,
        chunk_bytes,
        seconds,
    }
}

/// The shape that takes least time.
pub fn choose(hosts: usize, bytes: u64, hop: Hop) -> Estimate {
    let kary = ARITIES.into_iter().map(Shape::Kary);
    let shapes = [Shape::Flat, Shape::Binomial].into_iter().chain(kary);
    let of = |shape| estimate(shape, hosts, bytes, hop);
    shapes.fold(of(Shape::Chain), |best, shape| {
        let other = of(shape);
        if other.seconds < best.seconds {
            other
        } else {
            best
        }
    })
}

/// What was measured before and now, each counting as much.
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
    fn every_parent_is_a_lower_place() {
        let shapes = [
            Shape::Flat,
            Shape::Binomial,
            Shape::Chain,
            Shape::Kary(1),
            Shape::Kary(3),
        ];
        for shape in shapes {
            for place in 1..200 {
                assert!(shape.parent(place) < place, "{shape:?} {place}");
            }
        }
        assert_eq!(Shape::Binomial.parent(6), 4);
        assert_eq!(Shape::Kary(3).parent(4), 1);
    }

    #[test]
    fn large_objects_go_down_a_chain_and_small_ones_do_not() {
        for hosts in [2, 4, 8, 16] {
            assert_eq!(choose(hosts, 64 << 20, GIGABIT).shape, Shape::Chain);
        }
        assert_ne!(choose(64, 66_000, GIGABIT).shape, Shape::Chain);
    }

    #[test]
    fn what_is_chosen_before_bandwidth_is_known_is_right_for_slow_links() {
        for hosts in [2, 4, 8] {
            let unmeasured = choose(hosts, 100_000, Hop::default()).shape;
            assert_eq!(unmeasured, choose(hosts, 100_000, GIGABIT).shape);
        }
    }

    #[test]
    fn a_chain_takes_little_longer_than_one_hop() {
        let one = GIGABIT.message(64e6);
        let chain = estimate(Shape::Chain, 16, 64_000_000, GIGABIT);
        assert!(chain.seconds < 1.12 * one, "{chain:?}");
        assert!(estimate(Shape::Flat, 16, 64_000_000, GIGABIT).seconds > 15.9 * one);
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
