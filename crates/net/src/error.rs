//! Why a link ended.

use std::io;

use broadleaf_proto::DecodeError;
use broadleaf_proto::control::Refusal;

/// Why a link cannot continue, or cannot send a frame. Unless the call says otherwise, the link is unusable then: drop
/// it.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// The peer closed the connection between two frames.
    #[error("the peer closed the connection")]
    Closed,
    /// The connection ended inside a frame.
    #[error("the connection ended inside a frame: the peer was killed or the network failed")]
    ClosedInFrame,
    /// The network, or the peer's system, gave the connection up.
    #[error("the connection was lost: {0}")]
    Lost(io::Error),
    /// A connection ended before both sides had proven their keys.
    #[error(
        "the peer closed the connection before both sides had proven their keys: it refused our key (is the \
         connection file out of date?), does not use TLS as this side does, or had no room for another connection"
    )]
    ClosedInHandshake,
    /// One side refused the other before the keys were proven.
    #[error("the connection was refused: {}", .0.message)]
    Refused(Refusal),
    /// The listener does not hold the cluster's key.
    #[error(
        "the listener does not hold the cluster's key: it has another version, belongs to another cluster, or has replaced a cluster that is gone; nothing was sent to it"
    )]
    Impostor,
    /// A system call failed.
    #[error("input or output failed: {0}")]
    Io(#[from] io::Error),
    /// The peer holds none of the keys in the connection file.
    #[error("refused the peer: its key is not in the connection file; is that file out of date?")]
    WrongKey,
    /// The peer did not accept this side's key.
    #[error(
        "the peer refused our key: the connection file is out of date or belongs to another cluster"
    )]
    KeyRefused,
    /// TLS failed in another way: usually the peer does not speak it.
    #[error("TLS failed: {0}; do both sides use it?")]
    Tls(#[source] rustls::Error),
    /// The peer sent bytes that are not a frame.
    #[error("refused a frame: {0}; the peer runs another version or is not Broadleaf")]
    Decode(#[from] DecodeError),
    /// The peer sent more descriptors than it may.
    #[error("refused {count} file descriptors where {limit} are allowed; they were closed")]
    TooManyFds {
        /// Number received.
        count: usize,
        /// Number allowed.
        limit: usize,
    },
    /// A frame claims descriptors that did not come with it.
    #[error("a frame claims {claimed} file descriptors but {received} came with it")]
    MissingFds {
        /// The number in the header.
        claimed: usize,
        /// What came.
        received: usize,
    },
    /// This transport cannot carry descriptors.
    #[error("file descriptors can only be sent over unix sockets; send the bytes inline instead")]
    FdsNeedUnixSocket,
    /// This transport cannot carry sealed payload.
    #[error("sealed payload can only be sent over TLS; is encryption on at one end only?")]
    BlockNeedsTls,
    /// The peer does not say what it has received, so the link could not be resumed.
    #[error("the peer does not acknowledge what it receives")]
    Unacknowledged,
    /// This side tried to send a frame that no peer accepts.
    #[error("a record of {bytes} bytes is above the frame limit of {limit}; split it")]
    RecordTooLarge {
        /// Size of the record.
        bytes: usize,
        /// Largest body of a frame.
        limit: usize,
    },
}

impl LinkError {
    /// Whether the system at the other end said that it knows no such connection: the peer may have ended.
    pub fn is_reset(&self) -> bool {
        use io::ErrorKind as K;
        let is_reset = |kind| matches!(kind, K::ConnectionReset | K::BrokenPipe);
        matches!(self, Self::Lost(error) if is_reset(error.kind()))
    }

    /// Whether the connection is simply gone, as opposed to misused.
    pub fn is_closed(&self) -> bool {
        matches!(
            self,
            Self::Closed | Self::ClosedInFrame | Self::ClosedInHandshake | Self::Lost(_)
        )
    }
}

impl From<rustls::Error> for LinkError {
    fn from(error: rustls::Error) -> Self {
        use rustls::{AlertDescription, CertificateError, Error};
        match error {
            Error::InvalidCertificate(CertificateError::ApplicationVerificationFailure) => {
                Self::WrongKey
            }
            Error::AlertReceived(AlertDescription::AccessDenied) => Self::KeyRefused,
            other => Self::Tls(other),
        }
    }
}

/// Whether the operating system says that the connection is gone.
pub(crate) fn is_lost(error: &io::Error) -> bool {
    use io::ErrorKind as K;
    matches!(
        error.kind(),
        K::BrokenPipe
            | K::ConnectionReset
            | K::ConnectionAborted
            | K::NotConnected
            | K::TimedOut
            | K::HostUnreachable
            | K::NetworkUnreachable
            | K::NetworkDown
    )
}
