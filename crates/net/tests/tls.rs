//! Which peers are accepted over TLS.
#![allow(clippy::unwrap_used)] // a test fails by panicking

mod wires;

use std::io::{Read, Write};

use broadleaf_net::tls::{self, ClientTls, KeyError, PeerKey, ServerTls};
use broadleaf_net::{Link, LinkError};
use broadleaf_proto::FrameKind;
use wires::{Relay, client_tls, establish, server_tls, tcp_pair, until, until_error};

fn links(client: &ClientTls, server: &ServerTls) -> (Link, Link) {
    let (a, b) = tcp_pair();
    (
        Link::tls_client(a, client).unwrap(),
        Link::tls_server(b, server).unwrap(),
    )
}

#[test]
fn each_side_learns_whose_key_the_peer_holds() {
    let keys = tls::generate().unwrap();
    let engine = ClientTls::new(&keys.engine.private, &keys.server.public).unwrap();
    for (client, owner) in [
        (client_tls(&keys), PeerKey::Client),
        (engine, PeerKey::Engine),
    ] {
        let (mut a, mut b) = links(&client, &server_tls(&keys));
        assert_eq!((a.peer_key(), b.peer_key()), (None, None));
        establish(&mut a, &mut b).unwrap();
        assert_eq!(
            (a.peer_key(), b.peer_key()),
            (Some(PeerKey::Server), Some(owner))
        );
    }
}

#[test]
fn a_client_with_another_key_is_refused() {
    let (keys, other) = (tls::generate().unwrap(), tls::generate().unwrap());
    let stranger = ClientTls::new(&other.client.private, &keys.server.public).unwrap();
    let (mut a, mut b) = links(&stranger, &server_tls(&keys));
    let error = establish(&mut a, &mut b).unwrap_err();
    assert!(matches!(error, LinkError::WrongKey), "{error}");
    assert!(!b.is_established() && b.peer_key().is_none());
    let error = until_error(&mut a);
    assert!(matches!(error, LinkError::KeyRefused), "{error}");
}

#[test]
fn the_servers_own_key_is_no_clients_key() {
    let keys = tls::generate().unwrap();
    let client = ClientTls::new(&keys.server.private, &keys.server.public).unwrap();
    let (mut a, mut b) = links(&client, &server_tls(&keys));
    assert!(matches!(
        establish(&mut a, &mut b),
        Err(LinkError::WrongKey)
    ));
}

#[test]
fn a_server_with_another_key_is_refused() {
    let (keys, other) = (tls::generate().unwrap(), tls::generate().unwrap());
    let impostor = ServerTls::new(
        &other.server.private,
        &keys.client.public,
        &keys.engine.public,
    )
    .unwrap();
    let (mut a, mut b) = links(&client_tls(&keys), &impostor);
    a.send(FrameKind::Hello, b"secret", &[]).unwrap();
    let error = establish(&mut a, &mut b).unwrap_err();
    assert!(matches!(error, LinkError::WrongKey), "{error}");
    assert!(
        !a.is_established() && a.queued_bytes() > 0,
        "nothing queued may leave"
    );
    let error = until_error(&mut b);
    assert!(matches!(error, LinkError::KeyRefused), "{error}");
}

#[test]
fn plaintext_on_the_tls_port_is_refused() {
    let (a, b) = tcp_pair();
    let mut client = Link::tcp(a).unwrap();
    let mut server = Link::tls_server(b, &server_tls(&tls::generate().unwrap())).unwrap();
    client.send(FrameKind::Hello, &[0; 300], &[]).unwrap();
    assert!(client.flush().unwrap());
    let error = until_error(&mut server);
    assert!(matches!(error, LinkError::Tls(_)), "{error}");
    assert!(server.next_frame().unwrap().is_none());
}

#[test]
fn a_broken_first_flight_is_refused_without_a_panic() {
    // Found by fuzzing: a handshake message split across records, then one of an unknown type.
    let flight = [
        0x16, 3, 0x14, 0, 14, 0, 0x16, 3, 0x14, 0, 3, 0, 0x9e, 0x9e, 0x9e, 0x9e, 0x9e, 0x9e, 0x9e,
        0x9e, 14, 14, 0, 0, 0,
    ];
    let (mut stranger, dialled) = tcp_pair();
    let mut server = Link::tls_server(dialled, &server_tls(&tls::generate().unwrap())).unwrap();
    stranger.write_all(&flight).unwrap();
    let error = until_error(&mut server);
    assert!(matches!(error, LinkError::Tls(_)), "{error}");
    // A caller that continues regardless gets errors, nothing worse.
    stranger.write_all(&flight).unwrap();
    server.send(FrameKind::Event, b"", &[]).unwrap();
    let _ = server.flush();
    let error = until_error(&mut server);
    assert!(error.is_closed(), "{error}");
    assert!(!server.is_established());
}

#[test]
fn tls_to_a_plaintext_port_fails_on_both_sides() {
    let (a, b) = tcp_pair();
    let mut client = Link::tls_client(a, &client_tls(&tls::generate().unwrap())).unwrap();
    let mut server = Link::tcp(b).unwrap();
    assert!(client.flush().unwrap());
    let error = until_error(&mut server);
    assert!(matches!(error, LinkError::Decode(_)), "{error}");
    drop(server);
    let error = until_error(&mut client);
    assert!(matches!(error, LinkError::ClosedInHandshake), "{error}");
}

#[test]
fn a_recorded_handshake_is_worth_nothing() {
    let keys = tls::generate().unwrap();
    let (mut relay, dialling, dialled) = Relay::new(64 * 1024);
    let server = server_tls(&keys);
    let mut a = Link::tls_client(dialling, &client_tls(&keys)).unwrap();
    let mut b = Link::tls_server(dialled, &server).unwrap();
    a.send(FrameKind::Hello, b"let me in", &[]).unwrap();
    let frame = until(|| {
        a.flush().unwrap();
        a.fill().unwrap();
        b.flush().unwrap();
        b.fill().unwrap();
        relay.pass();
        b.next_frame().unwrap()
    });
    assert_eq!(&frame.body[..], b"let me in");

    // The same bytes again, to the same server: the first flight is answered, the rest is refused.
    let (mut thief, dialled) = tcp_pair();
    let mut b = Link::tls_server(dialled, &server).unwrap();
    thief.write_all(&relay.from_near).unwrap();
    let error = until_error(&mut b);
    assert!(matches!(error, LinkError::Tls(_)), "{error}");
    assert!(!b.is_established() && b.peer_key().is_none());
    assert!(b.next_frame().unwrap().is_none());
}

#[test]
fn no_ticket_is_handed_out_and_nothing_travels_in_clear() {
    let keys = tls::generate().unwrap();
    let (mut relay, dialling, dialled) = Relay::new(64 * 1024);
    let mut a = Link::tls_client(dialling, &client_tls(&keys)).unwrap();
    let mut b = Link::tls_server(dialled, &server_tls(&keys)).unwrap();
    let secret = b"a body that nobody else may read";
    a.send(FrameKind::Hello, secret, &[]).unwrap();
    until(|| {
        a.flush().unwrap();
        a.fill().unwrap();
        b.fill().unwrap();
        relay.pass();
        b.next_frame().unwrap()
    });
    assert!(!relay.from_near.windows(8).any(|w| w == &secret[..8]));
    // The client has consumed everything the server sent as handshake: nothing more will come.
    let before = a.counters().bytes_in;
    assert!(b.flush().unwrap());
    relay.pass();
    assert_eq!(a.fill().unwrap(), 0);
    assert_eq!(a.counters().bytes_in, before);
}

#[test]
fn garbage_after_the_handshake_ends_the_link() {
    let keys = tls::generate().unwrap();
    let (mut relay, dialling, dialled) = Relay::new(64 * 1024);
    let mut a = Link::tls_client(dialling, &client_tls(&keys)).unwrap();
    let mut b = Link::tls_server(dialled, &server_tls(&keys)).unwrap();
    until(|| {
        for link in [&mut a, &mut b] {
            link.flush().unwrap();
            link.fill().unwrap();
        }
        relay.pass();
        b.is_established().then_some(())
    });
    // A well-formed record that nobody encrypted.
    relay.far.write_all(&[23, 3, 3, 0, 20]).unwrap();
    relay.far.write_all(&[0; 20]).unwrap();
    let error = until_error(&mut b);
    assert!(matches!(error, LinkError::Tls(_)), "{error}");
    let mut alert = [0; 64];
    let count = until(|| relay.far.read(&mut alert).ok());
    assert!(count > 0, "the peer is told");
}

#[test]
fn keys_that_are_none_are_refused() {
    let keys = tls::generate().unwrap();
    let private = &keys.server.private;
    for bad in ["", "?", "AAAA", &keys.client.private] {
        let error = ServerTls::new(private, bad, &keys.engine.public).unwrap_err();
        assert!(matches!(error, KeyError::Malformed(_)), "{error}");
        assert!(ClientTls::new(private, bad).is_err());
    }
    assert!(ClientTls::new(&keys.client.public, &keys.server.public).is_err());
    let error = ServerTls::new(private, &keys.client.public, &keys.client.public).unwrap_err();
    assert!(matches!(error, KeyError::NotDistinct));
    assert_ne!(tls::generate().unwrap(), keys);
    assert!(!format!("{keys:?}").contains(private.as_str()));
}
