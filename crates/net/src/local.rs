//! Unix sockets in private directories, so that no other user can impersonate the listener.
//!
//! A socket is reached through a descriptor of its directory, which is checked first: so no other user can have made
//! it, nor exchange it in between, and its path may be longer than the 107 bytes of a socket's address.

use std::fs::{self, DirBuilder, Permissions};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use nix::sys::socket::{getsockopt, sockopt};
use rustix::fs::{Mode, OFlags};

/// A directory that only this user can use, and a socket's name in it.
#[derive(Debug)]
struct SocketName {
    directory: OwnedFd,
    name: PathBuf,
}

impl SocketName {
    fn open(path: &Path) -> io::Result<Self> {
        let (Some(directory), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let opened = rustix::fs::open(directory, flags, Mode::empty())?;
        let found = rustix::fs::fstat(&opened)?;
        let me = rustix::process::geteuid().as_raw();
        if found.st_uid != me {
            let owner = found.st_uid;
            return Err(denied(format!(
                "{} belongs to user {owner}, and you are user {me}: the listener is not yours; connect as the user who started the cluster",
                directory.display()
            )));
        }
        if found.st_mode & 0o077 != 0 {
            return Err(denied(format!(
                "{} is open to other users: the listener may not be yours; chmod 700 it",
                directory.display()
            )));
        }
        Ok(Self {
            directory: opened,
            name: name.into(),
        })
    }

    /// A short path of the socket that stays within the checked directory.
    fn path(&self) -> PathBuf {
        Path::new("/proc/self/fd")
            .join(self.directory.as_raw_fd().to_string())
            .join(&self.name)
    }
}

/// Connects to a socket of this user. Both its directory and the listening process are checked before a byte is sent.
///
/// # Errors
/// `PermissionDenied` if the directory or the listener belongs to another user; otherwise the error of
/// connecting.
pub fn dial(path: &Path) -> io::Result<UnixStream> {
    let stream = UnixStream::connect(SocketName::open(path)?.path())?;
    let listener = credentials(&stream)?.uid;
    let me = rustix::process::geteuid().as_raw();
    if listener != me {
        return Err(denied(format!(
            "a process of user {listener} listens at {}, and you are user {me}: it is not your cluster",
            path.display()
        )));
    }
    Ok(stream)
}

/// The process at the other end of a unix socket, as the kernel knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerCredentials {
    /// Its process id when it connected; `None` if it is in a namespace of processes that this one does not see.
    pub pid: Option<i32>,
    /// Its effective user.
    pub uid: u32,
    /// Its effective group.
    pub gid: u32,
}

/// Who is at the other end. `rustix` has no process id for a process that this one does not see.
pub(crate) fn credentials(stream: &UnixStream) -> io::Result<PeerCredentials> {
    let peer = getsockopt(stream, sockopt::PeerCredentials)?;
    Ok(PeerCredentials {
        pid: (peer.pid() != 0).then_some(peer.pid()),
        uid: peer.uid(),
        gid: peer.gid(),
    })
}

/// A listening socket; removed when dropped.
#[derive(Debug)]
pub(crate) struct LocalListener {
    pub(crate) socket: UnixListener,
    name: SocketName,
    inode: u64,
}

impl LocalListener {
    /// Listens at `path`, with mode 0600. Its directory is created if missing; a socket left by a dead process is
    /// replaced.
    pub(crate) fn bind(path: &Path) -> io::Result<Self> {
        let directory = path.parent().ok_or(io::ErrorKind::InvalidInput)?;
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(directory)?;
        let name = SocketName::open(path)?;
        let short = name.path();
        remove_stale(&short, path)?;
        let socket = UnixListener::bind(&short)?;
        fs::set_permissions(&short, Permissions::from_mode(0o600))?;
        socket.set_nonblocking(true)?;
        let inode = fs::symlink_metadata(&short)?.ino();
        Ok(Self {
            socket,
            name,
            inode,
        })
    }
}

impl Drop for LocalListener {
    fn drop(&mut self) {
        let path = self.name.path();
        // Only if it is still ours: a successor may have replaced it.
        if fs::symlink_metadata(&path).is_ok_and(|m| m.ino() == self.inode) {
            // Nothing is lost if it stays: the next listener replaces it.
            let _ = fs::remove_file(path);
        }
    }
}

fn denied(message: String) -> io::Error {
    io::Error::new(io::ErrorKind::PermissionDenied, message)
}

fn remove_stale(short: &Path, path: &Path) -> io::Result<()> {
    match fs::symlink_metadata(short) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
        Ok(found) if !found.file_type().is_socket() => {
            return Err(io::Error::new(
                io::ErrorKind::AlreadyExists,
                format!("{} exists and is not a socket", path.display()),
            ));
        }
        Ok(_) => {}
    }
    match UnixStream::connect(short) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => fs::remove_file(short),
        Err(error) => Err(error),
        Ok(_) => Err(io::Error::new(
            io::ErrorKind::AddrInUse,
            format!("another process listens at {}", path.display()),
        )),
    }
}
