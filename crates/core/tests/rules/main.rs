//! Each rule of the controller by itself.
#![expect(clippy::unwrap_used, reason = "a test may fail")]

mod bench;
mod charges;
mod coalesce;
mod dependencies;
mod draining;
mod endings;
mod engines;
mod nesting;
mod placement;
mod preparations;
mod relays;
mod result_store;
mod watching;
mod worlds;
