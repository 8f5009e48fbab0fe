//! Links that go on over another connection: every frame arrives once and in order, wherever the connection broke.
#![allow(clippy::unwrap_used)] // a test fails by panicking

use std::net::{TcpListener, TcpStream};

use broadleaf_net::tls::{self, ClientTls, ServerTls};
use broadleaf_net::{Link, LinkError};
use broadleaf_proto::FrameKind;
use broadleaf_proto::limits::MAX_FRAME_BYTES;
use broadleaf_proto::resume::Received;
use proptest::prelude::*;

/// One side, what it has sent, and what it has got.
struct Side {
    link: Link,
    sent: u64,
    got: u64,
}

impl Side {
    fn new(mut link: Link) -> Self {
        link.set_frame_limit(MAX_FRAME_BYTES);
        link.make_resumable();
        Self {
            link,
            sent: 0,
            got: 0,
        }
    }

    /// Queues a frame with the next number, of about this size.
    fn send(&mut self, bytes: usize) {
        let mut body = self.sent.to_le_bytes().to_vec();
        body.resize(8 + bytes, self.sent as u8);
        self.sent += 1;
        if bytes.is_multiple_of(2) {
            self.link
                .append(FrameKind::Event, |frame| frame.extend_from_slice(&body));
            self.link.mark();
        } else {
            self.link.send(FrameKind::Event, &body, &[]).unwrap();
        }
    }

    /// Receives what there is, and checks it.
    fn receive(&mut self) -> Result<(), LinkError> {
        self.link.fill()?;
        while let Some(frame) = self.link.next_frame()? {
            assert_eq!(frame.kind, FrameKind::Event);
            let (number, rest) = frame.body.split_first_chunk::<8>().unwrap();
            assert_eq!(u64::from_le_bytes(*number), self.got, "once, and in order");
            assert!(rest.iter().all(|byte| *byte == self.got as u8));
            self.got += 1;
        }
        Ok(())
    }
}

/// How the two sides are connected.
struct Wires {
    listener: TcpListener,
    tls: Option<(ClientTls, ServerTls)>,
}

impl Wires {
    fn new(with_tls: bool) -> Self {
        let keys = tls::generate().unwrap();
        let tls = with_tls.then(|| {
            let client = ClientTls::new(&keys.engine.private, &keys.server.public).unwrap();
            let server = ServerTls::new(
                &keys.server.private,
                &keys.client.public,
                &keys.engine.public,
            );
            (client, server.unwrap())
        });
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        Self { listener, tls }
    }

    /// A connection whose keys are proven.
    fn connect(&self) -> (Link, Link) {
        let dialled = TcpStream::connect(self.listener.local_addr().unwrap()).unwrap();
        let (accepted, _) = self.listener.accept().unwrap();
        let (mut a, mut b) = match &self.tls {
            Some((client, server)) => (
                Link::tls_client(dialled, client).unwrap(),
                Link::tls_server(accepted, server).unwrap(),
            ),
            None => (Link::tcp(dialled).unwrap(), Link::tcp(accepted).unwrap()),
        };
        while !(a.is_established() && b.is_established()) {
            for link in [&mut a, &mut b] {
                link.flush().unwrap();
                link.fill().unwrap();
            }
        }
        (a, b)
    }
}

/// Waits for the frame by which a side says what it has received.
fn answer_of(link: &mut Link) -> Received {
    loop {
        link.fill().unwrap();
        if let Some(frame) = link.next_frame().unwrap() {
            assert_eq!(frame.kind, FrameKind::Received);
            return Received::decode(&frame.body).unwrap();
        }
    }
}

/// What a node and a relay do: the listener lets go and answers, then the dialler, which read until then.
fn reconnect(wires: &Wires, dialler: &mut Side, listener: &mut Side) {
    let (mut near, mut far) = wires.connect();
    listener.link.suspend();
    listener.send(3); // Something is sent while there is no connection.
    far.answer_received(listener.link.received()).unwrap();
    let theirs = answer_of(&mut near);
    dialler.link.suspend();
    near.answer_received(dialler.link.received()).unwrap();
    dialler.link.resume(near, theirs).unwrap();
    let theirs = answer_of(&mut far);
    listener.link.resume(far, theirs).unwrap();
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Send { by_dialler: bool, bytes: usize },
    Flush { by_dialler: bool },
    Receive { by_dialler: bool },
    Cut,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let bytes = prop_oneof![4 => 0..200usize, 2 => 1_000..100_000usize, 1 => 200_000..600_000usize];
    let step = prop_oneof![
        6 => (any::<bool>(), bytes).prop_map(|(by_dialler, bytes)| Step::Send { by_dialler, bytes }),
        4 => any::<bool>().prop_map(|by_dialler| Step::Flush { by_dialler }),
        4 => any::<bool>().prop_map(|by_dialler| Step::Receive { by_dialler }),
        1 => Just(Step::Cut),
    ];
    prop::collection::vec(step, 1..120)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]
    #[test]
    fn every_frame_arrives_once_and_in_order(steps in steps(), with_tls in any::<bool>()) {
        let wires = Wires::new(with_tls);
        let (a, b) = wires.connect();
        let (mut dialler, mut listener) = (Side::new(a), Side::new(b));
        for step in steps {
            let of = |by_dialler: bool| usize::from(!by_dialler);
            let sides = [&mut dialler, &mut listener];
            match step {
                Step::Send { by_dialler, bytes } => sides[of(by_dialler)].send(bytes),
                Step::Flush { by_dialler } => {
                    sides[of(by_dialler)].link.flush().unwrap();
                }
                Step::Receive { by_dialler } => sides[of(by_dialler)].receive().unwrap(),
                Step::Cut => reconnect(&wires, &mut dialler, &mut listener),
            }
        }
        while dialler.got < listener.sent || listener.got < dialler.sent {
            for side in [&mut dialler, &mut listener] {
                side.link.flush().unwrap();
                side.receive().unwrap();
            }
        }
    }
}

#[test]
fn what_was_sent_is_kept_only_until_the_peer_has_it() {
    let wires = Wires::new(true);
    let (a, b) = wires.connect();
    let (mut dialler, mut listener) = (Side::new(a), Side::new(b));
    for _ in 0..2_000 {
        dialler.send(30_000);
        while listener.got < dialler.sent {
            dialler.link.flush().unwrap();
            listener.receive().unwrap();
        }
        listener.link.flush().unwrap();
        dialler.receive().unwrap();
        dialler.link.shrink_if_idle();
    }
    let held = dialler.link.held_for_sending_bytes();
    assert!(held < 2 << 20, "{held} bytes of 60 MB are kept");
}

#[test]
fn a_peer_that_claims_more_than_it_was_sent_is_refused() {
    let wires = Wires::new(true);
    let (a, b) = wires.connect();
    let (mut dialler, mut listener) = (Side::new(a), Side::new(b));
    dialler.send(10);
    dialler.link.flush().unwrap();
    listener.receive().unwrap();
    let Received(had) = listener.link.received();
    for (claim, is_true) in [(had + 1, false), (u64::MAX, false), (had, true), (0, false)] {
        let (near, _far) = wires.connect();
        let resumed = dialler.link.resume(near, Received(claim));
        assert_eq!(resumed.is_ok(), is_true, "{claim} of {had}: {resumed:?}");
    }
}

#[test]
fn a_peer_that_reads_without_saying_so_is_given_up() {
    let wires = Wires::new(false);
    let (a, mut b) = wires.connect();
    b.set_frame_limit(MAX_FRAME_BYTES);
    let mut dialler = Side::new(a);
    let mut result = Ok(true);
    for _ in 0..400 {
        dialler.send(300_000);
        while result.is_ok() && dialler.link.queued_bytes() > 0 {
            result = dialler.link.flush();
            b.fill().unwrap();
            while b.next_frame().unwrap().is_some() {}
        }
    }
    assert!(
        matches!(result, Err(LinkError::Unacknowledged)),
        "{result:?}"
    );
}
