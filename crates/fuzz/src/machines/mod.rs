//! What peers say, told to the machines that decide.

pub mod client;
pub mod engine;
pub mod mover;
pub mod relay;
pub mod submissions;
pub mod unsent;
pub mod world;
