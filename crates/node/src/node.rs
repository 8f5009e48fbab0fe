//! The event loop.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Instant;

use broadleaf_core::interrupts::Interrupts;
use broadleaf_core::liveness::Liveness;
use broadleaf_core::recording::{Recorded, Start};
use broadleaf_core::returning::Returning;
use broadleaf_core::{Controller, Input, Nanos, Output};
use broadleaf_net::{Link, LinkError, Listener};
use broadleaf_proto::host::EngineReport;
use broadleaf_proto::resume::SessionKey;
use broadleaf_proto::task::OutputRecord;
use broadleaf_proto::{ClientId, EngineId, FrameKind};
use broadleaf_shm::UnsentPiece;
use rustix::event::epoll::{self, EventData, EventFlags};
use slab::Slab;

use crate::config::{NodeConfig, n_usable_cores};
use crate::connections::arrivals::{Arrivals, Gate};
use crate::connections::far_clients::FarClients;
use crate::connections::peers::{Peer, Role};
use crate::error::{NodeError, io_error};
use crate::hosts::objects::Objects;
use crate::hosts::relays::Relays;
use crate::hosts::uplink::NodeRole;
use crate::journal::Journal;
use crate::lane::HostLane;
use crate::recording::Recording;
use crate::reports::ring::{Kind, Ring};
use crate::segments::Segments;

pub(crate) const UNIX_LISTENER: u64 = u64::MAX;
pub(crate) const TCP_LISTENER: u64 = u64::MAX - 1;
const LIFELINE: u64 = u64::MAX - 2;
pub(crate) const PLANE: u64 = u64::MAX - 3;
pub(crate) const REDIAL: u64 = u64::MAX - 4;

/// A node: the controller and its own host's relay, or the relay of another host.
pub struct Node {
    pub(crate) config: NodeConfig,
    pub(crate) role: NodeRole,
    pub(crate) relays: Relays,
    /// Of the relays; or of the controller, if this is a relay.
    pub(crate) liveness: Liveness,
    /// Of clients on other hosts whose connections broke.
    pub(crate) held_clients: Liveness,
    pub(crate) far_clients: FarClients,
    pub(crate) outputs: Vec<Output>,
    pub(crate) peers: Slab<Peer>,
    pub(crate) clients: BTreeMap<ClientId, usize>,
    pub(crate) engines: BTreeMap<EngineId, usize>,
    pub(crate) fork_server: Option<usize>,
    /// Links that can be resumed.
    pub(crate) sessions: BTreeMap<SessionKey, usize>,
    pub(crate) segments: Segments,
    pub(crate) objects: Objects,
    /// Values that come from other hosts, at the controller's node.
    pub(crate) returning: Recorded<Returning, Recording>,
    pub(crate) interrupts: Interrupts,
    pub(crate) lane: HostLane,
    pub(crate) finished: bool,
    pub(crate) epoch: Instant,
    pub(crate) wakeups: u64,
    /// When free segments are checked next.
    pub(crate) trim_due_ns: Option<Nanos>,
    pub(crate) idle_due_ns: Option<Nanos>,
    pub(crate) now_ns: Nanos,
    pub(crate) ring: Ring,
    pub(crate) recording: Option<Recording>,
    /// What a later controller has to know.
    pub(crate) journal: Option<Journal>,
    pub(crate) poller: std::os::fd::OwnedFd,
    pub(crate) unix: Listener,
    pub(crate) tcp: Option<Listener>,
    /// Open while the owner may still be alive.
    pub(crate) lifeline: Option<File>,
    dirty: Vec<usize>,
    pub(crate) arrivals: Arrivals,
    pub(crate) next_client: u32,
    pub(crate) next_token: u32,
    pub(crate) host: String,
}

/// Runs a node until it is stopped; returns its exit code.
///
/// # Errors
/// [`NodeError`] if it cannot listen or poll.
pub fn run(config: NodeConfig) -> Result<i32, NodeError> {
    broadleaf_shm::raise_descriptor_limit();
    let mut node = Node::start(config)?;
    node.join()?;
    node.announce_ready()?;
    broadleaf_shm::touch_heap(crate::config::BOOKKEEPING_BYTES);
    node.serve()?;
    Ok(0)
}

impl Node {
    fn start(config: NodeConfig) -> Result<Self, NodeError> {
        let poller = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(io_error("epoll"))?;
        let proof = config.listen_proof()?;
        // A client on another host may come to the controller's socket by SSH.
        let far = config.relay.is_none().then(|| config.server_tls());
        let unix = Listener::unix(&config.unix_path, proof.clone(), far.transpose()?)
            .map_err(io_error("listening on the unix socket"))?;
        watch(&poller, unix.as_fd(), UNIX_LISTENER)?;
        let tcp = match &config.tcp {
            None => None,
            Some(tcp) => {
                let address = (tcp.host.as_str(), tcp.port);
                let listener = if tcp.tls {
                    Listener::tls(address, config.server_tls()?)
                } else {
                    Listener::tcp(address, proof)
                };
                let listener = listener.map_err(io_error("listening on TCP"))?;
                watch(&poller, listener.as_fd(), TCP_LISTENER)?;
                Some(listener)
            }
        };
        let lifeline = match config.lifeline_fd {
            None => None,
            Some(fd) => {
                let file = File::open(format!("/proc/self/fd/{fd}"))
                    .map_err(io_error("opening the lifeline"))?;
                watch(&poller, file.as_fd(), LIFELINE)?;
                Some(file)
            }
        };
        let options = &config.options;
        let core = broadleaf_core::Config {
            n_cores: n_usable_cores(),
            ..config.core()
        };
        // A relay begins its own when it knows its name.
        let recording = match config.relay {
            None => Recording::begin(options, Start::Controller(core.clone()), None)?,
            Some(_) => None,
        };
        let controller = Recorded::new(Controller::new(core), recording.clone());
        let returning = Recorded::new(Returning::default(), recording.clone());
        let journal = config.journal.clone();
        let syncs = config.options.journal == "sync";
        let journal = journal
            .map(|journal| Journal::open(journal, syncs))
            .transpose()?;
        let (journal, members) = journal.unzip();
        let mut node = Self {
            lifeline,
            role: NodeRole::Controller(Box::new(controller)),
            relays: Relays::default(),
            liveness: Liveness::asking(options.host_limits()),
            held_clients: Liveness::listening(options.host_limits()),
            far_clients: FarClients::default(),
            ring: Ring::new(options.trace_events, options.log_level, &options.log_sink),
            recording,
            journal,
            outputs: Vec::new(),
            peers: Slab::new(),
            clients: BTreeMap::new(),
            engines: BTreeMap::new(),
            fork_server: None,
            sessions: BTreeMap::new(),
            segments: Segments::default(),
            objects: Objects::new(
                0,
                config.options.pool_max_bytes,
                config.options.shared_memory_warm_s,
            ),
            returning,
            interrupts: Interrupts::default(),
            lane: HostLane::create()?,
            finished: false,
            epoch: Instant::now(),
            wakeups: 0,
            trim_due_ns: None,
            idle_due_ns: None,
            now_ns: 0,
            poller,
            unix,
            tcp,
            dirty: Vec::new(),
            arrivals: Arrivals::open(),
            next_client: 0,
            next_token: 1,
            config,
            host: rustix::system::uname()
                .nodename()
                .to_string_lossy()
                .into_owned(),
        };
        if let Some(members) = members {
            node.restore(members);
        }
        Ok(node)
    }

    fn announce_ready(&self) -> Result<(), NodeError> {
        let Some(fd) = self.config.ready_fd else {
            return Ok(());
        };
        let port = self
            .tcp
            .as_ref()
            .and_then(Listener::tcp_address)
            .map(|a| a.port());
        let line = serde_json::json!({"unix_path": self.config.unix_path, "tcp_port": port, "pid": std::process::id()});
        let path = format!("/proc/self/fd/{fd}");
        let mut pipe = File::options()
            .write(true)
            .open(path)
            .map_err(io_error("opening the ready pipe"))?;
        pipe.write_all(format!("{line}\n").as_bytes())
            .map_err(io_error("writing the ready pipe"))
    }

    /// Monotonic time as the controller counts it: read once per batch, because reading it costs as
    /// much as placing a task.
    pub(crate) fn read_clock(&mut self) {
        self.now_ns = self.epoch.elapsed().as_nanos() as Nanos;
    }

    /// Tells the controller something; a relay has none.
    pub(crate) fn input(&mut self, input: Input) {
        if let NodeRole::Controller(controller) = &mut self.role {
            controller.on_input(self.now_ns, input, &mut self.outputs);
        }
    }

    fn serve(&mut self) -> Result<(), NodeError> {
        let mut events = Vec::with_capacity(256);
        while !self.finished {
            let timeout = self.next_wait().map(|wait| rustix::time::Timespec {
                tv_sec: wait.as_secs() as i64,
                tv_nsec: i64::from(wait.subsec_nanos()),
            });
            events.clear();
            match epoll::wait(
                &self.poller,
                rustix::buffer::spare_capacity(&mut events),
                timeout.as_ref(),
            ) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(io_error("epoll")(error)),
            }
            self.wakeups += 1;
            self.read_clock();
            for event in &events {
                let (token, flags) = (event.data.u64(), event.flags);
                self.on_event(token, flags);
            }
            self.look_at_lane();
            if self
                .role
                .next_deadline()
                .is_some_and(|at| at <= self.now_ns)
            {
                self.role.on_deadline(self.now_ns, &mut self.outputs);
            }
            self.judge_hosts();
            self.judge_clients();
            self.redial();
            self.repeat_interrupts();
            self.drop_silent_peers();
            self.listen_again();
            self.carry_out();
            if self.finished {
                self.dismiss_all();
            }
            self.trim();
            self.shrink_idle();
            self.flush_dirty();
            if let Some(recording) = &self.recording {
                recording.flush();
            }
        }
        Ok(())
    }

    fn on_event(&mut self, token: u64, flags: EventFlags) {
        match token {
            UNIX_LISTENER => self.accept(Gate::Unix),
            TCP_LISTENER => self.accept(Gate::Tcp),
            PLANE => self.on_plane_event(),
            REDIAL => self.on_redial_event(),
            LIFELINE => self.on_lifeline(),
            token => {
                let token = token as usize;
                if !self.peers.contains(token) {
                    return;
                }
                if flags.intersects(EventFlags::IN | EventFlags::HUP | EventFlags::ERR)
                    && let Err(error) = self.read(token)
                {
                    self.on_link_error(token, &error);
                    return;
                }
                if flags.contains(EventFlags::OUT) {
                    self.mark_dirty(token);
                }
            }
        }
    }

    pub(crate) fn add_peer(&mut self, link: Link, role: Role) -> Result<usize, NodeError> {
        let entry = self.peers.vacant_entry();
        let token = entry.key();
        watch(&self.poller, link.as_fd(), token as u64)?;
        entry.insert(Peer {
            link,
            role,
            session: None,
            segment_token: None,
            watches_write: false,
            watches_read: true,
            dirty: false,
        });
        Ok(token)
    }

    pub(crate) fn read(&mut self, token: usize) -> Result<(), LinkError> {
        self.peers[token].link.fill()?;
        loop {
            self.take_answer(token)?;
            let Some(peer) = self.peers.get_mut(token) else {
                return Ok(());
            };
            let Some(frame) = peer.link.next_frame()? else {
                break;
            };
            self.on_frame(token, frame)?;
        }
        if let Some(peer) = self.peers.get(token) {
            let (wants_write, holds_much) = (peer.link.wants_write(), peer.link.holds_much());
            if wants_write {
                self.mark_dirty(token);
            }
            if holds_much {
                self.watch_for_idleness();
            }
        }
        Ok(())
    }

    pub(crate) fn on_link_error(&mut self, token: usize, error: &LinkError) {
        if self.hold_link(token, error) {
            return;
        }
        if !error.is_closed() {
            self.ring.note(Kind::Malformed, token as u32, 0);
        }
        self.close(token);
    }

    pub(crate) fn watch(&self, fd: BorrowedFd<'_>, token: u64) -> Result<(), NodeError> {
        watch(&self.poller, fd, token)
    }

    pub(crate) fn unwatch(&self, fd: BorrowedFd<'_>) {
        // This can only fail for a descriptor that is not registered.
        let _ = epoll::delete(&self.poller, fd);
    }

    /// Releases a connection that someone else owns from now on.
    pub(crate) fn release_peer(&mut self, token: usize) -> Option<Link> {
        let peer = self.peers.try_remove(token)?;
        self.unwatch(peer.link.as_fd());
        Some(peer.link)
    }

    /// Forgets a peer and tells the controller what that means.
    pub(crate) fn close(&mut self, token: usize) {
        // An engine that has answered before it died has ended its task. What cannot be read is no answer.
        let _ = self.take_answer(token);
        let Some(peer) = self.peers.try_remove(token) else {
            return;
        };
        if let Some(session) = peer.session {
            self.sessions.remove(&session);
        }
        // Closing the descriptor also removes it from the poller.
        match peer.role {
            Role::Client { client, host, .. } => {
                self.clients.remove(&client);
                self.on_far_client_gone(host);
                self.on_uploader_gone(token);
                self.ring.note(Kind::ClientDown, client.0, 0);
                self.input(Input::ClientDown { client });
            }
            Role::Engine {
                engine,
                board,
                next_offer,
                unsent,
                arrived_bytes,
                ..
            } => {
                // Its tasks end with its link, and their output comes before that.
                self.tell_unsent(engine, unsent.missing(&arrived_bytes));
                self.engines.remove(&engine);
                self.lane.on_gone(engine);
                self.ring.note(Kind::EngineDown, engine.0, 0);
                // The offers are taken back one by one: an engine that lost its link may still be
                // alive and claiming.
                let unclaimed = board
                    .unclaimed(next_offer)
                    .into_iter()
                    .filter(|offer| board.revoke(*offer))
                    .collect();
                self.report(EngineReport::Down {
                    engine,
                    unclaimed_offers: unclaimed,
                    next_offer,
                });
            }
            Role::Relay { host } => self.on_relay_gone(host),
            Role::Controller => self.on_controller_gone(),
            Role::ForkServer => {
                self.fork_server = None;
                self.on_fork_server_down();
            }
            Role::Unknown => self.arrivals.forget(token),
            Role::Leaving | Role::Resuming { .. } => {}
        }
        self.segments.on_peer_gone(token as u32);
    }

    /// Passes on what an engine had written but not sent when it died.
    fn tell_unsent(&mut self, engine: EngineId, pieces: Vec<UnsentPiece>) {
        for piece in pieces {
            let record = OutputRecord {
                task: piece.task,
                engine,
                // There are three streams.
                stream: piece.stream as u8 + 1,
                bytes: piece.bytes.into(),
            };
            self.report_output(engine, record);
        }
    }

    /// Appends a record for a peer; it leaves with the next flush.
    pub(crate) fn append(
        &mut self,
        token: usize,
        kind: FrameKind,
        write: impl FnOnce(&mut Vec<u8>),
    ) {
        if let Some(peer) = self.peers.get_mut(token) {
            peer.link.append(kind, write);
            self.mark_dirty(token);
        }
    }

    /// Queues a frame for a peer; it leaves with the next flush.
    pub(crate) fn send(&mut self, token: usize, kind: FrameKind, body: &[u8]) {
        self.send_fds(token, kind, body, &[]);
    }

    /// Queues a frame with descriptors.
    pub(crate) fn send_fds(
        &mut self,
        token: usize,
        kind: FrameKind,
        body: &[u8],
        fds: &[BorrowedFd<'_>],
    ) {
        let Some(peer) = self.peers.get_mut(token) else {
            return;
        };
        if let Err(error) = peer.link.send(kind, body, fds) {
            self.on_link_error(token, &error);
            return;
        }
        self.mark_dirty(token);
    }

    pub(crate) fn mark_dirty(&mut self, token: usize) {
        if let Some(peer) = self.peers.get_mut(token)
            && !std::mem::replace(&mut peer.dirty, true)
        {
            self.dirty.push(token);
        }
    }

    fn flush_dirty(&mut self) {
        while let Some(token) = self.dirty.pop() {
            let Some(peer) = self.peers.get_mut(token) else {
                continue;
            };
            peer.dirty = false;
            let all = match peer.link.flush() {
                Ok(all) => all,
                Err(error) => {
                    self.on_link_error(token, &error);
                    self.carry_out();
                    continue;
                }
            };
            if all && matches!(peer.role, Role::Leaving) {
                self.close(token);
                continue;
            }
            if peer.link.holds_much() {
                self.watch_for_idleness();
            }
            self.note_congestion(token);
            self.watch_peer(token, !all);
        }
    }
}

fn watch(poller: &std::os::fd::OwnedFd, fd: BorrowedFd<'_>, token: u64) -> Result<(), NodeError> {
    epoll::add(poller, fd, EventData::new_u64(token), EventFlags::IN).map_err(io_error("epoll"))
}
