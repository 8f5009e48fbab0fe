//! The client's endpoint.

mod adoption;
mod background;
mod dispatch;
mod link;
mod pending;
mod request;
mod shared;
mod submit;
mod unresolved;
mod wire;

pub use link::Link;
pub use pending::Pending;
pub use shared::wall_ns;
pub use submit::{Submitter, split_announce};
