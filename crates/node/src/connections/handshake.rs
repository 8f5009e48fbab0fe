//! Decides who may connect.

use std::os::fd::AsFd;

use broadleaf_core::Input;
use broadleaf_core::journal::Fact;
use broadleaf_net::tls::{ClusterKeys, KeyPair, PeerKey};
use broadleaf_net::{Frame, Link, LinkError};
use broadleaf_proto::control::{self, Hello, Refusal, RefusalKind, Welcome};
use broadleaf_proto::host::EngineReport;
use broadleaf_proto::proof::refuse_version;
use broadleaf_proto::{ClientId, DecodeError, EngineId, EngineInfo, FrameKind, HostId, limits};
use broadleaf_shm::{ClaimBoard, OUTPUT_STREAMS, UnsentOutput};

use crate::config::NodeConfig;
use crate::connections::peers::Role;
use crate::hosts::relays::RelayLink;
use crate::node::Node;
use crate::payload::PlaneCommand;
use crate::reports::ring::Kind;

/// After so many seconds without anything from a client, the system finds out whether its host can be reached.
pub(crate) const CLIENT_IDLE_S: u64 = 5;

/// Keys as JSON: `server`, `client` and `engine`, each `private` and `public` in base64.
pub fn keys_json(keys: &ClusterKeys) -> String {
    let pair = |pair: &KeyPair| serde_json::json!({"private": pair.private, "public": pair.public});
    serde_json::json!({"server": pair(&keys.server), "client": pair(&keys.client), "engine": pair(&keys.engine)})
        .to_string()
}

fn refuse(kind: RefusalKind, message: String) -> Refusal {
    Refusal { kind, message }
}

fn demand(holds: bool, kind: RefusalKind, message: impl FnOnce() -> String) -> Result<(), Refusal> {
    if holds {
        Ok(())
    } else {
        Err(refuse(kind, message()))
    }
}

/// Checks a hello against what the node is and what the connection proved.
///
/// # Errors
/// The refusal to send.
pub fn check(config: &NodeConfig, hello: &Hello, link: &Link) -> Result<(), Refusal> {
    let refusal = refuse_version(hello.protocol, &hello.broadleaf, env!("CARGO_PKG_VERSION"));
    if let Some(refusal) = refusal {
        return Err(refusal);
    }
    let same_cluster = hello.cluster_id == config.cluster_id;
    demand(same_cluster, RefusalKind::Identity, || {
        format!("this is not cluster {:?}", hello.cluster_id)
    })?;
    demand(hello.python == config.python, RefusalKind::Python, || {
        format!(
            "the cluster runs Python {}, you run {}; functions cannot be sent between them: use the same minor version",
            config.python, hello.python
        )
    })?;
    let me = rustix::process::geteuid().as_raw();
    let is_payload = matches!(hello.role, control::Role::Payload { .. });
    let is_resumed = matches!(hello.role, control::Role::Resume { .. });
    let is_relay = is_payload || matches!(hello.role, control::Role::Relay { .. });
    let identity = |message: &str| Err(refuse(RefusalKind::Identity, message.to_owned()));
    let is_client = matches!(hello.role, control::Role::Client { .. });
    let peer = link.peer_credentials();
    if let Some(peer) = peer.filter(|peer| peer.uid != me && peer.uid != 0) {
        return Err(refuse(
            RefusalKind::Identity,
            format!(
                "the cluster belongs to user {me}, you are user {}",
                peer.uid
            ),
        ));
    }
    let is_local = link.is_local();
    match link.peer_key() {
        Some(PeerKey::Engine) if is_client && !is_local => {
            identity("an engine's key does not open a client's connection")
        }
        Some(PeerKey::Client) if is_relay && !is_payload => {
            identity("a client's key does not open a relay's connection")
        }
        Some(PeerKey::Client) if !is_client && !is_payload && !is_resumed => identity(
            "a client's key does not open an engine's connection; use the engines' \
            connection file",
        ),
        Some(_) if is_resumed && is_local => identity("links on this host are not resumed"),
        Some(_) if is_relay && is_local => identity("relays connect over TCP"),
        Some(_) if !is_relay && !is_client && !is_resumed && !is_local => {
            identity("engines connect to the relay of their own host")
        }
        Some(_)
            if config.relay.is_some()
                && (is_client
                    || is_resumed
                    || matches!(hello.role, control::Role::Relay { .. })) =>
        {
            identity("this is a relay; connect to the controller")
        }
        Some(PeerKey::Client | PeerKey::Engine) => Ok(()),
        Some(PeerKey::Server) | None => identity("you have not proven a key"),
    }
}

impl Node {
    /// Handles a peer's first frame.
    pub(crate) fn on_hello(&mut self, token: usize, frame: &Frame) -> Result<(), LinkError> {
        if frame.kind != FrameKind::Hello {
            return Err(DecodeError::UnknownKind(frame.kind as u8).into());
        }
        let hello: Hello = control::decode(&frame.body)?;
        let link = &mut self.peers[token].link;
        if let Err(refusal) = check(&self.config, &hello, link) {
            self.refuse(token, &refusal);
            return Ok(());
        }
        if let control::Role::Resume { session } = hello.role {
            self.on_resume_hello(token, session);
            return Ok(());
        }
        link.set_frame_limit(limits::MAX_FRAME_BYTES);
        link.set_max_fds(limits::MAX_FRAME_FDS);
        self.arrivals.introduce(token);
        let segment_token = self.next_token;
        self.next_token += 1;
        self.peers[token].segment_token = Some(segment_token);
        let mut welcome = Welcome {
            client: ClientId(0),
            engine: EngineId(0),
            segment_token,
            host: HostId::CONTROLLER,
            max_outstanding_tasks: self.config.options.max_outstanding_tasks,
            max_outstanding_bytes: self.config.options.max_outstanding_bytes,
            engines: Vec::new(),
            payload_secret: None,
            session: None,
            keeps_journal: self.journal.is_some(),
        };
        match hello.role {
            control::Role::Client { name, is_forwarded } => {
                self.on_client_hello(token, welcome, name, is_forwarded);
            }
            control::Role::Engine { engine, pid } => {
                let engine = engine.unwrap_or_else(|| self.vacant_engine());
                let board = frame.fds.first().map(|fd| ClaimBoard::from_fd(fd.as_fd()));
                let unsent = frame
                    .fds
                    .first()
                    .map(|fd| UnsentOutput::of_node(fd.as_fd()));
                let (true, Some(Ok(board)), Some(Ok(unsent))) =
                    (self.expects(engine), board, unsent)
                else {
                    let message = format!("no engine {} is expected here", engine.0);
                    self.refuse(token, &refuse(RefusalKind::Full, message));
                    return Ok(());
                };
                let info = EngineInfo {
                    engine,
                    uuid: random_hex(),
                    pid,
                    host: self.host.clone(),
                };
                welcome.engine = engine;
                welcome.engines = vec![info.clone()];
                self.peers[token].role = Role::Engine {
                    engine,
                    pid,
                    board,
                    next_offer: 0,
                    unsent,
                    arrived_bytes: [0; OUTPUT_STREAMS],
                };
                self.engines.insert(engine, token);
                self.ring.note(Kind::EngineUp, engine.0, u64::from(pid));
                self.welcome_engine(token, &control::encode(&welcome))?;
                self.report(EngineReport::Up(info));
            }
            role @ control::Role::Relay { .. } => self.on_relay_hello(token, welcome, role),
            control::Role::Payload { host } => self.on_payload_hello(token, welcome, host),
            control::Role::Mover(mover) => self.on_mover_hello(token, &welcome, mover),
            control::Role::Resume { .. } => {} // It was handled above.
            control::Role::ForkServer { .. } => {
                if self.fork_server.is_some() {
                    let message = "the node already has a fork server".to_owned();
                    self.refuse(token, &refuse(RefusalKind::Full, message));
                    return Ok(());
                }
                self.peers[token].role = Role::ForkServer;
                self.fork_server = Some(token);
                self.send(token, FrameKind::Welcome, &control::encode(&welcome));
                self.on_fork_server_up();
            }
        }
        Ok(())
    }

    fn on_client_hello(
        &mut self,
        token: usize,
        mut welcome: Welcome,
        name: String,
        is_forwarded: bool,
    ) {
        let client = ClientId(self.next_client);
        self.next_client += 1;
        self.note(Fact::ClientNumber(client));
        welcome.client = client;
        welcome.engines = self
            .role
            .controller()
            .map(broadleaf_core::Controller::engines)
            .unwrap_or_default();
        welcome.host = self.on_client_host(token);
        if welcome.host != HostId::CONTROLLER {
            welcome.payload_secret.clone_from(&self.objects.secret);
        }
        self.peers[token].role = Role::Client {
            client,
            host: welcome.host,
            is_forwarded,
            congested: false,
        };
        self.clients.insert(client, token);
        self.ring.note(Kind::ClientUp, client.0, 0);
        if welcome.host != HostId::CONTROLLER {
            welcome.session = self.offer_session(token);
        }
        self.send(token, FrameKind::Welcome, &control::encode(&welcome));
        if let Some(peer) = self.peers.get_mut(token).filter(|p| p.session.is_some()) {
            peer.link.make_resumable();
            peer.link.keep_alive(CLIENT_IDLE_S);
        }
        self.input(Input::ClientUp { client, name });
    }

    /// The relay of another host: its engines may be started from now on.
    fn on_relay_hello(&mut self, token: usize, mut welcome: Welcome, role: control::Role) {
        let control::Role::Relay {
            name,
            n_engines,
            n_cores,
            listen,
            ends_in_ns,
            former,
        } = role
        else {
            return;
        };
        let awaited = former.map(|session| self.relays.awaited.get(&session).cloned());
        if let Some(None) = awaited {
            let message = "the cluster has given this host up".to_owned();
            self.refuse(token, &refuse(RefusalKind::Session, message));
            return;
        }
        let former = awaited.flatten().map(|(host, _)| host);
        match former {
            None => self.give_up_silent(&name),
            Some(host) => self.drop_earlier_attempt(host),
        }
        let controller = self.role.controller();
        if former.is_none() && controller.is_none_or(|c| c.has_host_named(&name)) {
            let message = format!(
                "a relay named {name:?} is already connected; give this one another --name, or \
                wait until the loss of the other one is noticed"
            );
            self.refuse(token, &refuse(RefusalKind::Full, message));
            return;
        }
        if let Err(error) = self.start_plane() {
            self.refuse(token, &refuse(RefusalKind::Full, error.to_string()));
            return;
        }
        let can_serve = listen.is_some();
        let is_rejoining = former.is_some();
        let host = former.unwrap_or_else(|| self.relays.next_host());
        (self.relays).insert(host, token, name.clone(), listen, is_rejoining);
        if !is_rejoining {
            self.liveness.on_up(self.now_ns, host);
        }
        self.objects.transfers.on_host_up(host, can_serve);
        welcome.host = host;
        welcome.payload_secret.clone_from(&self.objects.secret);
        self.peers[token].role = Role::Relay { host };
        welcome.session = self.offer_session(token);
        self.send(token, FrameKind::Welcome, &control::encode(&welcome));
        if let Some(peer) = self.peers.get_mut(token).filter(|p| p.session.is_some()) {
            peer.link.make_resumable();
        }
        if let Some(session) = self.peers.get(token).and_then(|peer| peer.session) {
            self.note(Fact::Session(host, session));
        }
        if is_rejoining {
            return; // It says next what it has.
        }
        self.input(Input::HostUp {
            host,
            name,
            n_engines,
            n_cores,
            ends_in_ns,
        });
    }

    /// A relay that has yet to say what it has dials again.
    fn drop_earlier_attempt(&mut self, host: HostId) {
        if let Some(earlier) = self.relays.links.remove(&host) {
            self.peers[earlier.token].role = Role::Leaving;
            self.close(earlier.token);
        }
    }

    /// A relay of this name has come: one that had it and is silent has been replaced.
    fn give_up_silent(&mut self, name: &str) {
        let silent = |(host, link): (&HostId, &RelayLink)| {
            (link.name == name && self.liveness.is_silent(*host)).then_some(link.token)
        };
        let mut awaited = self.relays.awaited.values();
        let awaited = awaited.find_map(|(host, other)| (other == name).then_some(*host));
        if let Some(token) = self.relays.links.iter().find_map(silent) {
            self.close(token);
            self.carry_out();
        } else if let Some(host) = awaited {
            self.on_relay_gone(host);
            self.carry_out();
        }
    }

    /// A payload connection from a relay, or from a client on another host: the payload plane
    /// serves it.
    fn on_payload_hello(&mut self, token: usize, mut welcome: Welcome, host: HostId) {
        let is_known = match self.peers[token].link.peer_key() {
            Some(PeerKey::Client) => self.far_clients.has(host),
            _ => self.relays.links.contains_key(&host),
        };
        if !is_known {
            let message = "no relay or client of that host is connected".to_owned();
            self.refuse(token, &refuse(RefusalKind::Full, message));
            return;
        }
        welcome.host = host;
        self.send(token, FrameKind::Welcome, &control::encode(&welcome));
        if let Some(link) = self.release_peer(token) {
            let link = Box::new(link);
            self.objects.order(PlaneCommand::Adopt { link, host });
        }
    }

    /// A slot for an engine that was started by hand; a relay has none to assign.
    fn vacant_engine(&self) -> EngineId {
        let controller = self.role.controller();
        controller.map_or(
            EngineId(u32::MAX),
            broadleaf_core::Controller::vacant_engine,
        )
    }

    fn expects(&self, engine: EngineId) -> bool {
        self.role.expects(engine) && !self.engines.contains_key(&engine)
    }

    pub(crate) fn refuse(&mut self, token: usize, refusal: &control::Refusal) {
        self.ring.note(Kind::Refused, refusal.kind as u32, 0);
        self.arrivals.forget(token);
        self.peers[token].role = Role::Leaving;
        self.send(token, FrameKind::Refused, &control::encode(refusal));
    }
}

fn random_hex() -> String {
    let mut bytes = [0_u8; 16];
    // This is for identity, not secrecy: without randomness, the process and the time would still
    // tell engines apart.
    if rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty()).is_err() {
        bytes[..8].copy_from_slice(&u64::from(std::process::id()).to_le_bytes());
    }
    format!("{:032x}", u128::from_be_bytes(bytes))
}

#[cfg(test)]
mod tests;
