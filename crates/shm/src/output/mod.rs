//! Output of a process: what another process still has of it after its death.

pub(crate) mod recent;
pub(crate) mod stdio;
pub(crate) mod unsent;
