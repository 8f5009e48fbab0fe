//! The controller as a pure state machine: `(now, input) -> outputs`.
//!
//! It uses no clock, socket, file, thread or operating-system randomness: a driver feeds [`Input`]s to a [`Controller`]
//! and carries out its [`Output`]s, so that a whole cluster can run in one thread under a seed. A driver's loop:
//!
//! 1. `on_input` for each input of a batch, `on_deadline` once [`Controller::next_deadline`] is past;
//! 2. `schedule` once;
//! 3. the outputs, in order; an `Input::Revoked` that answers one is part of the next batch.

pub mod admission;
mod check;
mod clients;
mod coalesce;
mod config;
mod controller;
mod counters;
mod deaths;
mod dependencies;
mod draining;
mod engines;
mod explain;
mod functions;
mod given;
mod history;
mod hosts;
mod message;
mod nesting;
mod offers;
mod options;
mod preparations;
mod ranges;
mod ready;
mod records;
mod relayed;
mod requests;
mod result_store;
mod scheduler;
mod settle;
mod submit;
mod supervisor;
mod targets;
mod tasks;
mod timeouts;
mod timers;
pub mod transfer;
mod unread;
pub mod uploads;
mod worlds;

pub use check::Violation;
pub use config::Config;
pub use controller::Controller;
pub use counters::{Counters, EngineCounters};
pub use functions::{FunctionTimes, Times};
pub use given::GivenFunctions;
pub use message::{Input, Output};
pub use relayed::HostEvent;
pub use unread::Unread;

/// Nanoseconds on the driver's monotonic (or virtual) clock.
pub type Nanos = u64;
