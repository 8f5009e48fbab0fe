//! How objects travel, for who looks.

use broadleaf_proto::ids::{HostId, ObjectId};

use super::cost::Shape;
use super::{Place, Transfer, Transfers};
use crate::Nanos;

/// Transfers that are over and still told of.
const PAST: usize = 16;

/// How an object travels, for who looks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// The object.
    pub object: ObjectId,
    /// Its length.
    pub len_bytes: u64,
    /// Of its tree.
    pub shape: Shape,
    /// When it was first wanted.
    pub since_ns: Nanos,
    /// The hosts that need it, behind the one it comes from.
    pub stops: Vec<Stop>,
}

/// One host of a [`Route`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stop {
    /// The host.
    pub host: HostId,
    /// The one that it gets the object from; the origin's is itself.
    pub parent: HostId,
    /// What it is known to have.
    pub have_bytes: u64,
    /// Nothing more is expected of it.
    pub is_gone: bool,
    /// When it had all.
    pub completed_ns: Option<Nanos>,
}

impl Transfers {
    /// Objects that travel or are still needed, and the latest of those before.
    pub fn routes(&self) -> impl Iterator<Item = Route> {
        let past = self.past.iter().map(|(object, t)| t.route(*object));
        past.chain(self.active.iter().map(|(object, t)| t.route(*object)))
    }

    /// What was sent only to measure is over, and of interest to nobody.
    pub fn forget_probe(&mut self, object: ObjectId) {
        self.active.remove(&object);
    }

    /// Nothing more comes of an object.
    pub(super) fn end(&mut self, object: ObjectId) {
        let Some(transfer) = self.active.remove(&object) else {
            return;
        };
        if self.past.len() == PAST {
            self.past.pop_front();
        }
        self.past.push_back((object, transfer));
    }
}

impl Transfer {
    fn route(&self, object: ObjectId) -> Route {
        let stop = |(index, place): (usize, &Place)| Stop {
            host: place.host,
            parent: self.order[place.parent].host,
            have_bytes: self.has(index),
            is_gone: place.is_gone,
            completed_ns: (place.completed_ns > 0).then_some(place.completed_ns),
        };
        Route {
            object,
            len_bytes: self.len_bytes,
            shape: self.estimate.shape,
            since_ns: self.since_ns,
            stops: self.order.iter().enumerate().map(stop).collect(),
        }
    }
}
