//! Hot records, hand-encoded, many to a frame.

pub mod coalesced;
pub mod refused;
pub mod spans;
pub mod task;
