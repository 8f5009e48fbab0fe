//! Connections to a node: how a process finds it, and those of processes that only obey it.

pub(crate) mod connect;
pub(crate) mod fork_server;
pub(crate) mod mover;
pub(crate) mod node_link;
