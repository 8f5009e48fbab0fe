//! Planes whose payload is sealed, and someone on the wire between them.
#![allow(clippy::unwrap_used)] // a test fails by panicking

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};

use broadleaf_net::seal::generate_secret;
use broadleaf_net::tls::{self, ClientTls, ClusterKeys, ServerTls};
use broadleaf_net::{DialSecurity, Link, Listener, Route};
use broadleaf_proto::PayloadSecret;
use broadleaf_shm::{Pool, Segment};

use super::{
    CHUNK, N_CHUNKS, OBJECT, data, fetch, hello, listen, next_pull, pool, send, serve, source,
    wait_for, wait_until, welcome,
};
use crate::payload::{Dialer, Plane, PlaneCommand, Setup};

pub(super) struct Cluster {
    keys: ClusterKeys,
    secret: PayloadSecret,
    /// Nobody answers at this address.
    controller: std::net::TcpListener,
}

impl Cluster {
    pub(super) fn new() -> Self {
        Self {
            keys: tls::generate().unwrap(),
            secret: generate_secret().unwrap(),
            controller: listen().0,
        }
    }

    fn server_tls(&self) -> ServerTls {
        ServerTls::among_equals(&self.keys.engine.private).unwrap()
    }

    fn relay(&self, host: u32) -> (Plane, SocketAddr) {
        self.relay_with(host, 256 * 1024, 1)
    }

    pub(super) fn relay_with(
        &self,
        host: u32,
        socket_buffer_bytes: usize,
        streams: usize,
    ) -> (Plane, SocketAddr) {
        let listener = Listener::tls(("127.0.0.1", 0), self.server_tls()).unwrap();
        let address = listener.tcp_address().unwrap();
        let private = &self.keys.engine.private;
        let plane = Plane::start(Setup {
            hello: hello(host),
            listener: Some(listener),
            dialer: Some(Dialer {
                controller: Route::new(
                    self.controller.local_addr().unwrap(),
                    DialSecurity::Tls(ClientTls::new(private, &self.keys.server.public).unwrap()),
                ),
                to_relays: DialSecurity::Tls(ClientTls::among_equals(private).unwrap()),
            }),
            secret: Some(self.secret.clone()),
            socket_buffer_bytes,
            streams,
            piece_bytes: 2 * CHUNK,
            cores: 0,
            niceness: 0,
        });
        (plane.unwrap(), address)
    }
}

fn provide(plane: &Plane) {
    let (segment, _) = Segment::create(data().len() as u64, &data()).unwrap();
    plane.order(PlaneCommand::Provide {
        object: OBJECT,
        bytes: segment.map_readonly(0, data().len() as u64).unwrap(),
        chunk_bytes: CHUNK,
        memory: None,
    });
}

/// What the dialled end of a tapped wire sent.
type Record = Arc<Mutex<Vec<u8>>>;

/// A wire to an address, for one connection; returns the address to dial instead. `act` sees what
/// the dialled end sends, with the number of bytes before it, and may change it or hold it up.
fn tap(
    to: SocketAddr,
    mut act: impl FnMut(usize, &mut [u8]) + Send + 'static,
) -> (SocketAddr, Record) {
    let seen = Record::default();
    let record = Arc::clone(&seen);
    let (address, _) = serve(move |listener| {
        let mut near = listener.accept().unwrap().0;
        let mut far = TcpStream::connect(to).unwrap();
        let (mut from, mut back) = (near.try_clone().unwrap(), far.try_clone().unwrap());
        std::thread::spawn(move || {
            // The thread ends with the connection.
            let _ = std::io::copy(&mut from, &mut back);
            let _ = back.shutdown(Shutdown::Both);
        });
        let mut buffer = vec![0; 1 << 14];
        while let Ok(count @ 1..) = far.read(&mut buffer) {
            let before = record.lock().unwrap().len();
            act(before, &mut buffer[..count]);
            record.lock().unwrap().extend_from_slice(&buffer[..count]);
            if near.write_all(&buffer[..count]).is_err() {
                break;
            }
        }
        let _ = near.shutdown(Shutdown::Both);
    });
    (address, seen)
}

fn holds(seen: &[u8], part: &[u8]) -> bool {
    seen.windows(part.len()).any(|window| window == part)
}

/// An origin, a head and a tail, which are in step when the second half of the object leaves the
/// origin.
struct Chain {
    planes: [Plane; 3],
    /// They own the memory.
    _pools: [Pool; 2],
    into_head: Record,
    into_tail: Record,
}

/// The origin's byte at `spoilt`, in the second half, is changed on the way to the head.
fn chain(cluster: &Cluster, spoilt: Option<usize>) -> Chain {
    let half = data().len() / 2;
    let (origin, address) = cluster.relay(1);
    let (go_on, is_to_go_on) = channel::<()>();
    let (address, into_head) = tap(address, move |before, bytes| {
        if before > half {
            // Until the sender is gone.
            let _ = is_to_go_on.recv();
        }
        let at = spoilt.and_then(|spoilt| spoilt.checked_sub(before));
        if let Some(byte) = at.and_then(|at| bytes.get_mut(at)) {
            *byte ^= 1;
        }
    });
    let (head, head_address) = cluster.relay(2);
    let (head_address, into_tail) = tap(head_address, |_, _| {});
    let (tail, _) = cluster.relay(3);
    let mut pools = [pool(), pool()];
    provide(&origin);
    fetch(&head, &mut pools[0], vec![source(1, Some(address))]);
    fetch(&tail, &mut pools[1], vec![source(2, Some(head_address))]);
    // Then the tail has all complete chunks that the head has.
    wait_until(|| into_tail.lock().unwrap().len() > half - CHUNK as usize);
    drop(go_on);
    Chain {
        planes: [origin, head, tail],
        _pools: pools,
        into_head,
        into_tail,
    }
}

#[test]
fn a_hop_passes_on_what_nobody_on_the_wire_can_read() {
    let cluster = Cluster::new();
    let chain = chain(&cluster, None);
    for plane in &chain.planes[1..] {
        let (bytes, progress) = wait_for(plane).unwrap();
        assert!(bytes == data());
        assert_eq!(progress.corrupt_chunks, 0);
    }
    let into_head = chain.into_head.lock().unwrap();
    let into_tail = chain.into_tail.lock().unwrap();
    for seen in [&into_head, &into_tail] {
        assert!(seen.len() > data().len());
        for chunk in data().chunks(CHUNK as usize) {
            assert!(!holds(seen, &chunk[..32]), "plaintext on the wire");
        }
    }
    assert!(n_passed_on(&into_head, &into_tail) > 0);
}

/// Number of chunks whose ciphertext is the same on both wires.
fn n_passed_on(into_head: &[u8], into_tail: &[u8]) -> u64 {
    let part = |i: u64| &into_head[i as usize * CHUNK as usize + 20_000..][..32];
    let passed_on = (0..N_CHUNKS).filter(|i| holds(into_tail, part(*i)));
    passed_on.count() as u64
}

#[test]
fn a_slow_host_behind_holds_nobody_up() {
    let cluster = Cluster::new();
    let (origin, address) = cluster.relay(1);
    let (address, into_head) = tap(address, |_, _| {});
    // The head's socket takes only a part of the object.
    let (head, head_address) = cluster.relay_with(2, 16 * 1024, 1);
    let (go_on, is_to_go_on) = channel::<()>();
    let (head_address, into_tail) = tap(head_address, move |before, _| {
        if before > CHUNK as usize {
            // Until the sender is gone.
            let _ = is_to_go_on.recv();
        }
    });
    let (tail, _) = cluster.relay(3);
    let mut pools = [pool(), pool()];
    fetch(&head, &mut pools[0], vec![source(1, Some(address))]);
    fetch(&tail, &mut pools[1], vec![source(2, Some(head_address))]);
    provide(&origin);
    let (bytes, progress) = wait_for(&head).unwrap();
    assert!(bytes == data());
    assert_eq!(progress.corrupt_chunks, 0);
    drop(go_on);
    let (bytes, progress) = wait_for(&tail).unwrap();
    assert!(bytes == data());
    assert_eq!(progress.corrupt_chunks, 0);
    let n_passed_on = n_passed_on(&into_head.lock().unwrap(), &into_tail.lock().unwrap());
    assert!(n_passed_on < N_CHUNKS, "the socket took all of it");
}

#[test]
fn what_was_spoilt_is_found_by_every_hop_it_reaches() {
    let cluster = Cluster::new();
    // Well inside the first chunk that leaves when both are in step: less than a few hundred bytes
    // come before the chunks.
    let chain = chain(&cluster, Some(data().len() / 2 + 24_000));
    for plane in &chain.planes[1..] {
        let (bytes, progress) = wait_for(plane).unwrap();
        assert!(bytes == data());
        assert_eq!(progress.corrupt_chunks, 1);
    }
}

#[test]
fn payload_of_another_secret_is_refused() {
    let cluster = Cluster::new();
    let stranger = Cluster {
        secret: generate_secret().unwrap(),
        keys: cluster.keys.clone(),
        controller: listen().0,
    };
    let (wrong, wrong_address) = stranger.relay(1);
    let (origin, address) = cluster.relay(2);
    let (tail, _) = cluster.relay(3);
    provide(&wrong);
    provide(&origin);
    let sources = vec![source(1, Some(wrong_address)), source(2, Some(address))];
    let mut tail_pool = pool();
    fetch(&tail, &mut tail_pool, sources);
    let (bytes, progress) = wait_for(&tail).unwrap();
    assert!(bytes == data());
    assert_eq!(progress.corrupt_chunks, 2);
    assert_eq!(progress.resumed_at, [0]);
}

#[test]
fn payload_that_is_not_sealed_is_refused_where_all_is() {
    let cluster = Cluster::new();
    let server_tls = cluster.server_tls();
    let (address, server) = serve(move |listener| {
        let stream = listener.accept().unwrap().0;
        let mut link = welcome(Link::tls_server(stream, &server_tls).unwrap());
        let pull = next_pull(&mut link).unwrap();
        send(&mut link, pull, 1, None);
        assert!(next_pull(&mut link).is_none(), "the connection ends");
    });
    let (origin, good_address) = cluster.relay(2);
    provide(&origin);
    let (tail, _) = cluster.relay(3);
    let sources = vec![source(1, Some(address)), source(2, Some(good_address))];
    let mut tail_pool = pool();
    fetch(&tail, &mut tail_pool, sources);
    let (bytes, progress) = wait_for(&tail).unwrap();
    assert!(bytes == data());
    assert_eq!(progress.resumed_at, [0]);
    server.join().unwrap();
}
