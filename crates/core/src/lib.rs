//! The controller as a pure state machine: `(now, input) -> outputs`.
//!
//! No clock, socket, file, thread or operating-system randomness: a driver feeds [`Input`]s to a
//! [`Controller`] and carries out its [`Output`]s, so that a whole cluster can run in one thread
//! under a seed.

mod config;
mod controller;
mod counters;
mod message;

pub use config::Config;
pub use controller::{Controller, Violation};
pub use counters::{Counters, EngineCounters};
pub use message::{Input, Output};

/// Nanoseconds on the driver's monotonic (or virtual) clock.
pub type Nanos = u64;
