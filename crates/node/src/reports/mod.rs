//! What a node says about itself and what happens in it.

pub(crate) mod host_counts;
pub(crate) mod requests;
pub(crate) mod ring;
pub(crate) mod watch;
