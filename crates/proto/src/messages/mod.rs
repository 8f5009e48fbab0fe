//! Messages, one to a frame: between which peers, and what they say.

pub mod control;
pub mod engine;
pub mod fork_server;
pub mod mover;
pub mod relay;
pub mod upload;
