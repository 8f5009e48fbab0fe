//! What simulated tasks do.

pub(crate) mod job;
pub(crate) mod nested;
