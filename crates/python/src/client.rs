//! The client's endpoint.

mod announce;
mod background;
mod call;
mod deaths;
mod dispatch;
mod far;
mod functions;
mod history;
mod link;
mod pending;
mod record;
mod request;
mod shared;
mod submit;
mod subscription;
mod tell;
mod unresolved;
mod upload;
mod waiting;
mod wire;
mod written;

pub use announce::split_announce;
pub use history::History;
pub use link::Link;
pub use pending::Pending;
pub use shared::{Incoming, Step, wall_ns};
pub use submit::Submitter;
pub use tell::tell;
