//! How payload connections are made: dialled, accepted, introduced.

use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::time::Instant;

use broadleaf_net::tls::PeerKey;
use broadleaf_net::{Frame, LinkError};
use broadleaf_proto::control::{Hello, Role, Welcome};
use broadleaf_proto::{ClientId, DecodeError, EngineId, FrameKind, HostId, control, limits};
use rustix::event::epoll;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType};

use super::connection::Connection;
use super::fetch::SILENCE;
use super::plane::{LISTENER, PlaneThread};
use super::watch;
use crate::connections::arrivals::origin;

/// Round trips from the start of a connection to its welcome: TCP's, that of the keys, that of the hello.
const HANDSHAKE_TRIPS: u32 = 3;
/// Type of service of payload: routers and queues may let other traffic go first.
const BULK: u8 = 0x08;

impl PlaneThread {
    pub(super) fn add(&mut self, connection: Connection) -> Option<usize> {
        let entry = self.connections.vacant_entry();
        let token = entry.key();
        let connection = entry.insert(connection);
        connection
            .link
            .set_frame_limit(limits::MAX_CHUNK_FRAME_BYTES);
        connection.link.set_block_limit(limits::CHUNK_BYTES.1);
        let _ = rustix::net::sockopt::set_ip_tos(connection.link.as_fd(), BULK);
        if watch(&self.poller, connection.link.as_fd(), token as u64).is_err() {
            self.connections.remove(token);
            return None;
        }
        Some(token)
    }

    /// The first connection to a host, over which everything goes but chunks that others may carry as well.
    pub(super) fn find(&self, host: HostId) -> Option<usize> {
        let of_host = |c: &Connection| c.host == Some(host) && c.extra.is_none();
        let all = self.connections.iter().filter(|(_, c)| of_host(c));
        // Those that the other host dialled are its first and then its extra ones.
        all.min_by_key(|(_, c)| (!c.is_up, c.opened))
            .map(|(token, _)| token)
    }

    /// A relay opens its payload connection to the controller in advance: the controller cannot
    /// dial.
    pub(super) fn keep_controller(&mut self) {
        if self.setup.dialer.is_none() || self.find(HostId::CONTROLLER).is_some() {
            return;
        }
        let now = Instant::now();
        let is_soon = |at: Instant| now.duration_since(at) < SILENCE;
        if !self.last_dialled.is_some_and(is_soon) {
            self.last_dialled = Some(now);
            self.dial(HostId::CONTROLLER, None);
        }
    }

    pub(super) fn dial(&mut self, host: HostId, address: Option<&str>) -> Option<usize> {
        let dialer = self.setup.dialer.as_ref()?;
        let mut link = if host == HostId::CONTROLLER {
            let route = &dialer.controller;
            route.link(start_connecting(&route.address).ok()?).ok()?
        } else {
            let address = address?.parse::<SocketAddr>().ok()?;
            let stream = start_connecting(&address).ok()?;
            dialer.to_relays.link(stream).ok()?
        };
        let hello = control::encode(&self.setup.hello);
        link.send(FrameKind::Hello, &hello, &[]).ok()?;
        self.add(Connection::new(link, Some(host), false))
    }

    pub(super) fn accept(&mut self, now: Instant) {
        while let Some(listener) = &self.setup.listener {
            match listener.accept() {
                Ok(Some((link, address))) => {
                    let Some(token) = self.add(Connection::new(link, None, false)) else {
                        continue;
                    };
                    // A peer that is too slow is cut off by the tick.
                    let displaced = self.admission.on_arrival(0, token, origin(address));
                    if let Some(displaced) = displaced {
                        self.close(displaced, now);
                    }
                }
                Ok(None) => return,
                Err(_) => {
                    if let Some(stranger) = self.admission.make_room() {
                        self.close(stranger, now);
                        continue;
                    }
                    // The system has no descriptor or memory for it, and would fail again at once.
                    self.is_shut = true;
                    // This can only fail for a descriptor that is not registered, and this one is.
                    let _ = epoll::delete(&self.poller, listener.as_fd());
                    return;
                }
            }
        }
    }

    /// Lets others dial in again if that was stopped.
    pub(super) fn listen_again(&mut self) {
        if let Some(listener) = self.setup.listener.as_ref().filter(|_| self.is_shut) {
            self.is_shut = watch(&self.poller, listener.as_fd(), LISTENER).is_err();
        }
    }

    /// The other end of a connection that was dialled has introduced itself.
    pub(super) fn on_welcome(&mut self, token: usize, now: Instant) {
        let connection = &mut self.connections[token];
        connection.is_up = true;
        let took = now.duration_since(connection.opened);
        connection.on_round_trip(took / HANDSHAKE_TRIPS);
        let host = connection.host;
        self.ask_all(host, now);
    }

    /// Another relay dials: it has proven our key, and must belong to our cluster.
    pub(super) fn on_hello(&mut self, token: usize, frame: &Frame) -> Result<(), LinkError> {
        let hello: Hello = control::decode(&frame.body)?;
        let ours = &self.setup.hello;
        let is_ours = hello.protocol == ours.protocol
            && hello.broadleaf == ours.broadleaf
            && hello.cluster_id == ours.cluster_id;
        let connection = &mut self.connections[token];
        let is_proven = connection.link.peer_key() == Some(PeerKey::Engine);
        let Role::Payload { host } = hello.role else {
            return Err(DecodeError::Malformed.into());
        };
        if !is_ours || !is_proven {
            return Err(DecodeError::Malformed.into());
        }
        connection.host = Some(host);
        connection.is_up = true;
        self.admission.on_introduced(token);
        let welcome = Welcome {
            client: ClientId(0),
            engine: EngineId(0),
            segment_token: 0,
            host,
            max_outstanding_tasks: 0,
            max_outstanding_bytes: 0,
            engines: Vec::new(),
            payload_secret: None,
            session: None,
            keeps_journal: false,
        };
        let body = control::encode(&welcome);
        connection.link.send(FrameKind::Welcome, &body, &[])
    }
}

/// A connection that is being established: its first read or write shows whether that succeeded.
fn start_connecting(address: &SocketAddr) -> std::io::Result<TcpStream> {
    let family = match address {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, None)?;
    match rustix::net::connect(&socket, address) {
        Ok(()) | Err(Errno::INPROGRESS) => Ok(TcpStream::from(socket)),
        Err(error) => Err(error.into()),
    }
}
