//! Performs the I/O: one thread drives the controller's machine over links, shared memory and
//! processes.
//!
//! Nothing is decided here. Every event becomes an [`broadleaf_core::Input`]; every
//! [`broadleaf_core::Output`] becomes bytes, a signal or an entry of the claim board. Everything
//! that arrives with one wake-up is scheduled together and leaves with one write per peer.

mod arrivals;
mod config;
mod congestion;
mod delivery;
mod error;
mod far_clients;
mod frames;
mod handshake;
mod interrupts;
mod join;
mod lifeline;
mod movers;
mod node;
mod objects;
mod outputs;
pub mod payload;
mod peers;
mod probe;
mod relays;
mod requests;
mod ring;
mod segments;
mod timing;
mod uplink;
mod uploads;
mod watch;

pub use broadleaf_core::transfer::values::{ValueCommand, Values};
pub use config::{ConfigError, NodeConfig};
pub use error::NodeError;
pub use handshake::keys_json;
pub use node::run;
