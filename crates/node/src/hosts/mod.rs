//! Other hosts: their relays, and the payload that travels to and from them.

pub(crate) mod delivery;
pub(crate) mod join;
pub(crate) mod movers;
pub(crate) mod objects;
pub(crate) mod probe;
pub(crate) mod rejoin;
pub(crate) mod relays;
pub(crate) mod uplink;
