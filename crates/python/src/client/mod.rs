//! The client's endpoint.

mod background;
mod incoming;
mod link;
mod outgoing;
mod rejoin;
mod requests;
mod session;
mod sessions;
mod shared;
mod waiting;
mod wire;

pub use link::Link;
pub use outgoing::announce::split_announce;
pub use outgoing::submit::Submitter;
pub use requests::history::History;
pub use requests::pending::Pending;
pub use session::Session;
pub use shared::{Incoming, Step};
pub use waiting::Waiting;
