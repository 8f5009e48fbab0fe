//! Listeners that a stranger talks to, one on TCP and one on a unix socket that takes TLS or a proof: nobody without a
//! key gets in or a frame across.

use std::io::Write;
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, LazyLock};

use broadleaf_net::Link;
use broadleaf_net::proof::{ListenProof, ProofKey};
use broadleaf_net::tls::{ServerTls, generate};

static SERVER: LazyLock<(TcpListener, ServerTls, Arc<ListenProof>)> = LazyLock::new(|| {
    let keys = generate().expect("randomness");
    let proof = ListenProof {
        client: ProofKey::new(&keys.client.private, "client's").ok(),
        engine: ProofKey::new(&keys.engine.private, "engine's").expect("fresh keys are good"),
    };
    let tls = ServerTls::new(
        &keys.server.private,
        &keys.client.public,
        &keys.engine.public,
    );
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a free port");
    (listener, tls.expect("fresh keys are good"), Arc::new(proof))
});

/// Tries one input.
pub fn run(data: &[u8]) {
    let (listener, tls, proof) = &*SERVER;
    let address = listener.local_addr().expect("bound");
    let mut stranger = TcpStream::connect(address).expect("loopback");
    let (accepted, _) = listener.accept().expect("loopback");
    stranger.write_all(data).expect("fits the socket's buffer");
    stranger.shutdown(Shutdown::Write).expect("open");
    nobody_gets_in(Link::tls_server(accepted, tls).expect("a socket"));

    let (mut stranger, accepted) = UnixStream::pair().expect("descriptors");
    stranger.write_all(data).expect("fits the socket's buffer");
    stranger.shutdown(Shutdown::Write).expect("open");
    let link = Link::unix(accepted).and_then(|link| link.prove_as_listener(proof));
    nobody_gets_in(link.expect("a socket").or_tls(Some(tls)));
}

fn nobody_gets_in(mut link: Link) {
    loop {
        let ended = link.fill().is_err();
        assert!(!link.is_established() && link.peer_key().is_none());
        assert!(ended || matches!(link.next_frame(), Ok(None)));
        if ended {
            break;
        }
        link.wait(false, None).expect("poll");
    }
}
