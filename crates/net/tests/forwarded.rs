//! TLS to a unix socket: the peer is on another host, and its bytes are forwarded, as ssh and sshd do it.
#![allow(clippy::unwrap_used)] // a test fails by panicking

mod wires;

use std::fs::{self, File};
use std::io::{IoSlice, Read};
use std::net::TcpStream;
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::time::Instant;

use broadleaf_net::tls::{self, ClientTls, ClusterKeys, PeerKey};
use broadleaf_net::{DialSecurity, Link, LinkError, Listener, Route, local};
use broadleaf_proto::FrameKind;
use broadleaf_proto::limits::MAX_FRAME_BYTES;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
use wires::{
    PATIENCE, client_proof, client_tls, establish, listen_proof, server_tls, step, take, tcp_pair,
    until,
};

/// A listener's socket, and what forwards to it.
struct Forwarded {
    keys: ClusterKeys,
    directory: tempfile::TempDir,
    listener: Listener,
    near: TcpStream,
    far: UnixStream,
}

impl Forwarded {
    /// With the dialing end, and the link that the listener has accepted.
    fn new(takes_tls: bool) -> (Self, TcpStream, Link) {
        let directory = tempfile::tempdir().unwrap();
        fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o700)).unwrap();
        let path = directory.path().join("node.sock");
        let keys = tls::generate().unwrap();
        let tls = takes_tls.then(|| server_tls(&keys));
        let listener = Listener::unix(&path, listen_proof(&keys), tls).unwrap();
        let (dialling, near) = tcp_pair();
        let far = local::dial(&path).unwrap();
        near.set_nonblocking(true).unwrap();
        far.set_nonblocking(true).unwrap();
        let (accepted, address) = until(|| listener.accept().unwrap());
        assert!(address.is_none());
        let this = Self {
            keys,
            directory,
            listener,
            near,
            far,
        };
        (this, dialling, accepted)
    }

    fn pass(&self, bytes: usize) {
        step(&self.near, &self.far, bytes);
        step(&self.far, &self.near, bytes);
    }

    /// Runs the handshake to its end, or to the first error; `bytes` travel at once.
    fn establish(&self, a: &mut Link, b: &mut Link, bytes: usize) -> Result<(), LinkError> {
        let start = Instant::now();
        while !(a.is_established() && b.is_established()) {
            assert!(start.elapsed() < PATIENCE, "no handshake");
            for link in [&mut *a, &mut *b] {
                link.flush()?;
                self.pass(bytes);
                link.fill()?;
            }
        }
        Ok(())
    }
}

#[test]
fn a_peer_that_begins_with_tls_is_on_another_host() {
    for at_once in [1, 7, 4096] {
        let (way, dialling, mut b) = Forwarded::new(true);
        let mut a = Link::tls_client(dialling, &client_tls(&way.keys)).unwrap();
        way.establish(&mut a, &mut b, at_once).unwrap();
        assert_eq!(b.peer_key(), Some(PeerKey::Client));
        assert!(!a.is_local() && !b.is_local());
        // The forwarder's user is still known.
        assert!(b.peer_credentials().is_some());
        let file = tempfile::tempfile().unwrap();
        let error = b.send(FrameKind::SegmentAnnounce, b"", &[file.as_fd()]);
        assert!(matches!(error, Err(LinkError::FdsNeedUnixSocket)));
        a.set_frame_limit(MAX_FRAME_BYTES);
        b.set_frame_limit(MAX_FRAME_BYTES);
        let body = vec![5; 60_000];
        a.send(FrameKind::Submit, &body, &[]).unwrap();
        b.send(FrameKind::Result, &body, &[]).unwrap();
        let mut frames = Vec::new();
        until(|| {
            for link in [&mut a, &mut b] {
                link.flush().unwrap();
                way.pass(64 * 1024);
                take(link, &mut frames).unwrap();
            }
            (frames.len() == 2).then_some(())
        });
        assert!(frames.iter().all(|frame| frame.body == body));
    }
}

#[test]
fn a_peer_on_this_host_proves_its_key_at_the_same_socket() {
    let (way, _dialling, _) = Forwarded::new(true);
    let mut a = Link::unix(local::dial(&way.directory.path().join("node.sock")).unwrap())
        .and_then(|link| link.prove_as_dialer(&client_proof(&way.keys)))
        .unwrap();
    let (mut b, _) = until(|| way.listener.accept().unwrap());
    establish(&mut a, &mut b).unwrap();
    assert!(a.is_local() && b.is_local());
    assert_eq!(b.peer_key(), Some(PeerKey::Client));
}

#[test]
fn a_key_of_another_cluster_is_refused() {
    let (way, dialling, mut b) = Forwarded::new(true);
    let other = tls::generate().unwrap();
    let stranger = ClientTls::new(&other.client.private, &way.keys.server.public).unwrap();
    let mut a = Link::tls_client(dialling, &stranger).unwrap();
    way.establish(&mut a, &mut b, 4096).unwrap_err();
    assert_eq!(b.peer_key(), None);
}

#[test]
fn a_listener_that_takes_no_tls_says_so() {
    let (way, dialling, mut b) = Forwarded::new(false);
    let mut a = Link::tls_client(dialling, &client_tls(&way.keys)).unwrap();
    let error = way.establish(&mut a, &mut b, 4096).unwrap_err();
    let LinkError::Decode(_) = error else {
        panic!("{error:?}")
    };
}

#[test]
fn descriptors_that_come_with_the_begin_are_closed() {
    let (way, dialling, mut b) = Forwarded::new(true);
    let mut a = Link::tls_client(dialling, &client_tls(&way.keys)).unwrap();
    a.flush().unwrap();
    let mut begin = vec![0; 4096];
    let len = until(|| (&way.near).read(&mut begin).ok());
    let (reader, writer) = std::io::pipe().unwrap();
    let fds = [writer.as_fd()];
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    assert!(control.push(SendAncillaryMessage::ScmRights(&fds)));
    let sent = rustix::net::sendmsg(
        &way.far,
        &[IoSlice::new(&begin[..len])],
        &mut control,
        SendFlags::empty(),
    );
    assert_eq!(sent.unwrap(), len);
    drop(writer);
    b.fill().unwrap();
    way.establish(&mut a, &mut b, 4096).unwrap();
    let mut left = Vec::new();
    File::from(std::os::fd::OwnedFd::from(reader))
        .read_to_end(&mut left)
        .unwrap();
    assert!(left.is_empty());
}

/// Whether the kernel delays acknowledgements, to send them along with data, as it does after an exchange or two.
fn delays_acknowledgements(acknowledges_at_once: bool) -> bool {
    let keys = tls::generate().unwrap();
    let listener = Listener::tls(("127.0.0.1", 0), server_tls(&keys)).unwrap();
    let mut route = Route::new(
        listener.tcp_address().unwrap(),
        DialSecurity::Tls(client_tls(&keys)),
    );
    route.acknowledges_at_once = acknowledges_at_once;
    let mut a = route
        .link(TcpStream::connect(route.address).unwrap())
        .unwrap();
    let (mut b, _) = until(|| listener.accept().unwrap());
    establish(&mut a, &mut b).unwrap();
    let say = |from: &mut Link, to: &mut Link| {
        from.send(FrameKind::Hello, b"hi", &[]).unwrap();
        from.flush().unwrap();
        until(|| {
            to.fill().unwrap();
            to.next_frame().unwrap()
        });
    };
    (0..100).any(|_| {
        say(&mut a, &mut b);
        say(&mut b, &mut a);
        !rustix::net::sockopt::tcp_quickack(a.as_fd()).unwrap()
    })
}

#[test]
fn a_peer_that_waits_for_acknowledgements_gets_them_at_once() {
    assert!(delays_acknowledgements(false));
    assert!(!delays_acknowledgements(true));
}
