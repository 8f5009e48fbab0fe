//! Why a node could not start or continue.

use std::io;
use std::path::PathBuf;

use broadleaf_net::LinkError;
use broadleaf_net::seal::SealError;
use broadleaf_net::tls::KeyError;

/// See the module.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// A system call failed.
    #[error("{context}: {source}")]
    Io {
        /// The operation that failed.
        context: &'static str,
        /// How it failed.
        source: io::Error,
    },
    /// The file of a recording cannot be written.
    #[error("recording inputs in {}: {source}", path.display())]
    Recording {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The journal cannot be read or written.
    #[error("the journal {}: {source}", path.display())]
    Journal {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The keys cannot be used.
    #[error("keys of the node: {0}")]
    Tls(#[from] KeyError),
    /// Payload between hosts could not be encrypted.
    #[error("{0}")]
    Seal(#[from] SealError),
    /// The link to the controller failed before it was accepted.
    #[error("the controller: {0}")]
    Link(LinkError),
    /// The controller refused this relay.
    #[error("the controller refused this relay: {0}")]
    Refused(String),
    /// The controller neither accepted nor refused this relay.
    #[error("the controller did not answer; is it reachable from this host?")]
    NoAnswer,
}

impl From<LinkError> for NodeError {
    fn from(error: LinkError) -> Self {
        match error {
            LinkError::Refused(refusal) => Self::Refused(refusal.message),
            error => Self::Link(error),
        }
    }
}

pub(crate) fn io_error<E: Into<io::Error>>(context: &'static str) -> impl FnOnce(E) -> NodeError {
    move |source| NodeError::Io {
        context,
        source: source.into(),
    }
}
