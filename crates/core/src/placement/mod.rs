//! Which ready task goes to which engine, and when.

pub(crate) mod offers;
pub(crate) mod ready;
pub(crate) mod scheduler;
