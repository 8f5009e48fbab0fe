//! Shared memory as this process names it: by address.

pub(crate) mod allocations;
pub(crate) mod exported;
pub(crate) mod received;
