//! Accepts connections, and limits those whose peer has not identified itself.

use std::fs::File;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd};

use broadleaf_core::Nanos;
use broadleaf_core::admission::{Address, Admission, Budget, Origin};
use broadleaf_net::{Link, Listener};
use broadleaf_proto::control::{Refusal, RefusalKind};
use rustix::process::Resource;

use crate::connections::peers::Role;
use crate::node::{Node, TCP_LISTENER, UNIX_LISTENER};
use crate::reports::ring::Kind;

/// How long a new connection may take to prove its key and say hello.
const HELLO_TIME_NS: Nanos = 10_000_000_000;
/// Maximum number of connections in one budget, if the process may have enough descriptors.
const MAX_WAITING: u64 = 1024;
/// How long nobody is accepted after the system had no descriptor or memory for a connection.
const PAUSE_NS: Nanos = 100_000_000;

/// Where connections arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gate {
    /// The unix socket.
    Unix,
    /// The TCP port.
    Tcp,
}

/// See the module.
#[derive(Debug)]
pub struct Arrivals {
    admission: Admission,
    /// First descriptor that no new connection may use: the rest is reserved for peers that are
    /// already connected.
    first_reserved: u64,
    /// A spare descriptor, given up for a moment to tell a peer that there are no more.
    spare: Option<File>,
    /// When closed gates open again.
    shut_until_ns: Option<Nanos>,
}

/// Maximum number of connections in one budget: each of the three may use a quarter of the
/// process's descriptors.
pub fn waiting_limit() -> usize {
    (n_descriptors() / 4).clamp(16, MAX_WAITING) as usize
}

/// Number of descriptors that this process may have.
fn n_descriptors() -> u64 {
    let limit = rustix::process::getrlimit(Resource::Nofile).current;
    limit.unwrap_or(u64::MAX)
}

/// The origin of a connection, which decides its budget.
pub fn origin(address: Option<IpAddr>) -> Origin {
    let mapped = |ip: IpAddr| -> Address {
        match ip {
            IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
            IpAddr::V6(v6) => v6.octets(),
        }
    };
    address.map_or(Origin::Local, |ip| Origin::Remote(mapped(ip)))
}

/// Whether the process, or the system, has no descriptor left.
fn is_out_of_descriptors(error: &io::Error) -> bool {
    use rustix::io::Errno;
    let errno = error.raw_os_error();
    errno == Some(Errno::MFILE.raw_os_error()) || errno == Some(Errno::NFILE.raw_os_error())
}

impl Arrivals {
    /// Nobody has connected yet.
    pub fn open() -> Self {
        let n_descriptors = n_descriptors();
        Self {
            admission: Admission::new(waiting_limit(), HELLO_TIME_NS),
            first_reserved: n_descriptors - n_descriptors / 8,
            spare: open_spare(),
            shut_until_ns: None,
        }
    }

    /// When the next connection must be closed, or the gates open again.
    pub fn next_deadline(&self) -> Option<Nanos> {
        let times = [self.admission.next_deadline(), self.shut_until_ns];
        times.into_iter().flatten().min()
    }

    /// A peer has identified itself.
    pub fn introduce(&mut self, token: usize) {
        self.admission.on_introduced(token);
    }

    /// A peer is gone, or refused.
    pub fn forget(&mut self, token: usize) {
        self.admission.on_gone(token);
    }

    /// For `status`.
    pub fn to_json(&self) -> serde_json::Value {
        let n = |budget| self.admission.n_waiting(budget);
        serde_json::json!({
            "local": n(Budget::Local), "known": n(Budget::Known), "strangers": n(Budget::Strangers),
            "limit": self.admission.limit(), "displaced": self.admission.n_displaced(),
        })
    }

    fn full(&self, budget: Option<Budget>) -> Refusal {
        let limit = self.admission.limit();
        let whose = match budget {
            Some(Budget::Local) => "on this host",
            Some(Budget::Known) => "from addresses that have used it before",
            _ => "from addresses that it does not know",
        };
        full(format!(
            "the cluster has no room for more new connections {whose}: {limit} have not identified themselves yet; try again \
             in a few seconds"
        ))
    }
}

fn full(message: String) -> Refusal {
    let kind = RefusalKind::Full;
    Refusal { kind, message }
}

fn no_descriptor() -> Refusal {
    full("the cluster has no free file descriptor; raise its limit (`ulimit -n`), or drop results that you no longer need".to_owned())
}

fn open_spare() -> Option<File> {
    File::open("/dev/null").ok()
}

impl Node {
    fn gate(&self, gate: Gate) -> Option<&Listener> {
        match gate {
            Gate::Unix => Some(&self.unix),
            Gate::Tcp => self.tcp.as_ref(),
        }
    }

    /// Accepts everyone who waits at a gate.
    pub(crate) fn accept(&mut self, gate: Gate) {
        while let Some(listener) = self.gate(gate) {
            match listener.accept() {
                Ok(Some((mut link, address))) => {
                    // The system always uses the lowest free number.
                    let number = u64::from(link.as_fd().as_raw_fd().unsigned_abs());
                    if number < self.arrivals.first_reserved || self.drop_stranger() {
                        self.on_arrival(link, address);
                    } else {
                        self.turn_away(&mut link);
                    }
                }
                Ok(None) => return,
                Err(error) if is_out_of_descriptors(&error) => {
                    if !self.drop_stranger() && !self.turn_away_next(gate) {
                        self.shut();
                        return;
                    }
                }
                Err(_) => {
                    self.shut();
                    return;
                }
            }
        }
    }

    fn on_arrival(&mut self, link: Link, address: Option<IpAddr>) {
        let Ok(token) = self.add_peer(link, Role::Unknown) else {
            return; // The poller has no memory for the connection.
        };
        let origin = origin(address);
        let displaced = self
            .arrivals
            .admission
            .on_arrival(self.now_ns, token, origin);
        if let Some(displaced) = displaced {
            let budget = self.arrivals.admission.budget_of(token);
            self.send_away(displaced, &self.arrivals.full(budget));
        }
    }

    /// With no descriptor left, drops the oldest stranger, if there is one.
    fn drop_stranger(&mut self) -> bool {
        let stranger = self.arrivals.admission.make_room();
        if let Some(token) = stranger {
            self.send_away(token, &no_descriptor());
        }
        stranger.is_some()
    }

    /// Tells a peer that there is no descriptor for it.
    fn turn_away(&mut self, link: &mut Link) {
        self.ring.note(Kind::Refused, RefusalKind::Full as u32, 0);
        // The connection is closed in any case.
        let _ = link.refuse(&no_descriptor());
    }

    /// Does the same for the next peer at a gate, using the spare descriptor; returns whether there
    /// was such a peer.
    fn turn_away_next(&mut self, gate: Gate) -> bool {
        if self.arrivals.spare.take().is_none() {
            return false;
        }
        let accepted = self.gate(gate).map(Listener::accept);
        let is_told = matches!(accepted, Some(Ok(Some(_))));
        if let Some(Ok(Some((mut link, _)))) = accepted {
            self.turn_away(&mut link);
        }
        self.arrivals.spare = open_spare();
        is_told
    }

    fn send_away(&mut self, token: usize, why: &Refusal) {
        self.ring.note(Kind::Refused, why.kind as u32, 0);
        if let Some(peer) = self.peers.get_mut(token) {
            // The connection is closed in any case.
            let _ = peer.link.refuse(why);
        }
        self.close(token);
    }

    /// Accepts nobody for a moment: the system cannot, and an attempt would fail again at once.
    fn shut(&mut self) {
        if self.arrivals.shut_until_ns.is_none() {
            for gate in [Gate::Unix, Gate::Tcp] {
                if let Some(listener) = self.gate(gate) {
                    self.unwatch(listener.as_fd());
                }
            }
        }
        self.arrivals.shut_until_ns = Some(self.now_ns + PAUSE_NS);
    }

    /// Opens gates that have been closed for long enough.
    pub(crate) fn listen_again(&mut self) {
        if self
            .arrivals
            .shut_until_ns
            .is_none_or(|at| at > self.now_ns)
        {
            return;
        }
        self.arrivals.shut_until_ns = None;
        self.arrivals.spare = self.arrivals.spare.take().or_else(open_spare);
        for (gate, token) in [(Gate::Unix, UNIX_LISTENER), (Gate::Tcp, TCP_LISTENER)] {
            let listener = self.gate(gate);
            if listener.is_some_and(|l| self.watch(l.as_fd(), token).is_err()) {
                self.arrivals.shut_until_ns = Some(self.now_ns + PAUSE_NS);
            }
        }
    }

    /// Closes connections whose hello is overdue.
    pub(crate) fn drop_silent_peers(&mut self) {
        while let Some(token) = self.arrivals.admission.next_overdue(self.now_ns) {
            let why = full("you did not prove a key and identify yourself in time".to_owned());
            self.send_away(token, &why);
        }
    }
}
