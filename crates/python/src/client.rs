//! The client's endpoint.

mod adoption;
mod background;
mod dispatch;
mod history;
mod link;
mod pending;
mod request;
mod shared;
mod submit;
mod unresolved;
mod wire;

pub use history::History;
pub use link::Link;
pub use pending::Pending;
pub use shared::wall_ns;
pub use submit::{Submitter, split_announce};
