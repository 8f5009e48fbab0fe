//! Hot records, hand-encoded, many to a frame.

pub mod coalesced;
pub mod error_head;
pub mod refused;
pub mod spans;
pub mod task;
