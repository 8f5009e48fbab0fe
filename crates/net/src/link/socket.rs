//! The few system calls a link makes.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use broadleaf_proto::limits::MAX_FRAME_FDS;
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};
use smallvec::SmallVec;

const FDS: usize = MAX_FRAME_FDS as usize;
/// The buffer size requested for unix sockets; the kernel grants as much as its own limit allows.
const UNIX_BUFFER_BYTES: usize = 4 * 1024 * 1024;

/// Type of service of connections that carry control messages.
const LOW_DELAY: u8 = 0x10;

#[derive(Debug)]
pub(crate) enum Socket {
    Unix(UnixStream),
    Tcp {
        stream: TcpStream,
        /// See [`crate::Route::acknowledges_at_once`].
        acknowledges_at_once: bool,
    },
}

/// The result of one receive call.
#[derive(Debug)]
pub(crate) enum Received {
    WouldBlock,
    End,
    Bytes(usize),
    /// There were more descriptors than a frame may have; the kernel closed some.
    TooManyFds,
}

impl Socket {
    pub(crate) fn unix(stream: UnixStream) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        rustix::net::sockopt::set_socket_send_buffer_size(&stream, UNIX_BUFFER_BYTES)?;
        rustix::net::sockopt::set_socket_recv_buffer_size(&stream, UNIX_BUFFER_BYTES)?;
        Ok(Self::Unix(stream))
    }

    pub(crate) fn tcp(stream: TcpStream) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        // Asks routers and queues to send small messages first. If they cannot be asked, nothing is lost.
        let _ = rustix::net::sockopt::set_ip_tos(&stream, LOW_DELAY);
        Ok(Self::Tcp {
            stream,
            acknowledges_at_once: false,
        })
    }

    /// Acknowledges from now on whatever a receive call returns.
    pub(crate) fn acknowledge_at_once(&mut self) {
        if let Self::Tcp {
            acknowledges_at_once,
            ..
        } = self
        {
            *acknowledges_at_once = true;
        }
    }

    /// The kernel delays acknowledgements again after each exchange, so this is said again.
    fn acknowledge(&self) {
        if let Self::Tcp {
            stream,
            acknowledges_at_once: true,
        } = self
        {
            // If it cannot be asked, data arrives later, and nothing is lost.
            let _ = rustix::net::sockopt::set_tcp_quickack(stream, true);
        }
    }

    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Unix(stream) => stream.as_fd(),
            Self::Tcp { stream, .. } => stream.as_fd(),
        }
    }

    /// One receive call; descriptors are added to `fds`.
    pub(crate) fn receive(
        &self,
        room: &mut [u8],
        fds: &mut SmallVec<[OwnedFd; 4]>,
    ) -> io::Result<Received> {
        let result = retry(|| match self {
            Self::Unix(stream) => {
                let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS))];
                let mut control = RecvAncillaryBuffer::new(&mut space);
                let message = rustix::net::recvmsg(
                    stream,
                    &mut [IoSliceMut::new(room)],
                    &mut control,
                    RecvFlags::CMSG_CLOEXEC,
                )?;
                for item in control.drain() {
                    if let RecvAncillaryMessage::ScmRights(rights) = item {
                        fds.extend(rights);
                    }
                }
                if message.flags.contains(ReturnFlags::CTRUNC) {
                    return Ok(Received::TooManyFds);
                }
                Ok(Received::Bytes(message.bytes))
            }
            Self::Tcp { stream, .. } => rustix::net::recv(stream, &mut *room, RecvFlags::empty())
                .map(|(_, bytes)| Received::Bytes(bytes)),
        });
        self.acknowledge();
        came(result)
    }

    /// One receive call into several buffers, one after another; without descriptors.
    pub(crate) fn receive_parts(&self, parts: &mut [IoSliceMut<'_>]) -> io::Result<Received> {
        let result = retry(|| rustix::io::readv(self.as_fd(), parts).map(Received::Bytes));
        self.acknowledge();
        came(result)
    }

    /// One send call: returns how many bytes were taken, `None` if it would block.
    pub(crate) fn send(&self, bytes: &[u8], fds: &[OwnedFd]) -> io::Result<Option<usize>> {
        let flags = SendFlags::NOSIGNAL;
        let result = retry(|| {
            if fds.is_empty() {
                return rustix::net::send(self.as_fd(), bytes, flags);
            }
            let borrowed: SmallVec<[BorrowedFd<'_>; 4]> = fds.iter().map(AsFd::as_fd).collect();
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS))];
            let mut control = SendAncillaryBuffer::new(&mut space);
            if !control.push(SendAncillaryMessage::ScmRights(&borrowed)) {
                return Err(Errno::TOOBIG);
            }
            rustix::net::sendmsg(self.as_fd(), &[IoSlice::new(bytes)], &mut control, flags)
        });
        went(result)
    }

    /// As [`Socket::send`], for several pieces one after another.
    pub(crate) fn send_parts(&self, parts: &[IoSlice<'_>]) -> io::Result<Option<usize>> {
        let mut control = SendAncillaryBuffer::default();
        went(retry(|| {
            rustix::net::sendmsg(self.as_fd(), parts, &mut control, SendFlags::NOSIGNAL)
        }))
    }
}

fn came(result: Result<Received, Errno>) -> io::Result<Received> {
    match result {
        Ok(Received::Bytes(0)) => Ok(Received::End),
        Ok(received) => Ok(received),
        Err(Errno::AGAIN) => Ok(Received::WouldBlock),
        Err(error) => Err(error.into()),
    }
}

fn went(result: Result<usize, Errno>) -> io::Result<Option<usize>> {
    match result {
        Ok(count) => Ok(Some(count)),
        Err(Errno::AGAIN) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

fn retry<T>(mut call: impl FnMut() -> Result<T, Errno>) -> Result<T, Errno> {
    loop {
        match call() {
            Err(Errno::INTR) => {}
            result => return result,
        }
    }
}
