//! Bytes on wires: framed links over unix sockets, TCP and TLS, with descriptor passing.
//!
//! There is no async runtime: every call except [`Link::wait`] is nonblocking, and a link belongs to one thread at a
//! time. This crate does not know what the frames mean.

mod error;
mod link;
mod listener;
pub mod local;
pub mod proof;
pub mod seal;
pub mod tls;

pub use error::LinkError;
pub use link::inbox::{Frame, Inbox};
pub use link::prove::{DialSecurity, Route};
pub use link::resume::{ask_to_resume, generate_session_key};
pub use link::{Link, LinkCounters, Readiness};
pub use listener::Listener;
pub use local::PeerCredentials;
