//! Connected links over each transport, and code that moves bytes between them.
#![allow(dead_code)] // each test binary uses its part

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use broadleaf_net::proof::{DialProof, ListenProof, ProofKey};
use broadleaf_net::tls::{self, ClientTls, ClusterKeys, ServerTls};
use broadleaf_net::{Frame, Link, LinkError, Listener};
use broadleaf_proto::limits::{MAX_FRAME_BYTES, MAX_FRAME_FDS};
use broadleaf_proto::proof::DialKey;

/// No condition here takes nearly as long.
pub const PATIENCE: Duration = Duration::from_secs(30);
pub const BREATH: Option<Duration> = Some(Duration::from_millis(5));

#[derive(Clone, Copy, Debug)]
pub enum Wire {
    Unix,
    Tcp,
    Tls,
}

pub fn server_tls(keys: &ClusterKeys) -> ServerTls {
    ServerTls::new(
        &keys.server.private,
        &keys.client.public,
        &keys.engine.public,
    )
    .unwrap()
}

pub fn client_tls(keys: &ClusterKeys) -> ClientTls {
    ClientTls::new(&keys.client.private, &keys.server.public).unwrap()
}

pub fn listen_proof(keys: &ClusterKeys) -> ListenProof {
    ListenProof {
        client: Some(ProofKey::new(&keys.client.private, "client's").unwrap()),
        engine: ProofKey::new(&keys.engine.private, "engine's").unwrap(),
    }
}

pub fn client_proof(keys: &ClusterKeys) -> DialProof {
    DialProof {
        kind: DialKey::Client,
        key: ProofKey::new(&keys.client.private, "client's").unwrap(),
    }
}

/// Two connected links whose handshake, if any, is done.
pub fn connect(wire: Wire) -> (Link, Link) {
    let keys = tls::generate().unwrap();
    let (mut a, mut b) = match wire {
        Wire::Unix => Link::pair().unwrap(),
        Wire::Tcp | Wire::Tls => {
            let address = ("127.0.0.1", 0);
            let listener = match wire {
                Wire::Tls => Listener::tls(address, server_tls(&keys)).unwrap(),
                _ => Listener::tcp(address, listen_proof(&keys)).unwrap(),
            };
            let stream = TcpStream::connect(listener.tcp_address().unwrap()).unwrap();
            let a = match wire {
                Wire::Tls => Link::tls_client(stream, &client_tls(&keys)).unwrap(),
                _ => Link::tcp(stream)
                    .and_then(|link| link.prove_as_dialer(&client_proof(&keys)))
                    .unwrap(),
            };
            (a, until(|| listener.accept().unwrap()).0)
        }
    };
    establish(&mut a, &mut b).unwrap();
    for link in [&mut a, &mut b] {
        link.set_frame_limit(MAX_FRAME_BYTES);
        link.set_max_fds(MAX_FRAME_FDS);
    }
    (a, b)
}

/// Runs the handshake to its end on both sides, or to the first error.
pub fn establish(a: &mut Link, b: &mut Link) -> Result<(), LinkError> {
    let start = Instant::now();
    while !(a.is_established() && b.is_established()) {
        assert!(start.elapsed() < PATIENCE, "no handshake");
        for link in [&mut *a, &mut *b] {
            link.flush()?;
            link.wait(false, BREATH)?;
            link.fill()?;
        }
    }
    Ok(())
}

pub fn until<T>(mut condition: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(value) = condition() {
            return value;
        }
        assert!(start.elapsed() < PATIENCE, "condition not met");
        std::thread::yield_now();
    }
}

/// Fills once and takes all frames.
pub fn take(link: &mut Link, into: &mut Vec<Frame>) -> Result<usize, LinkError> {
    let count = link.fill()?;
    while let Some(frame) = link.next_frame()? {
        into.push(frame);
    }
    Ok(count)
}

/// Fills until an error occurs.
pub fn until_error(link: &mut Link) -> LinkError {
    let mut frames = Vec::new();
    until(|| {
        if let Err(error) = take(link, &mut frames) {
            return Some(error);
        }
        let _ = link.flush();
        None
    })
}

/// A wire between two sockets that passes at most `step` bytes at a time and remembers them.
pub struct Relay {
    pub near: TcpStream,
    pub far: TcpStream,
    pub step: usize,
    pub from_near: Vec<u8>,
}

impl Relay {
    /// The relay, the socket that dials, and the socket that is dialled.
    pub fn new(step: usize) -> (Self, TcpStream, TcpStream) {
        let (dialling, near) = tcp_pair();
        let (far, dialled) = tcp_pair();
        near.set_nonblocking(true).unwrap();
        far.set_nonblocking(true).unwrap();
        let relay = Self {
            near,
            far,
            step,
            from_near: Vec::new(),
        };
        (relay, dialling, dialled)
    }

    /// Passes one step each way, if there is one.
    pub fn pass(&mut self) {
        let passed = step(&self.near, &self.far, self.step);
        self.from_near.extend(passed);
        step(&self.far, &self.near, self.step);
    }
}

/// Passes at most `bytes` from one nonblocking socket to another; returns them.
pub fn step<'a, F, T>(mut from: &'a F, mut to: &'a T, bytes: usize) -> Vec<u8>
where
    &'a F: Read,
    &'a T: Write,
{
    let mut buffer = vec![0; bytes];
    match from.read(&mut buffer) {
        Ok(count) => {
            buffer.truncate(count);
            // At this size the other side's buffers have room: the tests receive while they send.
            to.write_all(&buffer).unwrap();
            buffer
        }
        Err(_) => Vec::new(),
    }
}

pub fn tcp_pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let a = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let b = listener.accept().unwrap().0;
    a.set_nodelay(true).unwrap();
    b.set_nodelay(true).unwrap();
    (a, b)
}
