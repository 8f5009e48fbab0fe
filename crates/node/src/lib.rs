//! Performs the I/O: one thread drives the controller's machine over links, shared memory and
//! processes.
//!
//! Nothing is decided here. Every event becomes an [`broadleaf_core::Input`]; every
//! [`broadleaf_core::Output`] becomes bytes, a signal or an entry of the claim board. Everything
//! that arrives with one wake-up is scheduled together and leaves with one write per peer.

mod config;
mod connections;
mod error;
mod hosts;
mod interrupts;
mod journal;
mod lane;
mod node;
mod outputs;
pub mod payload;
mod recording;
mod reports;
mod segments;
mod timing;

pub use broadleaf_core::redial;
pub use broadleaf_core::transfer::values::{ValueCommand, Values};
pub use broadleaf_net::tls::{derive as derive_keys, generate as generate_keys};
pub use config::{ConfigError, NodeConfig};
pub use connections::handshake::keys_json;
pub use error::NodeError;
pub use node::run;
