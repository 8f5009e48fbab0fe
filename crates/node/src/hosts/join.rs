//! How a relay joins its controller's cluster.

use std::net::{IpAddr, SocketAddr, TcpStream, ToSocketAddrs};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use broadleaf_core::journal::Fact;
use broadleaf_core::liveness::Liveness;
use broadleaf_core::recording::Start;
use broadleaf_net::proof::DialProof;
use broadleaf_net::seal::generate_secret;
use broadleaf_net::tls::{ClientTls, KeyError, ServerTls};
use broadleaf_net::{DialSecurity, Link, LinkError, Listener, Readiness, Route};
use broadleaf_proto::control::{self, Hello, Refusal, Role, Welcome};
use broadleaf_proto::proof::DialKey;
use broadleaf_proto::resume::SessionKey;
use broadleaf_proto::{FrameKind, HostId, PROTOCOL_VERSION, limits};

use crate::config::{NodeConfig, RelayConfig, n_usable_cores};
use crate::connections::peers::Role as PeerRole;
use crate::error::{NodeError, io_error};
use crate::hosts::rejoin::Rejoin;
use crate::hosts::uplink::{NodeRole, Uplink};
use crate::node::{Node, REDIAL};
use crate::payload::{Dialer, Plane, Setup};
use crate::recording::Recording;

/// How long the controller may take to accept a relay.
const DIAL_TIME: Duration = Duration::from_secs(10);

/// Dials the controller and introduces this host.
///
/// # Errors
/// [`NodeError`] if the controller cannot be reached or refuses.
fn dial(
    config: &NodeConfig,
    relay: &RelayConfig,
    listen: impl FnOnce(&TcpStream) -> Result<Option<String>, NodeError>,
) -> Result<(Link, Welcome), NodeError> {
    let deadline = Instant::now() + DIAL_TIME;
    let stream = connect_within(&relay.controller.0, relay.controller.1, DIAL_TIME)
        .map_err(io_error("dialing the controller"))?;
    let role = role_of(config, relay, listen(&stream)?, None);
    introduce(stream, config, relay, role, deadline)
}

/// Introduces this host to a controller that has taken the place of the one whose link had the key `former`.
///
/// # Errors
/// As [`dial`].
pub(crate) fn dial_successor(
    config: &NodeConfig,
    relay: &RelayConfig,
    listen: Option<String>,
    former: SessionKey,
    connect_time: Duration,
) -> Result<(Link, Welcome), NodeError> {
    let deadline = Instant::now() + DIAL_TIME;
    let stream = connect_within(&relay.controller.0, relay.controller.1, connect_time)
        .map_err(io_error("dialing the controller"))?;
    let role = role_of(config, relay, listen, Some(former));
    introduce(stream, config, relay, role, deadline)
}

fn role_of(
    config: &NodeConfig,
    relay: &RelayConfig,
    listen: Option<String>,
    former: Option<SessionKey>,
) -> Role {
    Role::Relay {
        name: relay.name.clone(),
        n_engines: config.n_engines,
        n_cores: n_usable_cores(),
        listen,
        ends_in_ns: relay.ends_in_ns(),
        former,
    }
}

/// Connects to the first address that answers in time.
pub(crate) fn connect_within(host: &str, port: u16, limit: Duration) -> std::io::Result<TcpStream> {
    let mut last = std::io::Error::new(std::io::ErrorKind::NotFound, "the name has no address");
    for address in (host, port).to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, limit) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// How this relay proves its key to the controller, and knows it.
pub(crate) fn upstream_security(
    config: &NodeConfig,
    relay: &RelayConfig,
) -> Result<DialSecurity, KeyError> {
    dial_security(config, relay, |private| {
        ClientTls::new(private, &config.keys.server.public)
    })
}

/// How this relay proves its key to another node; for TLS, `tls` gets the private key and makes the dialing side.
fn dial_security(
    config: &NodeConfig,
    relay: &RelayConfig,
    tls: impl FnOnce(&str) -> Result<ClientTls, KeyError>,
) -> Result<DialSecurity, KeyError> {
    if relay.tls {
        return Ok(DialSecurity::Tls(tls(&config.keys.engine.private)?));
    }
    Ok(DialSecurity::Proof(DialProof {
        kind: DialKey::Engine,
        key: config.engine_proof()?,
    }))
}

/// What this node says about itself.
pub(crate) fn hello(config: &NodeConfig, role: Role) -> Hello {
    Hello {
        protocol: PROTOCOL_VERSION,
        broadleaf: env!("CARGO_PKG_VERSION").to_owned(),
        python: config.python.clone(),
        cluster_id: config.cluster_id.clone(),
        role,
    }
}

fn introduce(
    stream: TcpStream,
    config: &NodeConfig,
    relay: &RelayConfig,
    role: Role,
    deadline: Instant,
) -> Result<(Link, Welcome), NodeError> {
    let link = upstream_security(config, relay)?.link(stream);
    let mut link = link.map_err(io_error("dialing the controller"))?;
    link.send(
        FrameKind::Hello,
        &control::encode(&hello(config, role)),
        &[],
    )?;
    link.set_frame_limit(limits::MAX_FRAME_BYTES);
    loop {
        link.flush()?;
        if let Some(frame) = link.next_frame()? {
            if frame.kind == FrameKind::Welcome {
                let welcome = control::decode(&frame.body).map_err(LinkError::from)?;
                return Ok((link, welcome));
            }
            let refusal: Refusal = control::decode(&frame.body).map_err(LinkError::from)?;
            return Err(NodeError::Refused(refusal.message));
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(NodeError::NoAnswer);
        }
        let for_write = link.wants_write();
        if let Readiness::Ready { readable: true, .. } = link.wait(for_write, Some(left))? {
            link.fill()?;
        }
    }
}

/// Where other relays reach this one: the listener, and the address to announce.
fn listen_for_relays(
    config: &NodeConfig,
    relay: &RelayConfig,
    own: IpAddr,
) -> Result<Option<(Listener, String)>, NodeError> {
    if relay.outbound_only {
        return Ok(None);
    }
    let default = || (own.to_string(), 0);
    let (host, port) = relay.listen.clone().unwrap_or_else(default);
    let address = (host.as_str(), port);
    let listener = if relay.tls {
        Listener::tls(
            address,
            ServerTls::among_equals(&config.keys.engine.private)?,
        )
    } else {
        Listener::tcp(address, config.listen_proof()?)
    };
    let listener = listener.map_err(io_error("listening for other relays"))?;
    let Some(bound) = listener.tcp_address() else {
        return Ok(None);
    };
    let told = if bound.ip().is_unspecified() {
        SocketAddr::new(own, bound.port())
    } else {
        bound
    };
    Ok(Some((listener, told.to_string())))
}

impl Node {
    /// If this is a relay, joins its controller's cluster.
    pub(crate) fn join(&mut self) -> Result<(), NodeError> {
        let Some(relay) = self.config.relay.clone() else {
            return Ok(());
        };
        let config = &self.config;
        let (mut listener, mut address) = (None, None);
        let mut controller = None;
        let begun = Instant::now();
        let mut connect_ns = 0;
        let (link, welcome) = dial(config, &relay, |stream| {
            connect_ns = u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX);
            let own = stream
                .local_addr()
                .map_err(io_error("asking for our address"))?;
            let peer = stream.peer_addr();
            controller = Some(peer.map_err(io_error("asking for the controller's address"))?);
            let listening = listen_for_relays(config, &relay, own.ip())?;
            Ok(listening.map(|(ours, told)| {
                listener = Some(ours);
                address = Some(told.clone());
                told
            }))
        })?;
        let dialer = controller.map(|controller| {
            Ok::<_, NodeError>(Dialer {
                controller: Route::new(controller, upstream_security(config, &relay)?),
                to_relays: dial_security(config, &relay, ClientTls::among_equals)?,
            })
        });
        let host = welcome.host;
        self.objects.is_encrypted = welcome.payload_secret.is_some();
        let plane = Plane::start(Setup {
            hello: hello(config, Role::Payload { host }),
            listener,
            dialer: dialer.transpose()?,
            secret: welcome.payload_secret,
            socket_buffer_bytes: config.options.payload_socket_bytes,
            streams: config.options.payload_streams,
            piece_bytes: config.options.mpi_message_bytes,
            cores: config.options.payload_cores,
            niceness: config.options.payload_niceness,
        });
        self.objects
            .start(host, plane.map_err(io_error("starting the payload plane"))?);
        self.watch_plane()?;
        let token = self.add_peer(link, PeerRole::Controller)?;
        let rejoin = welcome
            .session
            .map(|session| Rejoin::new(session, connect_ns, address, welcome.keeps_journal));
        let rejoin = rejoin.transpose()?;
        if let Some(rejoin) = &rejoin {
            self.peers[token].link.make_resumable();
            self.watch(rejoin.bell().as_fd(), REDIAL)?;
        }
        let options = &self.config.options;
        self.recording = Recording::begin(options, Start::Relay, Some(&relay.name))?;
        let recording = self.recording.clone();
        self.role = NodeRole::Relay(Uplink::new(token, host, rejoin, recording));
        self.read_clock();
        let now_ns = self.now_ns;
        if let Some(uplink) = self.uplink().filter(|_| welcome.keeps_journal) {
            uplink.relay.outlive_controller(now_ns);
        }
        self.liveness = Liveness::listening(self.config.options.controller_limits());
        self.liveness.on_up(self.now_ns, HostId::CONTROLLER);
        self.host = relay.name;
        // The first commands may have arrived together with the welcome.
        self.read(token)?;
        self.carry_out();
        Ok(())
    }

    /// At the controller's node: starts the payload plane with the first relay.
    pub(crate) fn start_plane(&mut self) -> Result<(), NodeError> {
        if self.objects.plane.is_some() {
            return Ok(());
        }
        let host = HostId::CONTROLLER;
        let is_encrypted = self.config.tcp.as_ref().is_none_or(|tcp| tcp.tls);
        self.objects.is_encrypted = is_encrypted;
        let known = self
            .journal
            .as_ref()
            .and_then(|j| j.facts().secret().cloned());
        self.objects.secret = match known.filter(|_| is_encrypted) {
            Some(known) => Some(known),
            None => is_encrypted.then(generate_secret).transpose()?,
        };
        if let Some(secret) = self.objects.secret.clone() {
            self.note(Fact::Secret(secret));
        }
        let plane = Plane::start(Setup {
            hello: hello(&self.config, Role::Payload { host }),
            listener: None,
            dialer: None,
            secret: self.objects.secret.clone(),
            socket_buffer_bytes: self.config.options.payload_socket_bytes,
            streams: self.config.options.payload_streams,
            piece_bytes: self.config.options.mpi_message_bytes,
            cores: self.config.options.payload_cores,
            niceness: self.config.options.payload_niceness,
        });
        self.objects
            .start(host, plane.map_err(io_error("starting the payload plane"))?);
        self.watch_plane()
    }
}
