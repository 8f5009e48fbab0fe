//! What a client is told, and what it does about it.

pub(in crate::client) mod dispatch;
pub(in crate::client) mod far;
pub(in crate::client) mod shown;
pub(in crate::client) mod subscription;
pub(in crate::client) mod tell;
