//! Which hosts a host gets its data from, as requested.

use super::cost::{self, Estimate, Hop, Topology};

/// Which hosts a host gets its data from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TopologyChoice {
    /// Whatever takes the least time.
    #[default]
    Cheapest,
    /// This one.
    Fixed(Topology),
    /// A k-ary tree with the cheapest arity.
    AnyKary,
}

impl TopologyChoice {
    /// Estimates the cost of sending an object to this many hosts this way.
    pub(super) fn estimate(self, hosts: usize, bytes: u64, hop: Hop) -> Estimate {
        match self {
            Self::Cheapest => cost::choose(hosts, bytes, hop),
            Self::Fixed(topology) => cost::estimate(topology, hosts, bytes, hop),
            Self::AnyKary => [2, 3, 4, 8]
                .map(|arity| cost::estimate(Topology::Kary(arity), hosts, bytes, hop))
                .into_iter()
                .min_by(|a, b| a.seconds.total_cmp(&b.seconds))
                .unwrap_or_else(|| cost::choose(hosts, bytes, hop)),
        }
    }
}
