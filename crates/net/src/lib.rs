//! Bytes on wires: framed links over unix sockets, TCP and TLS, with descriptor passing.
//!
//! No async runtime: every call is nonblocking but for [`Link::wait`], and a link belongs to one
//! thread at a time. What the frames mean is not known here.

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
