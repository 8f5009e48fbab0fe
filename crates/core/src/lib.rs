//! The controller as a pure state machine: `(now, input) -> outputs`.
//!
//! It uses no clock, socket, file, thread or operating-system randomness: a driver feeds [`Input`]s to a [`Controller`]
//! and carries out its [`Output`]s, so that a whole cluster can run in one thread under a seed. A driver's loop:
//!
//! 1. `on_input` for each input of a batch, `on_deadline` once [`Controller::next_deadline`] is past;
//! 2. `schedule` once;
//! 3. the outputs, in order; a report that answers one is part of the next batch.

mod check;
mod clients;
mod config;
mod controller;
mod counters;
mod engines;
mod forms;
pub mod interrupts;
pub mod journal;
mod lane;
mod lists;
pub mod liveness;
mod message;
mod placement;
pub mod recording;
pub mod redial;
pub mod relay;
mod results;
pub mod returning;
mod tasks;
mod timers;
pub mod transfer;

pub use check::Violation;
pub use clients::{admission, uploads};
pub use config::Config;
pub use controller::Controller;
pub use counters::{Counters, Course, EngineCounters};
pub use engines::given::GivenFunctions;
pub use lane::Lane;
pub use message::{Input, Output};
pub use results::failures::Failure;
pub use tasks::functions::{FunctionTimes, Times};

/// Nanoseconds on the driver's monotonic (or virtual) clock.
pub type Nanos = u64;
