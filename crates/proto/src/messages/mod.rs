//! Messages: between which peers, and what they say. One to a frame, except for commands to relays and their events.

pub mod control;
pub mod engine;
pub mod fork_server;
pub mod host;
pub mod mover;
pub mod relay;
pub mod resume;
pub mod upload;
