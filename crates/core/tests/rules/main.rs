//! Each rule of the controller by itself.
#![expect(clippy::unwrap_used, reason = "a test may fail")]

mod bench;
mod engines;
mod tasks;
mod watching;
