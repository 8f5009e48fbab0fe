//! Links that outlive their connection (see [`broadleaf_proto::resume`]): those to relays, and to clients on other hosts.

use broadleaf_core::Input;
use broadleaf_core::liveness::Verdict;
use broadleaf_net::tls::PeerKey;
use broadleaf_net::{Frame, LinkError, generate_session_key};
use broadleaf_proto::control::{ControlRequest, Refusal, RefusalKind};
use broadleaf_proto::resume::{Received, SessionKey};
use broadleaf_proto::{DecodeError, FrameKind, HostId};

use crate::connections::handshake::CLIENT_IDLE_S;
use crate::connections::peers::{Peer, Role};
use crate::node::Node;
use crate::reports::ring::Kind;

impl Node {
    /// Makes the link to a peer resumable; the welcome that is to be sent with this key must be the next frame.
    pub(crate) fn offer_session(&mut self, token: usize) -> Option<SessionKey> {
        // Without randomness, the link ends with its connection.
        let session = generate_session_key().ok()?;
        self.sessions.insert(session, token);
        self.peers[token].session = Some(session);
        Some(session)
    }

    /// Tells a peer that its link is closed for good.
    pub(crate) fn say_goodbye(&mut self, token: usize) {
        if let Some(peer) = self.peers.get_mut(token) {
            peer.link.say_goodbye();
        }
    }

    /// The connection of a link broke: keeps the link, if the peer may come back. Returns whether it does.
    pub(crate) fn hold_link(&mut self, token: usize, error: &LinkError) -> bool {
        let Some(peer) = self.peers.get(token) else {
            return false;
        };
        if !peer.link.is_resumable() || !error.is_closed() {
            return false;
        }
        match peer.role {
            // A process that ends closes its connection; a network that fails does not.
            Role::Relay { host } if matches!(error, LinkError::Lost(_)) => {
                self.let_go(token);
                if self.liveness.on_broken(self.now_ns, host, error.is_reset()) {
                    self.on_host_silent(host);
                }
                true
            }
            // The same, unless something else forwards its bytes, which may end by itself.
            Role::Client {
                host, is_forwarded, ..
            } if matches!(error, LinkError::Lost(_)) || is_forwarded => {
                self.let_go(token);
                self.held_clients.on_up(self.now_ns, host);
                self.held_clients
                    .on_broken(self.now_ns, host, error.is_reset());
                self.objects.on_away(host, true);
                true
            }
            Role::Controller => {
                self.let_go(token);
                self.liveness
                    .on_broken(self.now_ns, HostId::CONTROLLER, false);
                self.on_uplink_broken();
                true
            }
            _ => false,
        }
    }

    /// Lets go of a link's connection, and keeps the link.
    pub(crate) fn let_go(&mut self, token: usize) {
        let Some(peer) = self.peers.get_mut(token) else {
            return;
        };
        if !peer.link.is_suspended() {
            // This can only fail for a descriptor that is not registered.
            let _ = rustix::event::epoll::delete(&self.poller, peer.link.as_fd());
            peer.link.suspend();
        }
    }

    /// A new connection says that it carries on a link.
    pub(crate) fn on_resume_hello(&mut self, token: usize, session: SessionKey) {
        let link = self.sessions.get(&session).copied();
        let key = self.peers[token].link.peer_key();
        let Some(link) = link.filter(|link| self.peers[*link].link.peer_key() == key) else {
            let is_relay = key == Some(PeerKey::Engine);
            let (kind, message) = if is_relay && self.relays.awaited.contains_key(&session) {
                (RefusalKind::Restarted, "the controller was started again")
            } else {
                let message = "the cluster does not know this link, or has given it up";
                (RefusalKind::Session, message)
            };
            let message = message.to_owned();
            self.refuse(token, &Refusal { kind, message });
            return;
        };
        self.arrivals.introduce(token);
        let earlier = |(other, peer): (usize, &Peer)| {
            matches!(peer.role, Role::Resuming { session: of } if of == session).then_some(other)
        };
        let earlier: Vec<usize> = self.peers.iter().filter_map(earlier).collect();
        for other in earlier {
            self.close(other);
        }
        // From here on nothing more is read from the old connection, so the number holds.
        self.let_go(link);
        let received = self.peers[link].link.received();
        self.peers[token].role = Role::Resuming { session };
        self.send(token, FrameKind::Received, &received.encode());
    }

    /// The dialling side has said what it has received: the link goes on over its new connection.
    pub(crate) fn on_resuming_frame(
        &mut self,
        token: usize,
        session: SessionKey,
        frame: &Frame,
    ) -> Result<(), LinkError> {
        if frame.kind != FrameKind::Received {
            return Err(DecodeError::UnknownKind(frame.kind as u8).into());
        }
        let received = Received::decode(&frame.body)?;
        // The link may have been given up meanwhile: then its new connection ends, too.
        let link = self.sessions.get(&session).copied();
        if let (Some(fresh), Some(link)) = (self.release_peer(token), link) {
            self.carry_on(link, fresh, received);
        }
        Ok(())
    }

    /// A link goes on over another connection.
    pub(crate) fn carry_on(
        &mut self,
        token: usize,
        fresh: broadleaf_net::Link,
        received: Received,
    ) {
        self.let_go(token);
        let Some(peer) = self.peers.get_mut(token) else {
            return;
        };
        let resumed = peer.link.resume(fresh, received);
        peer.watches_read = true;
        peer.watches_write = false;
        if let Err(error) = resumed {
            self.on_link_error(token, &error);
            return;
        }
        if self
            .watch(self.peers[token].link.as_fd(), token as u64)
            .is_err()
        {
            self.close(token); // The poller has no memory for the connection.
            return;
        }
        self.ring.note(Kind::Resumed, token as u32, received.0);
        match self.peers[token].role {
            Role::Relay { host } => self.on_host_heard(host),
            Role::Controller => self.on_controller_heard(),
            Role::Client { host, .. } => {
                self.peers[token].link.keep_alive(CLIENT_IDLE_S);
                self.held_clients.on_down(host);
                self.objects.on_away(host, false);
            }
            _ => {}
        }
        self.mark_dirty(token);
        if let Err(error) = self.read(token) {
            self.on_link_error(token, &error);
        }
    }

    /// Closes the links of clients that have not come back in time.
    pub(crate) fn judge_clients(&mut self) {
        let mut verdicts = Vec::new();
        self.held_clients.on_tick(self.now_ns, &mut verdicts);
        for verdict in verdicts {
            let Verdict::Gone(gone) = verdict else {
                continue;
            };
            let of = |(token, peer): (usize, &Peer)| match peer.role {
                Role::Client { client, host, .. } if host == gone => Some((token, client)),
                _ => None,
            };
            let Some((token, client)) = self.peers.iter().find_map(of) else {
                continue;
            };
            if self.config.options.lost_client == "finish" {
                // As if it had left: its tasks go on, and their results are kept for who asks for them.
                let request = ControlRequest::Leave;
                self.input(Input::Request {
                    client,
                    number: 0,
                    request,
                });
            }
            self.close(token);
        }
    }

    /// A host does not answer: its engines get nothing new.
    pub(crate) fn on_host_silent(&mut self, host: HostId) {
        self.ring.note(Kind::HostSilent, host.0, 0);
        self.input(Input::HostAway { host });
        let mut orders = Vec::new();
        self.objects.transfers.on_host_away(host, &mut orders);
        self.carry_out_transfers(orders);
        self.objects.on_away(host, true);
    }

    /// Something came from a host.
    pub(crate) fn on_host_heard(&mut self, host: HostId) {
        if self.liveness.heard(self.now_ns, host) {
            self.ring.note(Kind::HostBack, host.0, 0);
            self.input(Input::HostBack { host });
            self.objects.transfers.on_host_back(host);
            self.objects.on_away(host, false);
        }
    }
}
