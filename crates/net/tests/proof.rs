//! Which peers are accepted, and which are believed, on a connection without TLS.
#![allow(clippy::unwrap_used)] // a test fails by panicking

mod wires;

use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use broadleaf_net::proof::{DialProof, ListenProof};
use broadleaf_net::tls::{self, PeerKey};
use broadleaf_net::{Link, LinkError};
use broadleaf_proto::control::{self, Refusal, RefusalKind};
use broadleaf_proto::limits::MAX_FRAME_BYTES;
use broadleaf_proto::proof::{Answer, Challenge, DialKey};
use broadleaf_proto::{FrameKind, PROTOCOL_VERSION};
use wires::{client_proof, establish, listen_proof, take, until, until_error};

/// A dialing link, and the peer it is connected to.
fn dial(proof: &DialProof) -> (Link, UnixStream) {
    let (near, far) = UnixStream::pair().unwrap();
    let link = Link::unix(near).unwrap().prove_as_dialer(proof).unwrap();
    (link, far)
}

fn listen(far: UnixStream, proof: ListenProof) -> Link {
    let link = Link::unix(far).unwrap();
    link.prove_as_listener(&Arc::new(proof)).unwrap()
}

fn pair(dialer: &DialProof, listener: ListenProof) -> (Link, Link) {
    let (a, far) = dial(dialer);
    (a, listen(far, listener))
}

/// Runs both until the first error.
fn first_error(a: &mut Link, b: &mut Link) -> LinkError {
    until(|| {
        // Only what the first one reports counts.
        let _ = b.flush();
        let _ = b.fill();
        a.flush().and_then(|_| a.fill()).err()
    })
}

#[test]
fn both_sides_learn_who_the_other_is_in_one_round_trip_more() {
    let keys = tls::generate().unwrap();
    let (mut a, mut b) = pair(&client_proof(&keys), listen_proof(&keys));
    a.set_frame_limit(MAX_FRAME_BYTES);
    // What is queued before the proof is sent after it, with its descriptor.
    let file = File::open("/dev/null").unwrap();
    a.send(FrameKind::Hello, b"hello", &[file.as_fd()]).unwrap();
    assert!(!a.flush().unwrap());
    assert!(!a.is_established() && a.peer_key().is_none());
    // Three one-way trips: challenge; answer; proof and hello together.
    b.fill().unwrap();
    assert!(b.peer_key().is_none() && b.next_frame().unwrap().is_none());
    a.fill().unwrap();
    assert_eq!(a.peer_key(), Some(PeerKey::Server));
    let mut frames = Vec::new();
    while frames.is_empty() {
        take(&mut b, &mut frames).unwrap();
    }
    assert_eq!(b.peer_key(), Some(PeerKey::Client));
    assert_eq!(
        (&frames[0].body[..], frames[0].fds.len()),
        (&b"hello"[..], 1)
    );
    assert_eq!((a.counters().writes, b.counters().writes), (3, 1));
    // From here on a frame of any size is accepted.
    b.send(FrameKind::Welcome, &vec![7; 100_000], &[]).unwrap();
    let mut frames = Vec::new();
    until(|| {
        b.flush().unwrap();
        take(&mut a, &mut frames).unwrap();
        (!frames.is_empty()).then_some(())
    });
    assert_eq!(frames[0].body.len(), 100_000);
}

#[test]
fn an_engines_key_is_told_from_a_clients() {
    let keys = tls::generate().unwrap();
    let mut proof = client_proof(&keys);
    (proof.kind, proof.key) = (DialKey::Engine, listen_proof(&keys).engine);
    let (mut a, mut b) = pair(&proof, listen_proof(&keys));
    establish(&mut a, &mut b).unwrap();
    assert_eq!(b.peer_key(), Some(PeerKey::Engine));
    // One key cannot pass for the other.
    proof.kind = DialKey::Client;
    let (mut a, mut b) = pair(&proof, listen_proof(&keys));
    assert!(matches!(first_error(&mut a, &mut b), LinkError::Impostor));
}

#[test]
fn a_dialer_without_the_key_is_refused() {
    let (keys, others) = (tls::generate().unwrap(), tls::generate().unwrap());
    let (mut a, mut b) = pair(&client_proof(&others), listen_proof(&keys));
    assert!(matches!(first_error(&mut a, &mut b), LinkError::Impostor));
    // A dialer that ignores this continues with a proof of its own making.
    let (near, far) = UnixStream::pair().unwrap();
    let (mut a, mut b) = (Link::unix(near).unwrap(), listen(far, listen_proof(&keys)));
    let challenge = Challenge {
        protocol: PROTOCOL_VERSION,
        broadleaf: env!("CARGO_PKG_VERSION").to_owned(),
        key: DialKey::Client,
        nonce: [0; 32],
    };
    a.send(FrameKind::Challenge, &control::encode(&challenge), &[])
        .unwrap();
    a.flush().unwrap();
    b.fill().unwrap();
    let mut frames = Vec::new();
    take(&mut a, &mut frames).unwrap();
    let answer: Answer = control::decode(&frames[0].body).unwrap();
    // The listener's own proof, sent back to it.
    a.send(FrameKind::Proof, &answer.proof, &[]).unwrap();
    a.flush().unwrap();
    let error = until_error(&mut b);
    assert!(matches!(error, LinkError::Refused(_)), "{error}");
    assert!(b.peer_key().is_none());
    let mut frames = Vec::new();
    take(&mut a, &mut frames).unwrap();
    let refusal: Refusal = control::decode(&frames[0].body).unwrap();
    assert_eq!(refusal.kind, RefusalKind::Identity);
}

#[test]
fn a_listener_without_the_key_learns_nothing_and_sends_nothing() {
    let keys = tls::generate().unwrap();
    for (kind, body) in [
        // Every answer that was ever valid for another nonce, and frames of other kinds.
        (
            FrameKind::Answer,
            control::encode(&([1_u8; 32], [2_u8; 32])),
        ),
        (FrameKind::Answer, b"short".to_vec()),
        (FrameKind::Welcome, vec![0; 40]),
        (FrameKind::Result, vec![0; 40]),
    ] {
        let (mut a, far) = dial(&client_proof(&keys));
        let mut impostor = Link::unix(far).unwrap();
        a.send(FrameKind::Hello, b"secret", &[]).unwrap();
        a.flush().unwrap();
        impostor.send(kind, &body, &[]).unwrap();
        impostor.flush().unwrap();
        until_error(&mut a);
        assert!(a.next_frame().is_ok_and(|frame| frame.is_none()));
        // It says nothing more, even if asked to.
        let _ = a.flush();
        drop(a);
        let mut frames = Vec::new();
        while take(&mut impostor, &mut frames).is_ok() {}
        let kinds: Vec<FrameKind> = frames.iter().map(|frame| frame.kind).collect();
        assert_eq!(kinds, [FrameKind::Challenge]);
    }
}

#[test]
fn before_the_proof_no_large_frame_is_taken() {
    let keys = tls::generate().unwrap();
    let (mut a, far) = dial(&client_proof(&keys));
    a.set_frame_limit(MAX_FRAME_BYTES);
    let mut impostor = Link::unix(far).unwrap();
    impostor
        .send(FrameKind::Answer, &vec![0; 1 << 20], &[])
        .unwrap();
    let _ = impostor.flush();
    let error = until_error(&mut a);
    assert!(matches!(error, LinkError::Decode(_)), "{error}");
    assert!(a.read_capacity_bytes() < 200_000);
}

#[test]
fn another_version_is_told_so() {
    let keys = tls::generate().unwrap();
    let challenge = |protocol| Challenge {
        protocol,
        broadleaf: "0.0".to_owned(),
        key: DialKey::Client,
        nonce: [0; 32],
    };
    let other = control::encode(&challenge(PROTOCOL_VERSION + 1));
    for (kind, body) in [
        (FrameKind::Challenge, other),
        (FrameKind::Hello, b"of another version".to_vec()),
    ] {
        let (near, far) = UnixStream::pair().unwrap();
        let (mut a, mut b) = (Link::unix(near).unwrap(), listen(far, listen_proof(&keys)));
        a.send(kind, &body, &[]).unwrap();
        a.flush().unwrap();
        until_error(&mut b);
        let mut frames = Vec::new();
        take(&mut a, &mut frames).unwrap();
        let refusal: Refusal = control::decode(&frames[0].body).unwrap();
        assert_eq!(refusal.kind, RefusalKind::Version, "{}", refusal.message);
    }
}

#[test]
fn who_is_refused_for_want_of_room_is_told() {
    let keys = tls::generate().unwrap();
    for speaks_first in [true, false] {
        let (mut a, mut b) = pair(&client_proof(&keys), listen_proof(&keys));
        if speaks_first {
            a.flush().unwrap();
        }
        let refusal = Refusal {
            kind: RefusalKind::Full,
            message: "no room".to_owned(),
        };
        b.refuse(&refusal).unwrap();
        drop(b);
        match a.flush().err().unwrap_or_else(|| until_error(&mut a)) {
            LinkError::Refused(told) => assert_eq!(told, refusal),
            error => panic!("{error}"),
        }
    }
}
