//! Requests of a client, and how far each is.

pub(in crate::client) mod begun;
pub(in crate::client) mod history;
pub(in crate::client) mod pending;
pub(in crate::client) mod request;
