//! Which hosts a host gets its data from, as it is asked for.

use super::cost::{self, Estimate, Hop, Shape};

/// Which hosts a host gets its data from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Topology {
    /// The one that takes least time.
    #[default]
    Cheapest,
    /// This one.
    Shape(Shape),
    /// A k-ary tree with the cheapest arity.
    AnyKary,
}

impl Topology {
    /// What it costs to send an object to so many hosts this way.
    pub(super) fn estimate(self, hosts: usize, bytes: u64, hop: Hop) -> Estimate {
        match self {
            Self::Cheapest => cost::choose(hosts, bytes, hop),
            Self::Shape(shape) => cost::estimate(shape, hosts, bytes, hop),
            Self::AnyKary => [2, 3, 4, 8]
                .map(|arity| cost::estimate(Shape::Kary(arity), hosts, bytes, hop))
                .into_iter()
                .min_by(|a, b| a.seconds.total_cmp(&b.seconds))
                .unwrap_or_else(|| cost::choose(hosts, bytes, hop)),
        }
    }
}
