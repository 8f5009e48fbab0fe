//! One suite for every transport.
#![allow(clippy::unwrap_used)] // a test fails by panicking

mod wires;

use std::fs::File;
use std::os::fd::AsFd;

use broadleaf_net::{Frame, Link, LinkError, Readiness};
use broadleaf_proto::limits::MAX_HANDSHAKE_FRAME_BYTES;
use broadleaf_proto::{DecodeError, FrameKind};
use proptest::prelude::*;
use wires::{BREATH, Relay, Wire, connect, take, tcp_pair, until};

/// One side's script.
#[derive(Clone, Debug)]
enum Act {
    Append(FrameKind, usize),
    Send(FrameKind, usize, usize),
    SendParts(FrameKind, usize),
    Flush,
    Take,
}

fn kind() -> impl Strategy<Value = FrameKind> {
    prop_oneof![
        Just(FrameKind::Submit),
        Just(FrameKind::Done),
        Just(FrameKind::Request)
    ]
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let size = prop_oneof![8 => 0..300usize, 3 => 300..40_000usize, 1 => 200_000..600_000usize];
    let act = prop_oneof![
        6 => (kind(), size.clone()).prop_map(|(k, n)| Act::Append(k, n)),
        3 => (kind(), size.clone(), 0..4usize).prop_map(|(k, n, fds)| Act::Send(k, n, fds)),
        3 => (kind(), size).prop_map(|(k, n)| Act::SendParts(k, n)),
        2 => Just(Act::Flush),
        2 => Just(Act::Take),
    ];
    prop::collection::vec(act, 1..40)
}

/// Everything that arrives, ignoring where frames of appended records end.
#[derive(Debug, Default, PartialEq)]
struct Transcript(Vec<(FrameKind, Vec<u8>, Vec<u64>)>);

impl Transcript {
    fn add(&mut self, kind: FrameKind, bytes: &[u8], inodes: Vec<u64>) {
        match self.0.last_mut() {
            Some((last, body, old)) if *last == kind && old.is_empty() && inodes.is_empty() => {
                body.extend_from_slice(bytes);
            }
            _ => self.0.push((kind, bytes.to_vec(), inodes)),
        }
    }
}

fn inode(file: impl AsFd) -> u64 {
    rustix::fs::fstat(file).unwrap().st_ino
}

fn small_buffers(link: &Link) {
    rustix::net::sockopt::set_socket_send_buffer_size(link.as_fd(), 4096).unwrap();
}

fn exchange(a: &mut Link, b: &mut Link, acts: &[Act], mut between: impl FnMut()) {
    let files: Vec<File> = (0..4).map(|_| tempfile::tempfile().unwrap()).collect();
    let (mut sent, mut frames) = (Transcript::default(), Vec::new());
    let mut fill = 0u8;
    for act in acts {
        match *act {
            Act::Append(kind, bytes) => {
                fill = fill.wrapping_add(1);
                let body = vec![fill; bytes];
                a.append(kind, |out| out.extend_from_slice(&body));
                sent.add(kind, &body, Vec::new());
            }
            Act::Send(kind, bytes, fds) => {
                fill = fill.wrapping_add(1);
                let body = vec![fill; bytes];
                let fds = if a.is_local() { &files[..fds] } else { &[] };
                let borrowed: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
                a.send(kind, &body, &borrowed).unwrap();
                sent.add(kind, &body, fds.iter().map(inode).collect());
            }
            Act::SendParts(kind, bytes) => {
                fill = fill.wrapping_add(1);
                let body = vec![fill; bytes];
                let (head, rest) = body.split_at(bytes / 3);
                a.send_parts(kind, head, rest).unwrap();
                sent.add(kind, &body, Vec::new());
            }
            Act::Flush => drop(a.flush().unwrap()),
            Act::Take => drop(take(b, &mut frames).unwrap()),
        }
    }
    until(|| {
        let flushed = a.flush().unwrap();
        between();
        b.wait(false, BREATH).unwrap();
        take(b, &mut frames).unwrap();
        assert_eq!(flushed, a.queued_bytes() == 0);
        (flushed && a.counters().frames_out == frames.len() as u64).then_some(())
    });
    let mut received = Transcript::default();
    for Frame { kind, body, fds } in frames {
        received.add(kind, &body, fds.iter().map(inode).collect());
    }
    assert!(received == sent, "what arrived is not what was sent");
    assert!(b.next_frame().unwrap().is_none());
}

fn random_frames(wire: Wire) {
    let config = ProptestConfig {
        cases: 40,
        ..ProptestConfig::default()
    };
    proptest!(config, |(acts in acts(), small in any::<bool>(), swap in any::<bool>())| {
        let (mut a, mut b) = connect(wire);
        if swap {
            std::mem::swap(&mut a, &mut b);
        }
        if small {
            small_buffers(&a);
        }
        let handshakes = a.counters().frames_out;
        assert_eq!(handshakes, 0);
        exchange(&mut a, &mut b, &acts, || {});
    });
}

fn backlog_drains_both_ways(wire: Wire) {
    let (mut a, mut b) = connect(wire);
    let body = vec![7; 20 << 20];
    a.send(FrameKind::Submit, &body, &[]).unwrap();
    b.send(FrameKind::Result, &body, &[]).unwrap();
    assert!(!a.flush().unwrap());
    assert!(a.wants_write() && a.queued_bytes() > 0);
    let (mut at_a, mut at_b) = (Vec::new(), Vec::new());
    until(|| {
        a.flush().unwrap();
        b.flush().unwrap();
        take(&mut a, &mut at_a).unwrap();
        take(&mut b, &mut at_b).unwrap();
        (at_a.len() + at_b.len() == 2).then_some(())
    });
    assert!(at_a[0].body == body && at_b[0].body == body);
    assert!(!a.wants_write());
}

fn one_call_each_way(wire: Wire) {
    let (mut a, mut b) = connect(wire);
    let (writes, reads) = (a.counters().writes, b.counters().reads);
    for n in 0..100u64 {
        a.append(FrameKind::Submit, |out| {
            out.extend_from_slice(&n.to_le_bytes());
        });
    }
    assert!(a.flush().unwrap());
    let woken = b.wait(false, Some(wires::PATIENCE)).unwrap();
    assert!(matches!(woken, Readiness::Ready { readable: true, .. }));
    assert!(b.fill().unwrap() > 0);
    assert!(b.is_drained());
    assert_eq!(b.next_frame().unwrap().unwrap().body.len(), 800);
    assert!(b.next_frame().unwrap().is_none());
    assert_eq!(
        (a.counters().writes - writes, b.counters().reads - reads),
        (1, 1)
    );
    assert_eq!((a.counters().frames_out, b.counters().frames_in), (1, 1));
}

fn closing_between_frames(wire: Wire) {
    let (mut a, mut b) = connect(wire);
    a.send(FrameKind::Event, b"last words", &[]).unwrap();
    assert!(a.flush().unwrap());
    drop(a);
    let mut frames = Vec::new();
    let error = until(|| take(&mut b, &mut frames).err());
    assert!(matches!(error, LinkError::Closed), "{error}");
    assert_eq!(&frames[0].body[..], b"last words");
    // TCP accepts what is sent first; only the answer shows that nobody reads it.
    let error = until(|| {
        b.send(FrameKind::Event, b"too late", &[]).unwrap();
        b.flush().err()
    });
    assert!(error.is_closed(), "{error}");
}

fn oversized_header_takes_no_memory(wire: Wire) {
    let (mut a, mut b) = connect(wire);
    b.set_frame_limit(MAX_HANDSHAKE_FRAME_BYTES);
    a.send(FrameKind::Submit, &vec![0; 8 << 20], &[]).unwrap();
    let error = until(|| {
        let _ = a.flush();
        take(&mut b, &mut Vec::new()).err()
    });
    assert!(
        matches!(error, LinkError::Decode(DecodeError::TooLong { .. })),
        "{error}"
    );
    assert!(
        b.read_capacity_bytes() <= 256 * 1024,
        "{}",
        b.read_capacity_bytes()
    );
    // It stays refused, whether or not the caller takes frames in between.
    for _ in 0..3 {
        assert!(b.fill().is_err());
    }
    assert!(b.read_capacity_bytes() <= 256 * 1024);
}

fn records_above_the_limit_are_reported(wire: Wire) {
    let (mut a, mut b) = connect(wire);
    let limit = broadleaf_proto::limits::MAX_FRAME_BYTES as usize;
    a.append(FrameKind::Submit, |out| out.extend_from_slice(b"kept"));
    a.append(FrameKind::Submit, |out| {
        out.resize(out.len() + limit + 1, 0);
    });
    let error = a.flush().unwrap_err();
    assert!(matches!(error, LinkError::RecordTooLarge { bytes, .. } if bytes == limit + 1));
    assert!(a.flush().unwrap());
    let mut frames = Vec::new();
    until(|| {
        take(&mut b, &mut frames).unwrap();
        (!frames.is_empty()).then_some(())
    });
    assert_eq!(&frames[0].body[..], b"kept");
}

fn quiet_link_keeps_to_its_buffer(wire: Wire) {
    let (mut a, mut b) = connect(wire);
    for n in 0..2_000 {
        for _ in 0..2 {
            a.send(FrameKind::Event, &[1; 150], &[]).unwrap();
        }
        assert!(a.flush().unwrap());
        let mut frames = Vec::new();
        until(|| {
            take(&mut b, &mut frames).unwrap();
            (frames.len() == 2).then_some(())
        });
        let capacity_bytes = b.read_capacity_bytes();
        assert!(
            capacity_bytes <= 16 * 1024,
            "{capacity_bytes} after {n} pairs"
        );
    }
}

macro_rules! suite {
    ($($module:ident: $wire:expr;)*) => {$(mod $module {
        use super::*;
        suite!(@ $wire; random_frames backlog_drains_both_ways one_call_each_way
            closing_between_frames oversized_header_takes_no_memory
            records_above_the_limit_are_reported quiet_link_keeps_to_its_buffer);
    })*};
    (@ $wire:expr; $($test:ident)*) => {$(
        #[test]
        fn $test() {
            super::$test($wire);
        }
    )*};
}

suite! {
    unix: Wire::Unix;
    tcp: Wire::Tcp;
    tls: Wire::Tls;
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, ..ProptestConfig::default() })]
    /// A wire that delivers one byte, or a few, at a time.
    #[test]
    fn bytes_in_small_steps(step in 1..20usize, with_tls in any::<bool>(),
                            acts in prop::collection::vec((kind(), 0..120usize).prop_map(
                                |(k, n)| Act::Send(k, n, 0)), 1..12)) {
        let (mut relay, dialling, dialled) = Relay::new(step);
        let (mut a, mut b) = if with_tls {
            let keys = broadleaf_net::tls::generate().unwrap();
            (Link::tls_client(dialling, &wires::client_tls(&keys)).unwrap(),
             Link::tls_server(dialled, &wires::server_tls(&keys)).unwrap())
        } else {
            (Link::tcp(dialling).unwrap(), Link::tcp(dialled).unwrap())
        };
        until(|| {
            for link in [&mut a, &mut b] {
                link.flush().unwrap();
                link.fill().unwrap();
            }
            relay.pass();
            (a.is_established() && b.is_established()).then_some(())
        });
        let (mut sent, mut received, mut frames) =
            (Transcript::default(), Transcript::default(), Vec::new());
        for act in &acts {
            let Act::Send(kind, bytes, _) = *act else { continue };
            a.send(kind, &vec![9; bytes], &[]).unwrap();
            sent.add(kind, &vec![9; bytes], Vec::new());
        }
        until(|| {
            a.flush().unwrap();
            relay.pass();
            take(&mut b, &mut frames).unwrap();
            (frames.len() == acts.len()).then_some(())
        });
        for frame in frames {
            received.add(frame.kind, &frame.body, Vec::new());
        }
        prop_assert_eq!(received, sent);
    }
}

#[test]
fn the_end_inside_a_frame_is_told_apart() {
    use std::io::Write;
    for bytes in [&b"\x05\x00"[..], b"\x05\x00\x00\x00\x10\x00\x00\x00abc"] {
        let (mut raw, dialled) = tcp_pair();
        let mut link = Link::tcp(dialled).unwrap();
        raw.write_all(bytes).unwrap();
        drop(raw);
        let error = wires::until_error(&mut link);
        assert!(matches!(error, LinkError::ClosedInFrame), "{error}");
        assert!(error.is_closed());
    }
}

#[test]
fn malformed_headers_are_refused() {
    use std::io::Write;
    let cases: [([u8; 8], DecodeError); 3] = [
        ([0, 0, 0, 0, 99, 0, 0, 0], DecodeError::UnknownKind(99)),
        ([0, 0, 0, 0, 1, 1, 0, 0], DecodeError::ReservedNotZero),
        (
            [0, 0, 0, 0, 1, 0, 65, 0],
            DecodeError::TooLong {
                claimed: 65,
                limit: 64,
            },
        ),
    ];
    for (bytes, expected) in cases {
        let (mut raw, dialled) = tcp_pair();
        let mut link = Link::tcp(dialled).unwrap();
        raw.write_all(&bytes).unwrap();
        let error = wires::until_error(&mut link);
        assert!(
            matches!(&error, LinkError::Decode(found) if *found == expected),
            "{error}"
        );
    }
}

#[test]
fn waiting_ends_at_its_time() {
    let (mut a, _b) = connect(Wire::Unix);
    assert_eq!(a.wait(false, BREATH).unwrap(), Readiness::TimedOut);
    a.append(FrameKind::Event, |out| out.push(1));
    let ready = Readiness::Ready {
        readable: false,
        writable: true,
    };
    assert_eq!(a.wait(true, BREATH).unwrap(), ready);
}
