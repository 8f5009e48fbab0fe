//! Which hosts a host gets its data from, as requested.

use broadleaf_proto::RequestedTopology;

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
    /// What a cluster's options `broadcast_topology`, `tree_arity` and `tree_depth` ask for; 0 means that nothing is asked.
    pub fn of_cluster(name: &str, arity: u32, depth: u32, n_hosts: usize) -> Self {
        let arity = match (arity, depth) {
            (0, 0) => 0,
            (0, depth) => cost::arity_for(n_hosts, depth),
            (arity, _) => arity,
        };
        let requested = match name {
            "flat" => RequestedTopology::Flat,
            "binomial" => RequestedTopology::Binomial,
            "chain" => RequestedTopology::Chain,
            "k-ary" => RequestedTopology::Kary(arity),
            _ if arity > 0 => RequestedTopology::Kary(arity),
            _ => RequestedTopology::Auto,
        };
        Self::Cheapest.or_requested(requested)
    }

    /// What a request's options ask for; otherwise this.
    #[must_use]
    pub fn or_requested(self, requested: RequestedTopology) -> Self {
        match requested {
            RequestedTopology::Auto => self,
            RequestedTopology::Flat => Self::Fixed(Topology::Flat),
            RequestedTopology::Binomial => Self::Fixed(Topology::Binomial),
            RequestedTopology::Chain => Self::Fixed(Topology::Chain),
            RequestedTopology::Kary(0) => Self::AnyKary,
            RequestedTopology::Kary(arity) => Self::Fixed(Topology::Kary(arity)),
        }
    }

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_goes_before_the_cluster_and_the_cluster_before_the_cheapest() {
        let cluster = |name, arity, depth| TopologyChoice::of_cluster(name, arity, depth, 64);
        let kary = |arity| TopologyChoice::Fixed(Topology::Kary(arity));
        assert_eq!(cluster("auto", 0, 0), TopologyChoice::Cheapest);
        assert_eq!(cluster("auto", 4, 0), kary(4));
        assert_eq!(cluster("auto", 4, 2), kary(4), "the arity says more");
        assert_eq!(cluster("auto", 0, 1), kary(cost::arity_for(64, 1)));
        assert_eq!(cluster("k-ary", 0, 0), TopologyChoice::AnyKary);
        let chain = cluster("chain", 4, 0);
        assert_eq!(chain, TopologyChoice::Fixed(Topology::Chain));
        assert_eq!(chain.or_requested(RequestedTopology::Auto), chain);
        assert_eq!(chain.or_requested(RequestedTopology::Kary(3)), kary(3));
    }
}
