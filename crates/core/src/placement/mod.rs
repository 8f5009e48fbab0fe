//! Tasks that are ready, in the order in which engines get them.

pub(crate) mod groups;
pub(crate) mod ready;
