//! What a client sends: calls, their functions and arguments.

pub(in crate::client) mod announce;
pub(in crate::client) mod call;
pub(in crate::client) mod dependencies;
pub(in crate::client) mod functions;
pub(in crate::client) mod submit;
pub(in crate::client) mod upload;
