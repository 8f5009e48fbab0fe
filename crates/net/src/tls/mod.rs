//! TLS 1.3 with raw public keys (RFC 7250) on both sides, each pinned to the exact key.
//!
//! There is no certificate authority and no name: a peer is whoever holds the private half of a key in the connection
//! file. No 0-RTT and no resumption, so a recording is useless.

mod incoming;
mod keys;
mod pinned;
mod session;

pub(crate) use keys::decode_private;
pub use keys::{ClusterKeys, KeyPair, derive, generate};
pub use pinned::{ClientTls, ServerTls};
pub(crate) use session::Session;

/// Which of the cluster's keys the peer proved to hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerKey {
    /// The controller's.
    Server,
    /// The clients'.
    Client,
    /// The engines'.
    Engine,
}

/// Why keys cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// The operating system provided no randomness.
    #[error("cannot generate a key: the operating system provided no randomness")]
    NoRandomness,
    /// The text is not a key of its kind.
    #[error("the {0} key is not base64 of an Ed25519 key; make a new connection file")]
    Malformed(&'static str),
    /// The server could not tell clients and engines apart.
    #[error("client and engine keys must differ; make a new connection file")]
    NotDistinct,
    /// The TLS library refused the configuration.
    #[error("TLS cannot be set up: {0}")]
    Tls(#[from] rustls::Error),
}
