//! Where peers dial in.

use std::fs::{self, Permissions};
use std::io;
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use crate::link::Link;
use crate::tls::ServerTls;

/// A nonblocking listener. A unix listener's path is removed when it is dropped.
#[derive(Debug)]
pub struct Listener(Kind);

#[derive(Debug)]
enum Kind {
    Unix {
        listener: UnixListener,
        path: PathBuf,
        inode: u64,
    },
    Tcp {
        listener: TcpListener,
        tls: Option<ServerTls>,
    },
}

impl Listener {
    /// Listens on a unix socket that only this user can reach: mode 0600, in a directory of mode
    /// 0700 (made if missing). A socket left by a dead process is replaced.
    ///
    /// # Errors
    /// `AddrInUse` when somebody answers at `path`, `AlreadyExists` when something else is there,
    /// `PermissionDenied` when the directory is another user's or open to others.
    pub fn unix(path: &Path) -> io::Result<Self> {
        let directory = path.parent().ok_or(io::ErrorKind::InvalidInput)?;
        private_directory(directory)?;
        remove_stale(path)?;
        let listener = UnixListener::bind(path)?;
        fs::set_permissions(path, Permissions::from_mode(0o600))?;
        listener.set_nonblocking(true)?;
        let inode = fs::symlink_metadata(path)?.ino();
        Ok(Self(Kind::Unix {
            listener,
            path: path.to_owned(),
            inode,
        }))
    }

    /// Listens on plaintext TCP; port 0 picks a free one.
    ///
    /// # Errors
    /// When the address is in use or not this host's.
    pub fn tcp(address: impl ToSocketAddrs) -> io::Result<Self> {
        Self::bind_tcp(address, None)
    }

    /// Listens on TCP and speaks TLS to everyone; port 0 picks a free one.
    ///
    /// # Errors
    /// When the address is in use or not this host's.
    pub fn tls(address: impl ToSocketAddrs, tls: ServerTls) -> io::Result<Self> {
        Self::bind_tcp(address, Some(tls))
    }

    fn bind_tcp(address: impl ToSocketAddrs, tls: Option<ServerTls>) -> io::Result<Self> {
        let listener = TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        Ok(Self(Kind::Tcp { listener, tls }))
    }

    /// Takes the next connection, or `None` when nobody waits.
    ///
    /// # Errors
    /// When accepting fails; running out of descriptors is the usual cause.
    pub fn accept(&self) -> io::Result<Option<Link>> {
        let accepted = match &self.0 {
            Kind::Unix { listener, .. } => listener.accept().and_then(|(s, _)| Link::unix(s)),
            Kind::Tcp { listener, tls } => listener.accept().and_then(|(s, _)| match tls {
                Some(tls) => Link::tls_server(s, tls),
                None => Link::tcp(s),
            }),
        };
        match accepted {
            Ok(link) => Ok(Some(link)),
            Err(error) if is_transient(error.kind()) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The address peers dial, for TCP.
    pub fn tcp_address(&self) -> Option<SocketAddr> {
        match &self.0 {
            Kind::Unix { .. } => None,
            Kind::Tcp { listener, .. } => listener.local_addr().ok(),
        }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.0 {
            Kind::Unix { listener, .. } => listener.as_fd(),
            Kind::Tcp { listener, .. } => listener.as_fd(),
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Kind::Unix { path, inode, .. } = &self.0 {
            // Only if it is still ours: a successor may have replaced it.
            if fs::symlink_metadata(path).is_ok_and(|m| m.ino() == *inode) {
                // Nothing is lost if it stays: the next listener replaces it.
                let _ = fs::remove_file(path);
            }
        }
    }
}

/// Nobody waits, or who waited has gone: neither is the listener's trouble.
fn is_transient(kind: io::ErrorKind) -> bool {
    use io::ErrorKind as K;
    matches!(
        kind,
        K::WouldBlock | K::ConnectionAborted | K::ConnectionReset | K::Interrupted
    )
}

fn private_directory(directory: &Path) -> io::Result<()> {
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(directory)?;
    let found = fs::metadata(directory)?;
    if found.uid() != rustix::process::geteuid().as_raw() || found.mode() & 0o077 != 0 {
        return Err(io::Error::new(
            io::ErrorKind::PermissionDenied,
            format!("{} must be yours alone: chmod 700 it", directory.display()),
        ));
    }
    Ok(())
}

fn remove_stale(path: &Path) -> io::Result<()> {
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
        Ok(found) if !found.file_type().is_socket() => {
            return Err(io::Error::new(
                io::ErrorKind::AlreadyExists,
                format!("{} exists and is no socket", path.display()),
            ));
        }
        Ok(_) => {}
    }
    match UnixStream::connect(path) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => fs::remove_file(path),
        Err(error) => Err(error),
        Ok(_) => Err(io::Error::new(
            io::ErrorKind::AddrInUse,
            format!("another process listens at {}", path.display()),
        )),
    }
}
