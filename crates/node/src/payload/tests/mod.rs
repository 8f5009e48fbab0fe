//! A plane against peers that send garbage, stop in the middle, or say nothing.
#![allow(clippy::unwrap_used)] // a test fails by panicking

mod movers;
mod objects;
mod sealed;
mod streams;

use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use broadleaf_net::proof::{DialProof, ListenProof, ProofKey};
use broadleaf_net::{DialSecurity, Link, Route, tls};
use broadleaf_proto::control::{Hello, Role, Welcome};
use broadleaf_proto::proof::DialKey;
use broadleaf_proto::relay::{Fetch, PayloadCommand, Progress, Source};
use broadleaf_proto::{Chunk, ClientId, EngineId, FrameKind, HostId, ObjectId, control, limits};
use broadleaf_shm::{Pool, PoolConfig, Segment};

use super::{Dialer, Plane, PlaneCommand, PlaneEvent, Setup};

pub(super) const CHUNK: u32 = 32 * 1024;
pub(super) const OBJECT: ObjectId = ObjectId(5);
pub(super) const N_CHUNKS: u64 = 12;

pub(super) fn data() -> Vec<u8> {
    let n = N_CHUNKS as usize * CHUNK as usize - 100;
    (0..n).map(|i| (i * 31 % 251) as u8).collect()
}

pub(super) fn hello(host: u32) -> Hello {
    Hello {
        protocol: 2,
        broadleaf: "test".to_owned(),
        python: "3.11".to_owned(),
        cluster_id: "c".to_owned(),
        role: Role::Payload { host: HostId(host) },
    }
}

pub(super) fn next(link: &mut Link, kind: FrameKind) -> Option<bytes::Bytes> {
    loop {
        link.flush().ok()?;
        if let Some(frame) = link.next_frame().ok()? {
            if frame.kind == kind {
                return Some(frame.body);
            }
            continue;
        }
        link.wait(true, Some(Duration::from_secs(20))).ok()?;
        link.fill().ok()?;
    }
}

/// The key of all relays in these tests.
fn key() -> ProofKey {
    static PRIVATE: OnceLock<String> = OnceLock::new();
    let private = PRIVATE.get_or_init(|| tls::generate().unwrap().engine.private);
    ProofKey::new(private, "engines'").unwrap()
}

pub(super) fn dial_proof() -> DialProof {
    let kind = DialKey::Engine;
    DialProof { kind, key: key() }
}

fn listen_proof() -> ListenProof {
    let (client, engine) = (None, key());
    ListenProof { client, engine }
}

/// Accepts one connection and says welcome.
pub(super) fn accept(listener: &TcpListener) -> Link {
    let link = Link::tcp(listener.accept().unwrap().0).unwrap();
    welcome(link.prove_as_listener(&Arc::new(listen_proof())).unwrap())
}

pub(super) fn welcome(mut link: Link) -> Link {
    link.set_frame_limit(limits::MAX_CHUNK_FRAME_BYTES);
    next(&mut link, FrameKind::Hello).unwrap();
    let welcome = Welcome {
        client: ClientId(0),
        engine: EngineId(0),
        segment_token: 0,
        host: HostId(0),
        max_outstanding_tasks: 0,
        max_outstanding_bytes: 0,
        engines: Vec::new(),
        payload_secret: None,
        session: None,
        keeps_journal: false,
    };
    link.send(FrameKind::Welcome, &control::encode(&welcome), &[])
        .unwrap();
    link.flush().unwrap();
    link
}

/// The offset and number of the next pull.
pub(super) fn next_pull(link: &mut Link) -> Option<(u64, u32)> {
    loop {
        let body = next(link, FrameKind::PayloadCommand)?;
        if let PayloadCommand::Pull {
            offset_bytes, pull, ..
        } = control::decode(&body).ok()?
        {
            return Some((offset_bytes, pull));
        }
    }
}

/// Sends at most `n` chunks from an offset on; the one at `spoilt` has a wrong byte.
pub(super) fn send(link: &mut Link, (mut offset, pull): (u64, u32), n: u64, spoilt: Option<u64>) {
    let data = data();
    for _ in 0..n {
        if offset >= data.len() as u64 {
            break;
        }
        let end = (offset as usize + CHUNK as usize).min(data.len());
        let mut bytes = data[offset as usize..end].to_vec();
        let sum = crc32c::crc32c(&bytes);
        if spoilt == Some(offset) {
            bytes[7] ^= 1;
        }
        let mut head = Vec::new();
        Chunk::encode_head(OBJECT, pull, sum, offset, &mut head);
        link.send_parts(FrameKind::Chunk, &head, &bytes).unwrap();
        offset = end as u64;
    }
    link.flush().unwrap();
}

pub(super) fn listen() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

pub(super) fn plane(controller: SocketAddr) -> Plane {
    Plane::start(Setup {
        hello: hello(9),
        listener: None,
        dialer: Some(Dialer {
            controller: Route::new(controller, DialSecurity::Proof(dial_proof())),
            to_relays: DialSecurity::Proof(dial_proof()),
        }),
        secret: None,
        socket_buffer_bytes: 256 * 1024,
        streams: 1,
        piece_bytes: 2 * CHUNK,
        cores: 0,
        niceness: 0,
    })
    .unwrap()
}

/// A plane of a host where others dial in, and where they do.
pub(super) fn relay_with(
    controller: SocketAddr,
    host: u32,
    socket_buffer_bytes: usize,
    streams: usize,
) -> (Plane, SocketAddr) {
    let listener = broadleaf_net::Listener::tcp(("127.0.0.1", 0), listen_proof()).unwrap();
    let address = listener.tcp_address().unwrap();
    let plane = Plane::start(Setup {
        hello: hello(host),
        listener: Some(listener),
        dialer: Some(Dialer {
            controller: Route::new(controller, DialSecurity::Proof(dial_proof())),
            to_relays: DialSecurity::Proof(dial_proof()),
        }),
        secret: None,
        socket_buffer_bytes,
        streams,
        piece_bytes: 2 * CHUNK,
        cores: 0,
        niceness: 0,
    });
    (plane.unwrap(), address)
}

pub(super) fn fetch(plane: &Plane, pool: &mut Pool, sources: Vec<Source>) {
    let len_bytes = data().len() as u64;
    plane.order(PlaneCommand::Fetch {
        fetch: Fetch {
            object: OBJECT,
            len_bytes,
            chunk_bytes: CHUNK,
            sources,
            epoch: 0,
        },
        lease: Some(pool.allocate(len_bytes).unwrap()),
    });
}

pub(super) fn source(host: u32, address: Option<SocketAddr>) -> Source {
    Source {
        host: HostId(host),
        address: address.map(|a| a.to_string()),
        mover: None,
    }
}

pub(super) fn wait_until(mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while !is_so() {
        assert!(Instant::now() < deadline, "nothing came");
        std::thread::yield_now();
    }
}

/// Waits for the object; returns its bytes and the last report.
pub(super) fn wait_for(plane: &Plane) -> Result<(Vec<u8>, Progress), String> {
    let (mut last, mut end) = (None, None);
    wait_until(|| {
        for news in plane.take_events() {
            match news {
                PlaneEvent::Progress(progress) => last = Some(progress),
                PlaneEvent::Ready {
                    fd, segment_bytes, ..
                } => {
                    let segment = Segment::from_fd(fd, segment_bytes).unwrap();
                    let mapping = segment.map_readonly(0, data().len() as u64).unwrap();
                    end = Some(Ok(mapping.to_vec()));
                }
                PlaneEvent::Failed { reason, .. } => end = Some(Err(reason)),
                PlaneEvent::Dropped(_) | PlaneEvent::MoverGone => {}
            }
        }
        end.is_some()
    });
    Ok((end.unwrap()?, last.unwrap()))
}

pub(super) fn serve(
    act: impl FnOnce(TcpListener) + Send + 'static,
) -> (SocketAddr, JoinHandle<()>) {
    let (listener, address) = listen();
    (address, std::thread::spawn(move || act(listener)))
}

pub(super) fn pool() -> Pool {
    Pool::new(1, PoolConfig::default())
}

#[test]
fn a_corrupted_chunk_is_refused_and_fetched_again() {
    let bad = 3 * u64::from(CHUNK);
    let (address, server) = serve(move |listener| {
        let mut link = accept(&listener);
        let first = next_pull(&mut link).unwrap();
        assert_eq!(first.0, 0);
        send(&mut link, first, N_CHUNKS, Some(bad));
        let again = next_pull(&mut link).unwrap();
        assert_eq!(
            again.0, bad,
            "from where it was spoilt, and not from the start"
        );
        assert!(again.1 > first.1);
        send(&mut link, again, N_CHUNKS, None);
        next_pull(&mut link);
    });
    let plane = plane(address);
    fetch(&plane, &mut pool(), vec![source(0, None)]);
    let (bytes, progress) = wait_for(&plane).unwrap();
    assert!(bytes == data());
    assert_eq!(progress.corrupt_chunks, 1);
    drop(plane);
    server.join().unwrap();
}

#[test]
fn a_pull_says_what_round_trip_was_measured() {
    let (address, server) = serve(|listener| {
        let mut link = accept(&listener);
        let body = next(&mut link, FrameKind::PayloadCommand).unwrap();
        let PayloadCommand::Pull {
            offset_bytes,
            pull,
            round_trip_ns,
            ..
        } = control::decode(&body).unwrap()
        else {
            panic!("it asks for nothing");
        };
        assert!(round_trip_ns > 0, "the handshake took some time");
        send(&mut link, (offset_bytes, pull), N_CHUNKS, None);
        next_pull(&mut link);
    });
    let plane = plane(address);
    fetch(&plane, &mut pool(), vec![source(0, None)]);
    assert!(wait_for(&plane).unwrap().0 == data());
    drop(plane);
    server.join().unwrap();
}

#[test]
fn one_that_always_spoils_is_turned_away_from() {
    let (good, good_server) = serve(|listener| {
        let mut link = accept(&listener);
        while let Some(pull) = next_pull(&mut link) {
            send(&mut link, pull, N_CHUNKS, None);
        }
    });
    let (bad, bad_server) = serve(|listener| {
        let mut link = accept(&listener);
        while let Some(pull) = next_pull(&mut link) {
            send(&mut link, pull, N_CHUNKS, Some(pull.0));
        }
    });
    let plane = plane(good);
    let sources = vec![source(3, Some(bad)), source(0, None)];
    fetch(&plane, &mut pool(), sources);
    let (bytes, progress) = wait_for(&plane).unwrap();
    assert!(bytes == data());
    assert_eq!(progress.source, HostId(0));
    drop(plane);
    good_server.join().unwrap();
    bad_server.join().unwrap();
}

#[test]
fn the_rest_comes_from_the_next_source_when_one_ends_or_says_nothing() {
    for is_silent in [false, true] {
        let (good, good_server) = serve(|listener| {
            let mut link = accept(&listener);
            let pull = next_pull(&mut link).unwrap();
            assert_eq!(pull.0, 5 * u64::from(CHUNK), "it resumes");
            send(&mut link, pull, N_CHUNKS, None);
            next_pull(&mut link);
        });
        let (bad, bad_server) = serve(move |listener| {
            let mut link = accept(&listener);
            let pull = next_pull(&mut link).unwrap();
            send(&mut link, pull, 5, None);
            if is_silent {
                // Until the other end gives up.
                next_pull(&mut link);
            }
        });
        let plane = plane(good);
        let sources = vec![source(3, Some(bad)), source(0, None)];
        fetch(&plane, &mut pool(), sources);
        let (bytes, progress) = wait_for(&plane).unwrap();
        assert!(bytes == data());
        assert_eq!(progress.resumed_at, [5 * u64::from(CHUNK)]);
        assert_eq!(progress.wire_bytes, data().len() as u64);
        drop(plane);
        good_server.join().unwrap();
        bad_server.join().unwrap();
    }
}

#[test]
fn a_plane_serves_what_it_is_still_getting() {
    let (origin, origin_server) = serve(|listener| {
        // The head and the tail both dial the origin; only the head asks it.
        let mut links = [accept(&listener), accept(&listener)];
        let mut asked = loop {
            let mut found = None;
            for (i, link) in links.iter_mut().enumerate() {
                link.wait(true, Some(Duration::from_millis(20))).unwrap();
                let _ = link.fill();
                if let Ok(Some(frame)) = link.next_frame()
                    && let Ok(PayloadCommand::Pull {
                        offset_bytes, pull, ..
                    }) = control::decode(&frame.body)
                {
                    found = Some((i, (offset_bytes, pull)));
                }
            }
            if let Some(found) = found {
                break found;
            }
        };
        let link = &mut links[asked.0];
        send(link, asked.1, N_CHUNKS / 2, None);
        asked.1.0 += N_CHUNKS / 2 * u64::from(CHUNK);
        send(link, asked.1, N_CHUNKS, None);
        next_pull(link);
    });
    let (head, address) = relay_with(origin, 1, 256 * 1024, 1);
    let tail = plane(origin);
    let (mut head_pool, mut tail_pool) = (pool(), pool());
    // The tail asks before the head has heard of the object.
    fetch(&tail, &mut tail_pool, vec![source(1, Some(address))]);
    fetch(&head, &mut head_pool, vec![source(0, None)]);
    assert!(wait_for(&head).unwrap().0 == data());
    let (bytes, progress) = wait_for(&tail).unwrap();
    assert!(bytes == data());
    assert_eq!(progress.source, HostId(1));
    drop((head, tail));
    origin_server.join().unwrap();
}

#[test]
fn when_nobody_gives_it_the_fetch_fails() {
    let (origin, server) = serve(|listener| {
        let mut link = accept(&listener);
        while let Some((_, pull)) = next_pull(&mut link) {
            let word = PayloadCommand::Refuse {
                object: OBJECT,
                pull,
            };
            link.send(FrameKind::PayloadCommand, &control::encode(&word), &[])
                .unwrap();
            link.flush().unwrap();
        }
    });
    let plane = plane(origin);
    fetch(&plane, &mut pool(), vec![source(0, None)]);
    let reason = wait_for(&plane).unwrap_err();
    assert!(reason.contains("no host"), "{reason}");
    drop(plane);
    server.join().unwrap();
}
