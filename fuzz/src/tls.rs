//! A TLS listener that a stranger talks to: nobody without a key gets in or a frame across.

use std::io::Write;
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::LazyLock;

use broadleaf_net::Link;
use broadleaf_net::tls::{ServerTls, generate};

static SERVER: LazyLock<(TcpListener, ServerTls)> = LazyLock::new(|| {
    let keys = generate().expect("randomness");
    let tls = ServerTls::new(
        &keys.server.private,
        &keys.client.public,
        &keys.engine.public,
    );
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a free port");
    (listener, tls.expect("fresh keys are good"))
});

/// Tries one input.
pub fn run(data: &[u8]) {
    let (listener, tls) = &*SERVER;
    let address = listener.local_addr().expect("bound");
    let mut stranger = TcpStream::connect(address).expect("loopback");
    let (accepted, _) = listener.accept().expect("loopback");
    let mut link = Link::tls_server(accepted, tls).expect("a socket");
    stranger.write_all(data).expect("fits the socket's buffer");
    stranger.shutdown(Shutdown::Write).expect("open");
    loop {
        let ended = link.fill().is_err();
        assert!(!link.is_established() && link.peer_key().is_none());
        assert!(matches!(link.next_frame(), Ok(None)));
        if ended {
            break;
        }
        link.wait(false, None).expect("poll");
    }
}
