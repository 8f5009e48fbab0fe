//! Bytes on wires: framed links over unix sockets, TCP and TLS, with descriptor passing.
//!
//! There is no async runtime: every call except [`Link::wait`] is nonblocking, and a link belongs to one thread at a
//! time. This crate does not know what the frames mean.

mod blocks;
mod error;
mod idle;
mod inbox;
mod link;
mod listener;
pub mod local;
mod outbox;
pub mod proof;
mod prove;
pub mod seal;
mod socket;
pub mod tls;

pub use error::LinkError;
pub use inbox::{Frame, Inbox};
pub use link::{Link, LinkCounters, PeerCredentials, Readiness};
pub use listener::Listener;
pub use prove::DialSecurity;
