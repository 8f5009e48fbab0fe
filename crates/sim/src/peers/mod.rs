//! Simulated peers of the controller.

pub(crate) mod client;
pub(crate) mod engine;
pub(crate) mod hosts;
pub(crate) mod known_engines;
pub(crate) mod liar;
pub(crate) mod links;
pub(crate) mod processes;
pub(crate) mod values;
pub(crate) mod worlds;
