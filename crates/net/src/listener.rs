//! Where peers connect.

use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::sync::Arc;

use crate::link::Link;
use crate::local::LocalListener;
use crate::proof::ListenProof;
use crate::tls::ServerTls;

/// A nonblocking listener. A unix listener's path is removed when it is dropped.
#[derive(Debug)]
pub struct Listener(Kind);

#[derive(Debug)]
enum Kind {
    Unix(LocalListener, Arc<ListenProof>, Option<ServerTls>),
    Tcp(TcpListener, Security),
}

/// How peers that connect over TCP prove who they are.
#[derive(Debug)]
enum Security {
    Tls(ServerTls),
    /// Nothing is encrypted.
    Proof(Arc<ListenProof>),
}

impl Listener {
    /// Listens on a unix socket that only this user can reach: mode 0600, in a directory of mode
    /// 0700 (made if missing). A socket left by a dead process is replaced. With `tls`, peers on other hosts may begin
    /// with TLS, whose bytes somebody forwards.
    ///
    /// # Errors
    /// `AddrInUse` if somebody answers at `path`, `AlreadyExists` if something else is there,
    /// `PermissionDenied` if the directory belongs to another user or is open to others.
    pub fn unix(path: &Path, proof: ListenProof, tls: Option<ServerTls>) -> io::Result<Self> {
        let listener = LocalListener::bind(path)?;
        Ok(Self(Kind::Unix(listener, Arc::new(proof), tls)))
    }

    /// Listens on plaintext TCP for peers that prove a key; port 0 picks a free one.
    ///
    /// # Errors
    /// When the address is in use or not this host's.
    pub fn tcp(address: impl ToSocketAddrs, proof: ListenProof) -> io::Result<Self> {
        Self::bind_tcp(address, Security::Proof(Arc::new(proof)))
    }

    /// Listens on TCP and speaks TLS to everyone; port 0 picks a free one.
    ///
    /// # Errors
    /// When the address is in use or not this host's.
    pub fn tls(address: impl ToSocketAddrs, tls: ServerTls) -> io::Result<Self> {
        Self::bind_tcp(address, Security::Tls(tls))
    }

    fn bind_tcp(address: impl ToSocketAddrs, security: Security) -> io::Result<Self> {
        let listener = TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        Ok(Self(Kind::Tcp(listener, security)))
    }

    /// Accepts the next connection, with its origin address over TCP; `None` if nobody is waiting.
    ///
    /// # Errors
    /// If accepting fails, usually because the process is out of descriptors.
    pub fn accept(&self) -> io::Result<Option<(Link, Option<IpAddr>)>> {
        let accepted = match &self.0 {
            Kind::Unix(listener, proof, tls) => listener.socket.accept().and_then(|(s, _)| {
                let link = Link::unix(s)?.prove_as_listener(proof)?;
                Ok((link.or_tls(tls.as_ref()), None))
            }),
            Kind::Tcp(listener, security) => listener.accept().and_then(|(s, from)| {
                let link = match security {
                    Security::Tls(tls) => Link::tls_server(s, tls)?,
                    Security::Proof(proof) => Link::tcp(s)?.prove_as_listener(proof)?,
                };
                Ok((link, Some(from.ip())))
            }),
        };
        match accepted {
            Ok(accepted) => Ok(Some(accepted)),
            Err(error) if is_transient(error.kind()) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The address peers dial, for TCP.
    pub fn tcp_address(&self) -> Option<SocketAddr> {
        match &self.0 {
            Kind::Unix(..) => None,
            Kind::Tcp(listener, _) => listener.local_addr().ok(),
        }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.0 {
            Kind::Unix(listener, ..) => listener.socket.as_fd(),
            Kind::Tcp(listener, _) => listener.as_fd(),
        }
    }
}

/// Nobody is waiting, or the waiting peer is gone: neither is an error of the listener.
fn is_transient(kind: io::ErrorKind) -> bool {
    use io::ErrorKind as K;
    matches!(
        kind,
        K::WouldBlock | K::ConnectionAborted | K::ConnectionReset | K::Interrupted
    )
}
