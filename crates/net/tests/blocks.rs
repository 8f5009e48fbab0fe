//! Blocks that bypass a link's encryption, between its frames.
#![allow(clippy::unwrap_used)] // a test fails by panicking

mod wires;

use std::io::Write;

use broadleaf_net::tls;
use broadleaf_net::{Frame, Link, LinkError};
use broadleaf_proto::{Block, DecodeError, FrameKind, ObjectId, SealedHead};
use proptest::prelude::*;
use wires::{Relay, Wire, client_tls, connect, establish, server_tls, until};

const LIMIT_BYTES: u32 = 300_000;

/// Two links whose wire passes `step` bytes at a time and remembers what the first one sent.
fn links(step: usize) -> (Link, Link, Relay) {
    let keys = tls::generate().unwrap();
    let (mut relay, a, b) = Relay::new(step);
    let mut a = Link::tls_client(a, &client_tls(&keys)).unwrap();
    let mut b = Link::tls_server(b, &server_tls(&keys)).unwrap();
    until(|| {
        for link in [&mut a, &mut b] {
            link.flush().unwrap();
            link.fill().unwrap();
        }
        relay.pass();
        (a.is_established() && b.is_established()).then_some(())
    });
    relay.from_near.clear();
    for link in [&mut a, &mut b] {
        link.set_frame_limit(LIMIT_BYTES);
        link.set_block_limit(LIMIT_BYTES);
    }
    (a, b, relay)
}

fn head(n: usize) -> SealedHead {
    SealedHead {
        object: ObjectId(n as u64),
        offset_bytes: 1 << 33,
        pull: 7,
        nonce: [1; 12],
        tag: [2; 16],
    }
}

fn send_block(link: &mut Link, n: usize, bytes: &[u8]) -> Result<(), LinkError> {
    link.send_block(bytes.len(), |room| {
        room.copy_from_slice(bytes);
        Ok(head(n))
    })
}

/// The receiving end of a link: what it has received, and the block in progress.
#[derive(Default)]
struct Taker {
    frames: Vec<Frame>,
    blocks: Vec<(SealedHead, Vec<u8>)>,
    target: Vec<u8>,
}

impl Taker {
    fn target(&mut self, block: &Block) -> &mut [u8] {
        self.target.resize(block.len_bytes as usize, 0);
        &mut self.target
    }

    /// Handles everything that has arrived.
    fn take_all(&mut self, link: &mut Link) {
        loop {
            while let Some(frame) = link.next_frame().unwrap() {
                self.frames.push(frame);
            }
            let received = match link.block() {
                None => link.fill().unwrap(),
                Some(block) => {
                    if link.take_block(self.target(&block)).unwrap() {
                        self.blocks
                            .push((block.head, std::mem::take(&mut self.target)));
                        continue;
                    }
                    link.fill_block(self.target(&block)).unwrap()
                }
            };
            if received == 0 && (link.block().is_some() || link.is_drained()) {
                return;
            }
        }
    }
}

/// How something is sent.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Act {
    Frame,
    Seal,
    Pass,
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    #[test]
    fn frames_and_blocks_arrive_in_their_orders(
        acts in prop::collection::vec(
            (
                prop_oneof![Just(Act::Frame), Just(Act::Seal), Just(Act::Pass)],
                prop_oneof![0_usize..200, 0_usize..150_000],
                any::<bool>(),
            ),
            1..12,
        ),
        step in prop_oneof![1_000_usize..3_000, 20_000_usize..200_000],
    ) {
        let (mut a, mut b, mut wire) = links(step);
        let (mut sent_frames, mut sent_blocks) = (Vec::new(), Vec::new());
        let mut taker = Taker::default();
        for (i, (act, bytes, flushes)) in acts.into_iter().enumerate() {
            let body: Vec<u8> = (0..bytes).map(|at| (at / 7 + i) as u8).collect();
            match act {
                Act::Frame => a.send(FrameKind::Event, &body, &[]).unwrap(),
                Act::Seal => send_block(&mut a, i, &body).unwrap(),
                Act::Pass => a.pass_block(&head(i), &body).unwrap(),
            }
            if act == Act::Frame {
                sent_frames.push(body);
            } else {
                sent_blocks.push((head(i), body));
            }
            if flushes {
                a.flush().unwrap();
                wire.pass();
                taker.take_all(&mut b);
            }
        }
        until(|| {
            a.flush().unwrap();
            wire.pass();
            taker.take_all(&mut b);
            let all = (sent_frames.len(), sent_blocks.len());
            ((taker.frames.len(), taker.blocks.len()) == all).then_some(())
        });
        let bodies: Vec<_> = taker.frames.iter().map(|f| f.body.to_vec()).collect();
        prop_assert!(bodies == sent_frames);
        prop_assert!(taker.blocks == sent_blocks);
    }
}

#[test]
fn a_block_is_passed_as_it_is_and_a_frame_is_not() {
    let (mut a, mut b, mut wire) = links(1 << 20);
    let (sealed, hidden) = ([0xab; 500], [0xcd; 500]);
    send_block(&mut a, 1, &sealed).unwrap();
    a.send(FrameKind::Event, &hidden, &[]).unwrap();
    let mut taker = Taker::default();
    until(|| {
        a.flush().unwrap();
        wire.pass();
        taker.take_all(&mut b);
        (taker.frames.len() == 1 && taker.blocks.len() == 1).then_some(())
    });
    let holds = |body: &[u8]| wire.from_near.windows(500).any(|seen| seen == body);
    assert!(holds(&sealed) && !holds(&hidden));
}

#[test]
fn what_could_not_be_sealed_is_not_sent() {
    let (mut a, mut b, mut wire) = links(1 << 20);
    send_block(&mut a, 1, b"first").unwrap();
    let refused = a.send_block(7, |_| Err(LinkError::Closed));
    assert!(matches!(refused, Err(LinkError::Closed)));
    send_block(&mut a, 2, b"second").unwrap();
    let mut taker = Taker::default();
    until(|| {
        a.flush().unwrap();
        wire.pass();
        taker.take_all(&mut b);
        (taker.blocks.len() == 2).then_some(())
    });
    let wanted = [(head(1), b"first".to_vec()), (head(2), b"second".to_vec())];
    assert_eq!(taker.blocks, wanted);
    assert_eq!(a.queued_bytes(), 0);
}

#[test]
fn of_many_blocks_only_the_first_is_moved() {
    let (mut a, mut b) = connect(Wire::Tls);
    b.set_block_limit(LIMIT_BYTES);
    rustix::net::sockopt::set_socket_send_buffer_size(a.as_fd(), 1 << 20).unwrap();
    let bytes = vec![7; 40_000];
    for n in 0..3 {
        a.pass_block(&head(n), &bytes).unwrap();
    }
    until(|| a.flush().unwrap().then_some(()));
    let mut target = vec![0; bytes.len()];
    until(|| {
        b.fill().unwrap();
        b.block()
    });
    let mut in_place = Vec::new();
    for _ in 0..3 {
        let mut of_block = 0;
        until(|| {
            if b.take_block(&mut target).unwrap() {
                return Some(());
            }
            of_block += b.fill_block(&mut target).unwrap();
            None
        });
        in_place.push(of_block);
    }
    // Each block but the last brings the header of the next one.
    assert!(in_place[1] >= bytes.len(), "{in_place:?}");
    assert!(in_place[2] == bytes.len(), "{in_place:?}");
}

#[test]
fn a_block_above_the_limit_ends_the_link_before_memory_is_taken() {
    let (mut a, mut b, mut wire) = links(1 << 20);
    b.set_block_limit(1000);
    send_block(&mut a, 1, &[0; 5_000]).unwrap();
    let error = until(|| {
        a.flush().unwrap();
        wire.pass();
        b.fill().err()
    });
    let claimed = DecodeError::TooLong {
        claimed: 5_000,
        limit: 1000,
    };
    assert!(matches!(error, LinkError::Decode(e) if e == claimed));
    assert!(b.block().is_none());
    // A caller that continues regardless gets errors, nothing worse.
    send_block(&mut a, 2, &[0; 10]).unwrap();
    until(|| {
        a.flush().unwrap();
        wire.pass();
        b.fill().err()
    });
}

#[test]
fn nobody_who_has_not_asked_for_blocks_gets_any() {
    let (mut a, mut b, mut wire) = links(1 << 20);
    b.set_block_limit(0);
    send_block(&mut a, 1, b"block").unwrap();
    let error = until(|| {
        a.flush().unwrap();
        wire.pass();
        b.fill().err()
    });
    assert!(matches!(error, LinkError::Tls(_)), "{error}");
}

#[test]
fn a_stranger_who_begins_with_a_block_is_refused() {
    let (mut stranger, dialled) = wires::tcp_pair();
    let mut server = Link::tls_server(dialled, &server_tls(&tls::generate().unwrap())).unwrap();
    server.set_block_limit(LIMIT_BYTES);
    let block = Block {
        head: head(1),
        len_bytes: 4,
    };
    stranger.write_all(&block.encode_header()).unwrap();
    stranger.write_all(b"1234").unwrap();
    let error = wires::until_error(&mut server);
    assert!(matches!(error, LinkError::Tls(_)), "{error}");
    assert!(server.block().is_none());
}

#[test]
fn links_without_tls_have_no_blocks() {
    for wire in [Wire::Unix, Wire::Tcp] {
        let (mut a, _b) = connect(wire);
        a.set_block_limit(LIMIT_BYTES);
        for error in [
            send_block(&mut a, 1, b"block").unwrap_err(),
            a.pass_block(&head(1), b"block").unwrap_err(),
        ] {
            assert!(matches!(error, LinkError::BlockNeedsTls), "{error}");
        }
        assert!(a.block().is_none());
        assert_eq!(a.fill_block(&mut []).unwrap(), 0);
        assert!(!a.take_block(&mut []).unwrap());
    }
    let keys = tls::generate().unwrap();
    let (a, b) = wires::tcp_pair();
    let mut a = Link::tls_client(a, &client_tls(&keys)).unwrap();
    let mut b = Link::tls_server(b, &server_tls(&keys)).unwrap();
    assert!(send_block(&mut a, 1, b"too early").is_err());
    assert!(a.pass_block(&head(1), b"too early").is_err());
    establish(&mut a, &mut b).unwrap();
    send_block(&mut a, 1, b"in time").unwrap();
}

#[test]
fn a_backlog_of_blocks_takes_no_more_memory_than_what_waits() {
    let (mut a, mut b) = connect(Wire::Tls);
    for link in [&mut a, &mut b] {
        link.set_block_limit(LIMIT_BYTES);
    }
    // The sockets accept little at a time, so something is always left.
    rustix::net::sockopt::set_socket_recv_buffer_size(b.as_fd(), 65_536).unwrap();
    rustix::net::sockopt::set_socket_send_buffer_size(a.as_fd(), 32_768).unwrap();
    let mut taker = Taker::default();
    let bytes = vec![7; 250_000];
    send_block(&mut a, 0, &bytes).unwrap();
    for n in 1..40 {
        send_block(&mut a, n, &bytes).unwrap();
        until(|| {
            a.flush().unwrap();
            if a.queued_bytes() <= bytes.len() {
                return Some(());
            }
            taker.take_all(&mut b);
            None
        });
        assert!(a.queued_bytes() > 0, "it never ran dry");
        assert!(a.send_capacity_bytes() < 2 << 20, "after {n} blocks");
    }
}
