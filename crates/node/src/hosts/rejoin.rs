//! How a relay gets back to its controller: it dials again, in a thread that waits for nothing else.

use std::net::TcpStream;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use broadleaf_core::Nanos;
use broadleaf_core::redial::{Attempt, Redial};
use broadleaf_core::relay::Board;
use broadleaf_net::{Link, LinkError, ask_to_resume};
use broadleaf_proto::control::{RefusalKind, Role, Welcome};
use broadleaf_proto::relay::{Holdings, RelayEvent};
use broadleaf_proto::resume::{Received, SessionKey};
use broadleaf_proto::{EngineId, HostId};
use rustix::event::{EventfdFlags, eventfd};

use crate::config::{NodeConfig, RelayConfig, n_usable_cores};
use crate::connections::peers::Role as PeerRole;
use crate::error::{NodeError, io_error};
use crate::hosts::join::{connect_within, dial_successor, hello, upstream_security};
use crate::node::Node;

/// How long an attempt waits for an answer once it is connected, at least: a controller that is busy answers late.
const ANSWER_TIME: Duration = Duration::from_secs(2);
/// How long nobody may listen on the controller's port.
const VACANT_NS: Nanos = 2_000_000_000;

/// What became of an attempt.
enum Outcome {
    /// A connection on which the controller has said what it has received.
    Connected(Box<Link>, Received),
    Failed(Attempt),
    /// A connection to a controller that has taken the place of the earlier one.
    Joined(Box<(Link, Welcome)>),
    /// The controller has given this host up.
    Refused,
}

/// What a relay needs to get back.
pub struct Rejoin {
    /// Decides when to dial.
    redial: Redial,
    session: SessionKey,
    /// Where other relays reach this one.
    listen: Option<String>,
    outcomes: Receiver<Outcome>,
    sender: Sender<Outcome>,
    bell: Arc<OwnedFd>,
}

impl std::fmt::Debug for Rejoin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Rejoin").finish_non_exhaustive()
    }
}

impl Rejoin {
    /// Of a relay that has just joined, and that other relays reach at `listen`; `connect_ns` is how long that took to
    /// connect. A controller with a journal may be started again although nobody listens for a while.
    ///
    /// # Errors
    /// [`NodeError`] if the process is out of descriptors.
    pub fn new(
        session: SessionKey,
        connect_ns: Nanos,
        listen: Option<String>,
        keeps_journal: bool,
    ) -> Result<Self, NodeError> {
        let (sender, outcomes) = channel();
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let bell = eventfd(0, flags).map_err(io_error("eventfd"))?;
        Ok(Self {
            redial: Redial::new(
                connect_ns,
                if keeps_journal { Nanos::MAX } else { VACANT_NS },
            ),
            session,
            listen,
            outcomes,
            sender,
            bell: Arc::new(bell),
        })
    }

    /// Readable when an attempt has ended.
    pub fn bell(&self) -> &OwnedFd {
        &self.bell
    }
}

/// One attempt.
fn attempt(
    config: &NodeConfig,
    relay: &RelayConfig,
    session: SessionKey,
    listen: Option<String>,
    connect_time: Duration,
) -> Outcome {
    let hello = hello(config, Role::Resume { session });
    let stream = match connect_within(&relay.controller.0, relay.controller.1, connect_time) {
        Ok(stream) => stream,
        Err(error) if error.kind() == std::io::ErrorKind::ConnectionRefused => {
            return Outcome::Failed(Attempt::NobodyListens);
        }
        Err(_) => return Outcome::Failed(Attempt::Failed),
    };
    let dial = |stream: TcpStream| -> Result<(Link, Received), LinkError> {
        let security = upstream_security(config, relay).map_err(std::io::Error::other)?;
        let deadline = Instant::now() + ANSWER_TIME.max(connect_time * 4);
        ask_to_resume(security.link(stream)?, &hello, deadline)
    };
    match dial(stream) {
        Ok((link, received)) => Outcome::Connected(Box::new(link), received),
        Err(LinkError::Refused(refusal)) if refusal.kind == RefusalKind::Restarted => {
            match dial_successor(config, relay, listen, session, connect_time) {
                Ok(joined) => Outcome::Joined(Box::new(joined)),
                Err(NodeError::Refused(_)) => Outcome::Refused,
                Err(_) => Outcome::Failed(Attempt::Failed),
            }
        }
        Err(LinkError::Refused(_)) => Outcome::Refused,
        Err(_) => Outcome::Failed(Attempt::Failed),
    }
}

impl Node {
    fn rejoin(&mut self) -> Option<&mut Rejoin> {
        self.uplink().and_then(|uplink| uplink.rejoin.as_mut())
    }

    /// When the controller is dialled again.
    pub(crate) fn next_redial(&mut self) -> Option<Nanos> {
        self.rejoin().and_then(|rejoin| rejoin.redial.next_tick())
    }

    /// The controller is silent. If it is just busy, it answers an attempt, and payload goes on.
    pub(crate) fn dial_again(&mut self) {
        let now = self.now_ns;
        if let Some(rejoin) = self.rejoin() {
            rejoin.redial.begin(now);
        }
    }

    /// The connection to the controller broke.
    pub(crate) fn on_uplink_broken(&mut self) {
        self.dial_again();
        if self.rejoin().is_some() {
            self.objects.on_away(HostId::CONTROLLER, true);
        }
    }

    /// Something came from the controller.
    pub(crate) fn on_controller_heard(&mut self) {
        if self.liveness.heard(self.now_ns, HostId::CONTROLLER)
            && let Some(rejoin) = self.rejoin()
        {
            rejoin.redial.on_heard();
            self.objects.on_away(HostId::CONTROLLER, false);
        }
    }

    /// Begins an attempt that is due.
    pub(crate) fn redial(&mut self) {
        let now = self.now_ns;
        let Some(rejoin) = self.rejoin() else {
            return;
        };
        if !rejoin.redial.on_tick(now) {
            return;
        }
        let connect_time = Duration::from_nanos(rejoin.redial.connect_ns());
        let (sender, bell) = (rejoin.sender.clone(), Arc::clone(&rejoin.bell));
        let (session, listen) = (rejoin.session, rejoin.listen.clone());
        let Some(relay) = self.config.relay.clone() else {
            return;
        };
        let config = self.config.clone();
        let thread = std::thread::Builder::new().name("redial".to_owned());
        let spawned = thread.spawn(move || {
            // The receiver lives as long as the node.
            let _ = sender.send(attempt(&config, &relay, session, listen, connect_time));
            let _ = rustix::io::write(bell.as_fd(), &1_u64.to_ne_bytes());
        });
        if spawned.is_err() {
            self.on_attempt(Attempt::Failed);
        }
    }

    fn on_attempt(&mut self, attempt: Attempt) {
        let now = self.now_ns;
        // The link may speak again since the attempt began.
        if self.liveness.is_silent(HostId::CONTROLLER) {
            self.objects.on_away(HostId::CONTROLLER, true);
        }
        if self
            .rejoin()
            .is_some_and(|r| r.redial.on_attempt(now, attempt))
        {
            self.leave();
        }
    }

    /// An attempt has ended.
    pub(crate) fn on_redial_event(&mut self) {
        let Some(rejoin) = self.rejoin() else {
            return;
        };
        // It is read to be silent again; what it counts does not matter.
        let _ = rustix::io::read(rejoin.bell.as_fd(), &mut [0; 8]);
        let outcomes: Vec<Outcome> = rejoin.outcomes.try_iter().collect();
        for outcome in outcomes {
            match outcome {
                Outcome::Connected(link, received) => self.resume_uplink(*link, received),
                Outcome::Joined(joined) => {
                    let (link, welcome) = *joined;
                    self.follow_successor(link, &welcome);
                }
                Outcome::Failed(attempt) => self.on_attempt(attempt),
                Outcome::Refused => self.leave(),
            }
        }
    }

    fn resume_uplink(&mut self, mut fresh: Link, received: Received) {
        let Some(token) = self.controller_link() else {
            return;
        };
        let mine = self.peers[token].link.received();
        if fresh.answer_received(mine).is_err() {
            self.on_attempt(Attempt::Failed);
            return;
        }
        if let Some(rejoin) = self.rejoin() {
            rejoin.redial.on_resumed();
        }
        self.carry_on(token, fresh, received);
    }

    /// Another controller has taken the place of the earlier one, and has accepted this relay: tells it what is here.
    fn follow_successor(&mut self, mut link: Link, welcome: &Welcome) {
        let former = self.controller_link();
        let is_same = self.uplink().is_some_and(|u| u.host == welcome.host);
        let (Some(former), Some(session), true) = (former, welcome.session, is_same) else {
            self.leave();
            return;
        };
        // With the link goes what the earlier controller was not told.
        self.release_peer(former);
        link.make_resumable();
        let Ok(token) = self.add_peer(link, PeerRole::Controller) else {
            self.leave(); // The poller has no memory for the connection.
            return;
        };
        if let Some(uplink) = self.uplink() {
            uplink.follow(token);
        }
        if let Some(rejoin) = self.rejoin() {
            rejoin.session = session;
            rejoin.redial.on_resumed();
        }
        self.liveness.heard(self.now_ns, HostId::CONTROLLER);
        self.objects.on_away(HostId::CONTROLLER, false);
        self.tell_successor();
        if let Err(error) = self.read(token) {
            self.on_link_error(token, &error);
        }
    }

    fn tell_successor(&mut self) {
        let now_ns = self.now_ns;
        let boards = self.take_back_all();
        // It was told when the node started.
        let ends_in_ns = self.config.relay.as_ref().and_then(RelayConfig::ends_in_ns);
        let ends_in_ns = ends_in_ns.map(|ns| ns.saturating_sub(now_ns));
        let Some(uplink) = self.uplink() else {
            return;
        };
        let left = uplink.relay.on_restarted(now_ns, &boards);
        for (engine, key) in left.taken_back {
            self.lane.on_end(engine, key);
        }
        self.objects.begin_anew(&self.segments);
        self.tell_controller(&RelayEvent::Rejoined(Holdings {
            n_cores: n_usable_cores(),
            ends_in_ns,
            engines: left.engines,
            ends: left.ends,
        }));
    }

    /// Takes everything back that engines have not begun.
    fn take_back_all(&self) -> Vec<Board> {
        let board_of = |(engine, token): (&EngineId, &usize)| match &self.peers[*token].role {
            PeerRole::Engine {
                board, next_offer, ..
            } => {
                let unclaimed = board.unclaimed(*next_offer).into_iter();
                Some(Board {
                    engine: *engine,
                    next_offer: *next_offer,
                    taken_back: unclaimed.filter(|offer| board.revoke(*offer)).collect(),
                })
            }
            _ => None,
        };
        self.engines.iter().filter_map(board_of).collect()
    }
}
