//! Blocks that pass by the encryption of a link, between its frames.
#![allow(clippy::unwrap_used)] // a test fails by panicking

mod wires;

use std::io::Write;

use broadleaf_net::tls;
use broadleaf_net::{Frame, Link, LinkError};
use broadleaf_proto::{DecodeError, FrameKind};
use proptest::prelude::*;
use wires::{Relay, Wire, client_tls, connect, establish, server_tls, take, until};

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

fn send_block(link: &mut Link, body: &[u8]) -> Result<(), LinkError> {
    link.send_block(body.len(), |room| {
        room.copy_from_slice(body);
        Ok(())
    })
}

/// Takes all that has arrived.
fn take_all(link: &mut Link, frames: &mut Vec<Frame>, blocks: &mut Vec<Vec<u8>>) {
    take(link, frames).unwrap();
    while let Some(mut block) = link.take_block() {
        blocks.push(block.body().to_vec());
        link.return_block(block).unwrap();
        while let Some(frame) = link.next_frame().unwrap() {
            frames.push(frame);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    #[test]
    fn frames_and_blocks_arrive_in_their_orders(
        acts in prop::collection::vec((any::<bool>(), 0_usize..150_000, any::<bool>()), 1..12),
        step in prop_oneof![1_000_usize..3_000, 20_000_usize..200_000],
    ) {
        let (mut a, mut b, mut wire) = links(step);
        let (mut sent_frames, mut sent_blocks) = (Vec::new(), Vec::new());
        let (mut frames, mut blocks) = (Vec::new(), Vec::new());
        for (i, (is_block, bytes, flushes)) in acts.into_iter().enumerate() {
            let body = vec![i as u8; bytes];
            if is_block {
                send_block(&mut a, &body).unwrap();
                sent_blocks.push(body);
            } else {
                a.send(FrameKind::Event, &body, &[]).unwrap();
                sent_frames.push(body);
            }
            if flushes {
                a.flush().unwrap();
                wire.pass();
                take_all(&mut b, &mut frames, &mut blocks);
            }
        }
        until(|| {
            a.flush().unwrap();
            wire.pass();
            take_all(&mut b, &mut frames, &mut blocks);
            (frames.len() == sent_frames.len() && blocks.len() == sent_blocks.len()).then_some(())
        });
        let bodies: Vec<_> = frames.iter().map(|f| f.body.to_vec()).collect();
        prop_assert!(bodies == sent_frames);
        prop_assert!(blocks == sent_blocks);
    }
}

#[test]
fn a_block_is_passed_as_it_is_and_a_frame_is_not() {
    let (mut a, mut b, mut wire) = links(1 << 20);
    let (sealed, hidden) = ([0xab; 500], [0xcd; 500]);
    send_block(&mut a, &sealed).unwrap();
    a.send(FrameKind::Event, &hidden, &[]).unwrap();
    let (mut frames, mut blocks) = (Vec::new(), Vec::new());
    until(|| {
        a.flush().unwrap();
        wire.pass();
        take_all(&mut b, &mut frames, &mut blocks);
        (frames.len() == 1 && blocks.len() == 1).then_some(())
    });
    let holds = |body: &[u8]| wire.from_near.windows(500).any(|seen| seen == body);
    assert!(holds(&sealed) && !holds(&hidden));
}

#[test]
fn what_is_taken_back_does_not_leave() {
    let (mut a, mut b, mut wire) = links(1 << 20);
    send_block(&mut a, b"first").unwrap();
    send_block(&mut a, b"wrong").unwrap();
    a.take_back_block(5);
    send_block(&mut a, b"second").unwrap();
    let refused = a.send_block(7, |_| Err(LinkError::Closed));
    assert!(matches!(refused, Err(LinkError::Closed)));
    let (mut frames, mut blocks) = (Vec::new(), Vec::new());
    until(|| {
        a.flush().unwrap();
        wire.pass();
        take_all(&mut b, &mut frames, &mut blocks);
        (blocks.len() == 2).then_some(())
    });
    assert_eq!(blocks, [b"first".to_vec(), b"second".to_vec()]);
    assert_eq!(a.queued_bytes(), 0);
}

#[test]
fn a_block_above_the_limit_ends_the_link_before_memory_is_taken() {
    let (mut a, mut b, mut wire) = links(1 << 20);
    b.set_block_limit(1000);
    send_block(&mut a, &[0; 5_000]).unwrap();
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
    assert!(b.take_block().is_none());
    // A caller that goes on regardless gets errors, nothing worse.
    send_block(&mut a, &[0; 10]).unwrap();
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
    send_block(&mut a, b"block").unwrap();
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
    stranger.write_all(&[0xb1, 4, 0, 0, 0, 1, 2, 3, 4]).unwrap();
    let error = wires::until_error(&mut server);
    assert!(matches!(error, LinkError::Tls(_)), "{error}");
    assert!(server.take_block().is_none());
}

#[test]
fn links_without_tls_have_no_blocks() {
    for wire in [Wire::Unix, Wire::Tcp] {
        let (mut a, _b) = connect(wire);
        a.set_block_limit(LIMIT_BYTES);
        let error = send_block(&mut a, b"block").unwrap_err();
        assert!(matches!(error, LinkError::BlockNeedsTls), "{error}");
        assert!(a.take_block().is_none());
    }
    let keys = tls::generate().unwrap();
    let (a, b) = wires::tcp_pair();
    let mut a = Link::tls_client(a, &client_tls(&keys)).unwrap();
    let mut b = Link::tls_server(b, &server_tls(&keys)).unwrap();
    assert!(send_block(&mut a, b"too early").is_err());
    establish(&mut a, &mut b).unwrap();
    send_block(&mut a, b"in time").unwrap();
}

#[test]
fn a_backlog_of_blocks_takes_no_more_memory_than_what_waits() {
    let (mut a, mut b) = connect(Wire::Tls);
    for link in [&mut a, &mut b] {
        link.set_block_limit(LIMIT_BYTES);
    }
    // The sockets take little at a time, so that there is always some left.
    rustix::net::sockopt::set_socket_recv_buffer_size(b.as_fd(), 65_536).unwrap();
    rustix::net::sockopt::set_socket_send_buffer_size(a.as_fd(), 32_768).unwrap();
    let (mut frames, mut blocks) = (Vec::new(), Vec::new());
    let body = vec![7; 250_000];
    send_block(&mut a, &body).unwrap();
    for n in 1..40 {
        send_block(&mut a, &body).unwrap();
        until(|| {
            a.flush().unwrap();
            if a.queued_bytes() <= body.len() {
                return Some(());
            }
            take_all(&mut b, &mut frames, &mut blocks);
            None
        });
        assert!(a.queued_bytes() > 0, "it never ran dry");
        assert!(a.send_capacity_bytes() < 2 << 20, "after {n} blocks");
    }
}
