//! Peers of a node: who may connect, what they say, and what waits for them.

pub(crate) mod arrivals;
pub(crate) mod congestion;
pub(crate) mod far_clients;
pub(crate) mod frames;
pub(crate) mod handshake;
pub(crate) mod lifeline;
pub(crate) mod peers;
pub(crate) mod resume;
pub(crate) mod uploads;
