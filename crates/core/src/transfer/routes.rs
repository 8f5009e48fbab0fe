//! Reports how objects travel.

use broadleaf_proto::ids::{HostId, ObjectId};

use super::cost::Topology;
use super::{Position, Transfer, Transfers};
use crate::Nanos;

/// How one object travels.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// The object.
    pub object: ObjectId,
    /// Its length.
    pub len_bytes: u64,
    /// The topology of its tree.
    pub topology: Topology,
    /// When it was first needed.
    pub since_ns: Nanos,
    /// The origin, then the hosts that need the object.
    pub stops: Vec<Stop>,
}

/// One host of a [`Route`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stop {
    /// The host.
    pub host: HostId,
    /// The host that it gets the object from; the origin names itself.
    pub parent: HostId,
    /// The bytes that it is known to have.
    pub have_bytes: u64,
    /// Nothing more is expected of this host.
    pub is_gone: bool,
    /// When it had the whole object.
    pub completed_ns: Option<Nanos>,
}

impl Transfers {
    /// Objects that are being sent or are still needed, and the most recent ones before.
    pub fn routes(&self) -> impl Iterator<Item = Route> {
        let past = self.past.iter().map(|(object, t)| t.route(*object));
        past.chain(self.active.iter().map(|(object, t)| t.route(*object)))
    }

    /// What was sent only to measure is over, and interests nobody.
    pub fn forget_probe(&mut self, object: ObjectId) {
        self.active.remove(&object);
    }
}

impl Transfer {
    fn route(&self, object: ObjectId) -> Route {
        let stop = |(index, position): (usize, &Position)| Stop {
            host: position.host,
            parent: self.order[position.parent].host,
            have_bytes: self.has(index),
            is_gone: position.is_gone,
            completed_ns: (position.completed_ns > 0).then_some(position.completed_ns),
        };
        Route {
            object,
            len_bytes: self.len_bytes,
            topology: self.estimate.topology,
            since_ns: self.since_ns,
            stops: self.order.iter().enumerate().map(stop).collect(),
        }
    }
}
