//! Which ready task goes to which engine, and when.

pub(crate) mod groups;
pub(crate) mod ready;
pub(crate) mod scheduler;
