//! Which key opens what, over which way: the table of the page on threats.
#![allow(clippy::unwrap_used)] // a test fails by panicking

use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use broadleaf_net::Link;
use broadleaf_net::proof::{DialProof, ProofKey};
use broadleaf_net::tls::{self, ClientTls, ClusterKeys};
use broadleaf_proto::control::{Hello, Role};
use broadleaf_proto::proof::DialKey;
use broadleaf_proto::resume::SessionKey;
use broadleaf_proto::{EngineId, HostId, PROTOCOL_VERSION};

use super::check;
use crate::config::{NodeConfig, RelayConfig};

/// How a peer reaches the node.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Way {
    Socket,
    /// By SSH, from another host.
    TlsToSocket,
    TlsToPort,
}

const WAYS: [Way; 3] = [Way::Socket, Way::TlsToSocket, Way::TlsToPort];

fn config(keys: &ClusterKeys) -> NodeConfig {
    let mut config =
        NodeConfig::parse(r#"{"cluster_id": "c", "unix_path": "/s", "python": "3.11"}"#).unwrap();
    for (own, made) in [
        (&mut config.keys.server, &keys.server),
        (&mut config.keys.client, &keys.client),
        (&mut config.keys.engine, &keys.engine),
    ] {
        own.private.clone_from(&made.private);
        own.public.clone_from(&made.public);
    }
    config
}

fn tcp_pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (near, listener.accept().unwrap().0)
}

/// Copies bytes both ways until either end closes, as sshd does.
fn forward(near: TcpStream, far: UnixStream) {
    let (mut near_too, mut far_too) = (near.try_clone().unwrap(), far.try_clone().unwrap());
    let (mut near, mut far) = (near, far);
    std::thread::spawn(move || {
        let _ = std::io::copy(&mut near, &mut far);
        let _ = far.shutdown(std::net::Shutdown::Both);
    });
    std::thread::spawn(move || {
        let _ = std::io::copy(&mut far_too, &mut near_too);
        let _ = near_too.shutdown(std::net::Shutdown::Both);
    });
}

/// The node's end of a connection over which `key` was proven.
fn accepted(config: &NodeConfig, key: DialKey, way: Way) -> Link {
    let private = match key {
        DialKey::Client => &config.keys.client.private,
        DialKey::Engine => &config.keys.engine.private,
    };
    let tls = ClientTls::new(private, &config.keys.server.public).unwrap();
    let local = |stream| {
        let proof = Arc::new(config.listen_proof().unwrap());
        let link = Link::unix(stream).and_then(|link| link.prove_as_listener(&proof));
        link.unwrap().or_tls(Some(&config.server_tls().unwrap()))
    };
    let (mut peer, mut node) = match way {
        Way::Socket => {
            let (near, far) = UnixStream::pair().unwrap();
            let kind = key;
            let key = ProofKey::new(private, "its").unwrap();
            let peer = Link::unix(near).and_then(|l| l.prove_as_dialer(&DialProof { kind, key }));
            (peer.unwrap(), local(far))
        }
        Way::TlsToSocket => {
            let (dialling, near) = tcp_pair();
            let (far, socket) = UnixStream::pair().unwrap();
            forward(near, far);
            (Link::tls_client(dialling, &tls).unwrap(), local(socket))
        }
        Way::TlsToPort => {
            let (dialling, socket) = tcp_pair();
            let node = Link::tls_server(socket, &config.server_tls().unwrap());
            (Link::tls_client(dialling, &tls).unwrap(), node.unwrap())
        }
    };
    let start = Instant::now();
    while !(peer.is_established() && node.is_established()) {
        assert!(start.elapsed() < Duration::from_secs(30), "no handshake");
        for link in [&mut peer, &mut node] {
            link.flush().unwrap();
            link.wait(false, Some(Duration::from_millis(5))).unwrap();
            link.fill().unwrap();
        }
    }
    node
}

fn roles() -> [(&'static str, Role); 6] {
    let relay = Role::Relay {
        name: "h".to_owned(),
        n_engines: 1,
        n_cores: 1,
        listen: None,
        ends_in_ns: None,
        former: None,
    };
    let engine = Some(EngineId(0));
    let name = String::new();
    [
        (
            "client",
            Role::Client {
                name,
                is_forwarded: false,
            },
        ),
        ("engine", Role::Engine { engine, pid: 1 }),
        ("fork server", Role::ForkServer { pid: 1 }),
        ("relay", relay),
        ("payload", Role::Payload { host: HostId(1) }),
        (
            "resume",
            Role::Resume {
                session: SessionKey([0; 16]),
            },
        ),
    ]
}

fn admitted(config: &NodeConfig, key: DialKey, way: Way) -> Vec<&'static str> {
    let link = accepted(config, key, way);
    let mut admitted = Vec::new();
    for (name, role) in roles() {
        let hello = Hello {
            protocol: PROTOCOL_VERSION,
            broadleaf: env!("CARGO_PKG_VERSION").to_owned(),
            python: "3.11".to_owned(),
            cluster_id: "c".to_owned(),
            role,
        };
        if check(config, &hello, &link).is_ok() {
            admitted.push(name);
        }
    }
    admitted
}

#[test]
fn the_controller_admits_what_the_key_and_the_way_allow() {
    let config = config(&tls::generate().unwrap());
    for way in WAYS {
        let of_clients = admitted(&config, DialKey::Client, way);
        let of_engines = admitted(&config, DialKey::Engine, way);
        if way == Way::Socket {
            assert_eq!(of_clients, ["client"]);
            assert_eq!(of_engines, ["client", "engine", "fork server"]);
        } else {
            assert_eq!(of_clients, ["client", "payload", "resume"], "{way:?}");
            assert_eq!(of_engines, ["relay", "payload", "resume"], "{way:?}");
        }
    }
}

#[test]
fn a_relay_admits_only_its_engines_and_payload() {
    let mut config = config(&tls::generate().unwrap());
    config.relay = Some(RelayConfig {
        controller: ("c".to_owned(), 1),
        tls: true,
        name: "h".to_owned(),
        listen: None,
        outbound_only: false,
        ends_in_s: None,
    });
    let at_socket = admitted(&config, DialKey::Engine, Way::Socket);
    assert_eq!(at_socket, ["engine", "fork server"]);
    assert_eq!(
        admitted(&config, DialKey::Engine, Way::TlsToPort),
        ["payload"]
    );
}
