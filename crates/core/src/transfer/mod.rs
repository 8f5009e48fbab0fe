//! Decides which host gets which object from whom, and how broadcasts continue when hosts die,
//! stall or join late.
//!
//! This is a pure machine like the controller. The hosts that need an object are ordered, with its
//! origin first. Each has a parent before it in the order, and turns to other earlier hosts if the
//! parent fails. So there are no cycles, and every host that it turns to has or gets the whole
//! object.

pub mod cost;
pub mod flows;
mod movers;
mod routes;
pub mod streams;
mod topology;
pub mod values;

use std::collections::{BTreeMap, VecDeque};

use broadleaf_proto::MoverRank;
use broadleaf_proto::ids::{HostId, ObjectId};
use broadleaf_proto::relay::Progress;

use self::cost::{Estimate, Hop, Topology, blend};
pub use self::routes::{Route, Stop};
pub use self::topology::TopologyChoice;
use crate::Nanos;

/// Number of finished transfers that are still reported.
const PAST: usize = 16;

/// Number of earlier hosts, besides the parent and the origin, that a host may turn to.
const FALLBACKS: usize = 5;
/// How long a host may be slow before its children are moved.
const SLOW_NS: Nanos = 1_000_000_000;
/// Minimum size of a transfer that tells something about the bandwidth.
const TELLING_BYTES: u64 = 512 * 1024;
/// Bytes sent to measure a link when no transfer has measured it: 8 ms at 1 Gb/s.
pub const PROBE_BYTES: u64 = 2 * TELLING_BYTES;

/// What the driver must do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TransferCommand {
    /// Have a host get an object.
    Fetch {
        /// The host.
        host: HostId,
        /// The object.
        object: ObjectId,
        /// Its length.
        len_bytes: u64,
        /// The size of the chunks it travels in.
        chunk_bytes: u32,
        /// Its parent, then the fallbacks, in order.
        sources: Vec<HostId>,
        /// Higher than in earlier commands.
        epoch: u32,
    },
    /// Every remaining host that needs the object has it.
    Complete {
        /// The object.
        object: ObjectId,
    },
}

#[derive(Clone, Debug)]
struct Position {
    host: HostId,
    is_gone: bool,
    is_complete: bool,
    parent: usize,
    epoch: u32,
    have_bytes: u64,
    /// When the host had the whole object.
    completed_ns: Nanos,
    /// When its rate was last checked, and the bytes it had then.
    looked: (Nanos, u64),
    slow_since: Option<Nanos>,
}

#[derive(Clone, Debug)]
struct Transfer {
    len_bytes: u64,
    since_ns: Nanos,
    estimate: Estimate,
    /// The origin first.
    order: Vec<Position>,
    is_told: bool,
}

/// What is known of a host.
#[derive(Clone, Debug, Default)]
struct Host {
    can_serve: bool,
    /// It does not answer at the moment.
    is_away: bool,
    /// A client that receives results: its rate says nothing about the network between hosts.
    is_client: bool,
    /// Minimum recent round trip, ns; 0 while unknown.
    round_trip_ns: u64,
    bytes_per_s: f64,
}

/// See the module.
#[derive(Debug, Default)]
pub struct Transfers {
    hosts: BTreeMap<HostId, Host>,
    movers: BTreeMap<HostId, MoverRank>,
    active: BTreeMap<ObjectId, Transfer>,
    bytes_per_s: f64,
    /// The most recent finished transfers.
    past: VecDeque<(ObjectId, Transfer)>,
}

impl Transfers {
    /// A host has connected. One that cannot serve is never a parent, and gets everything from the
    /// origin.
    pub fn on_host_up(&mut self, host: HostId, can_serve: bool) {
        self.hosts.entry(host).or_default().can_serve = can_serve;
    }

    /// A client on another host has connected; it gets results from the controller's host and
    /// serves nobody.
    pub fn on_client_up(&mut self, host: HostId) {
        let host = self.hosts.entry(host).or_default();
        host.is_client = true;
    }

    /// A round trip to a host was measured.
    pub fn on_round_trip(&mut self, host: HostId, ns: u64) {
        if let Some(host) = self.hosts.get_mut(&host) {
            // The minimum counts, because anything above it is time spent waiting behind other
            // work. It may slowly rise again.
            let before = host.round_trip_ns;
            host.round_trip_ns = if before == 0 || ns < before {
                ns
            } else {
                before + (ns - before).min(before) / 16
            };
        }
    }

    /// Whether it is worth sending bytes only to measure the bandwidth: there are topologies to
    /// choose from, nothing is known, and no active transfer will tell.
    pub fn lacks_bandwidth(&self) -> bool {
        let tells = |t: &Transfer| t.len_bytes >= TELLING_BYTES && !t.is_told;
        let n_hosts = self.hosts.values().filter(|host| !host.is_client).count();
        n_hosts > 1 && self.bytes_per_s <= 0.0 && !self.active.values().any(tells)
    }

    /// The measured bandwidth into a host, bytes per second; 0 while unknown.
    pub fn bytes_per_s(&self, host: HostId) -> f64 {
        self.hosts.get(&host).map_or(0.0, |host| host.bytes_per_s)
    }

    /// What a hop costs, as far as it was measured.
    pub fn hop(&self) -> Hop {
        let mut trips: Vec<u64> = self.hosts.values().map(|h| h.round_trip_ns).collect();
        trips.retain(|ns| *ns > 0);
        trips.sort_unstable();
        let default = Hop::default();
        let median = trips.get(trips.len() / 2).copied();
        Hop {
            latency_s: median.map_or(default.latency_s, |ns| ns as f64 / 2e9),
            seconds_per_byte: if self.bytes_per_s > 0.0 {
                1.0 / self.bytes_per_s
            } else {
                default.seconds_per_byte
            },
        }
    }

    /// The topology of an object's tree, while it is being sent.
    pub fn topology(&self, object: ObjectId) -> Option<Topology> {
        self.active.get(&object).map(|t| t.estimate.topology)
    }

    /// The size of the chunks that an object is sent in, while it is being sent.
    pub fn chunk_bytes(&self, object: ObjectId) -> Option<u32> {
        self.active.get(&object).map(|t| t.estimate.chunk_bytes)
    }

    /// Hosts need an object. Those that need an object that is already being sent are placed behind
    /// the others.
    #[expect(clippy::too_many_arguments, reason = "each is a fact of its own")]
    pub fn want(
        &mut self,
        now: Nanos,
        object: ObjectId,
        len_bytes: u64,
        origin: HostId,
        hosts: &[HostId],
        topology: TopologyChoice,
        out: &mut Vec<TransferCommand>,
    ) {
        let hop = self.hop();
        let transfer = self.active.entry(object).or_insert_with(|| Transfer {
            len_bytes,
            since_ns: now,
            estimate: topology.estimate(hosts.len(), len_bytes, hop),
            order: vec![Position::new(origin, 0, now)],
            is_told: false,
        });
        transfer.order[0].is_complete = true;
        let known = &self.hosts;
        let mut fresh: Vec<HostId> = hosts.to_vec();
        fresh.retain(|host| {
            known.contains_key(host)
                && !transfer.order.iter().any(|p| p.host == *host && !p.is_gone)
        });
        // Hosts that cannot serve come last, preceded by those known to be slow.
        let mut rates: Vec<f64> = fresh.iter().map(|h| known[h].bytes_per_s).collect();
        rates.retain(|rate| *rate > 0.0);
        rates.sort_unstable_by(f64::total_cmp);
        let half = rates
            .get(rates.len() / 2)
            .map_or(0.0, |median| median / 2.0);
        fresh.sort_by_key(|h| {
            let host = &known[h];
            let is_slow = host.bytes_per_s > 0.0 && host.bytes_per_s < half;
            (!host.can_serve, is_slow, *h)
        });
        fresh.dedup();
        for host in fresh {
            let position = transfer.order.len();
            let parent = if known[&host].can_serve {
                transfer.living(transfer.estimate.topology.parent(position), known)
            } else {
                0
            };
            transfer.order.push(Position::new(host, parent, now));
            transfer.is_told = false;
            out.push(transfer.fetch(object, position, known));
        }
    }

    /// A host reports its progress.
    pub fn on_progress(
        &mut self,
        now: Nanos,
        host: HostId,
        progress: &Progress,
        out: &mut Vec<TransferCommand>,
    ) {
        let Some(transfer) = self.active.get_mut(&progress.object) else {
            return;
        };
        let Some(position) = transfer.position_of(host) else {
            return;
        };
        let at = &mut transfer.order[position];
        // Progress never goes back.
        at.have_bytes = at
            .have_bytes
            .max(progress.have_bytes.min(transfer.len_bytes));
        let is_complete = progress.is_complete && at.have_bytes == transfer.len_bytes;
        // A host reports which source it turned to; only an earlier host is accepted.
        if let Some(parent) = transfer
            .position_of(progress.source)
            .filter(|p| *p < position)
        {
            transfer.order[position].parent = parent;
        }
        if is_complete && !transfer.order[position].is_complete {
            transfer.order[position].is_complete = true;
            transfer.order[position].completed_ns = now;
            let fan_out = transfer.fan_out(position);
            if transfer.len_bytes >= TELLING_BYTES
                && progress.receiving_ns > 0
                && progress.resumed_at.is_empty()
            {
                let chunk = u64::from(transfer.estimate.chunk_bytes);
                let timed = transfer.len_bytes.saturating_sub(chunk) as f64;
                let rate = timed * 1e9 / progress.receiving_ns as f64;
                let mut is_client = false;
                if let Some(host) = self.hosts.get_mut(&host) {
                    host.bytes_per_s = blend(host.bytes_per_s, rate);
                    is_client = host.is_client;
                }
                if !is_client {
                    self.bytes_per_s = blend(self.bytes_per_s, rate * fan_out as f64);
                }
            }
        }
        self.bypass_slow(now, progress.object, out);
        self.tell_complete(progress.object, out);
    }

    /// A host is gone: its children are moved, and nobody waits for it.
    pub fn on_host_down(&mut self, host: HostId, out: &mut Vec<TransferCommand>) {
        self.hosts.remove(&host);
        self.movers.remove(&host);
        let objects: Vec<ObjectId> = self.active.keys().copied().collect();
        for object in objects {
            let Some(transfer) = self.active.get_mut(&object) else {
                continue;
            };
            if let Some(gone) = transfer.position_of(host) {
                if gone == 0 {
                    self.end(object); // Without its origin nobody can have it.
                    continue;
                }
                transfer.order[gone].is_gone = true;
                transfer.move_children(object, gone, &self.hosts, out);
            }
            self.tell_complete(object, out);
        }
    }

    /// A host does not answer: its children are moved, and it goes on where it was if it comes back.
    pub fn on_host_away(&mut self, host: HostId, out: &mut Vec<TransferCommand>) {
        if let Some(known) = self.hosts.get_mut(&host) {
            known.is_away = true;
        }
        for (object, transfer) in &mut self.active {
            if let Some(away) = transfer.position_of(host).filter(|position| *position > 0) {
                transfer.move_children(*object, away, &self.hosts, out);
            }
        }
    }

    /// A host that was away answers again.
    pub fn on_host_back(&mut self, host: HostId) {
        if let Some(known) = self.hosts.get_mut(&host) {
            known.is_away = false;
        }
    }

    /// The object is no longer needed.
    pub fn forget(&mut self, object: ObjectId) {
        self.end(object);
    }

    /// An object's transfer is over.
    fn end(&mut self, object: ObjectId) {
        let Some(transfer) = self.active.remove(&object) else {
            return;
        };
        if self.past.len() == PAST {
            self.past.pop_front();
        }
        self.past.push_back((object, transfer));
    }

    /// A host could not get an object from any source; nothing more is expected of it.
    pub fn on_failed(&mut self, host: HostId, object: ObjectId, out: &mut Vec<TransferCommand>) {
        if let Some(transfer) = self.active.get_mut(&object)
            && let Some(position) = transfer.position_of(host)
            && position > 0
        {
            transfer.order[position].is_gone = true;
            transfer.move_children(object, position, &self.hosts, out);
            self.tell_complete(object, out);
        }
    }

    /// The children of a host that is itself slow continue with that host's parent.
    fn bypass_slow(&mut self, now: Nanos, object: ObjectId, out: &mut Vec<TransferCommand>) {
        let Some(transfer) = self.active.get_mut(&object) else {
            return;
        };
        let mut rates = Vec::new();
        for position in transfer.order.iter_mut().skip(1) {
            let (at, had) = position.looked;
            let elapsed_ns = now.saturating_sub(at);
            if position.is_gone || position.is_complete || elapsed_ns < SLOW_NS / 4 {
                continue;
            }
            let rate = position.have_bytes.saturating_sub(had) as f64 / elapsed_ns as f64;
            position.looked = (now, position.have_bytes);
            rates.push((rate, position.host));
        }
        if rates.len() < 2 {
            return;
        }
        let mut sorted: Vec<f64> = rates.iter().map(|(rate, _)| *rate).collect();
        sorted.sort_unstable_by(f64::total_cmp);
        let half = sorted[sorted.len() / 2] / 2.0;
        let lead = 4 * u64::from(transfer.estimate.chunk_bytes);
        for (rate, host) in rates {
            let Some(index) = transfer.position_of(host) else {
                continue;
            };
            let parent_has = transfer.has(transfer.order[index].parent);
            let position = &mut transfer.order[index];
            // One that has everything its parent has is held up by the parent.
            if rate >= half || parent_has < position.have_bytes.saturating_add(lead) {
                position.slow_since = None;
                continue;
            }
            let since = *position.slow_since.get_or_insert(now);
            if now.saturating_sub(since) >= SLOW_NS {
                position.slow_since = None;
                transfer.move_children(object, index, &self.hosts, out);
            }
        }
    }

    fn tell_complete(&mut self, object: ObjectId, out: &mut Vec<TransferCommand>) {
        let Some(transfer) = self.active.get_mut(&object) else {
            return;
        };
        let all = transfer.order.iter().all(|p| p.is_gone || p.is_complete);
        if all && !core::mem::replace(&mut transfer.is_told, true) {
            out.push(TransferCommand::Complete { object });
        }
    }

    /// Verifies that every host's parent comes before it, and that nobody waits for a host that is
    /// gone.
    ///
    /// # Errors
    /// The invariant that does not hold.
    pub fn check(&self) -> Result<(), String> {
        for (object, transfer) in &self.active {
            for (index, position) in transfer.order.iter().enumerate().skip(1) {
                if position.is_gone {
                    continue;
                }
                if position.parent >= index {
                    return Err(format!("{object:?}: position {index} is before its parent"));
                }
                if !position.is_complete && transfer.order[position.parent].is_gone {
                    return Err(format!(
                        "{object:?}: position {index} waits for a host that is gone"
                    ));
                }
            }
        }
        Ok(())
    }
}

impl Position {
    fn new(host: HostId, parent: usize, now: Nanos) -> Self {
        Self {
            host,
            is_gone: false,
            is_complete: false,
            parent,
            epoch: 0,
            have_bytes: 0,
            completed_ns: 0,
            looked: (now, 0),
            slow_since: None,
        }
    }
}

impl Transfer {
    fn position_of(&self, host: HostId) -> Option<usize> {
        self.order
            .iter()
            .rposition(|p| p.host == host && !p.is_gone)
    }

    fn has(&self, position: usize) -> u64 {
        let at = &self.order[position];
        if at.is_complete {
            self.len_bytes
        } else {
            at.have_bytes
        }
    }

    /// The given position if its host can be a parent, otherwise the nearest earlier one that can.
    fn living(&self, position: usize, hosts: &BTreeMap<HostId, Host>) -> usize {
        (0..=position)
            .rev()
            .find(|index| *index == 0 || self.can_serve(*index, hosts))
            .unwrap_or(0)
    }

    fn can_serve(&self, position: usize, hosts: &BTreeMap<HostId, Host>) -> bool {
        let at = &self.order[position];
        !at.is_gone
            && hosts
                .get(&at.host)
                .is_some_and(|h| h.can_serve && !h.is_away)
    }

    /// Moves every child of this position to the position's own parent.
    fn move_children(
        &mut self,
        object: ObjectId,
        from: usize,
        hosts: &BTreeMap<HostId, Host>,
        out: &mut Vec<TransferCommand>,
    ) {
        let to = self.living(self.order[from].parent, hosts);
        for index in from + 1..self.order.len() {
            let position = &mut self.order[index];
            if position.parent == from && !position.is_gone && !position.is_complete {
                position.parent = to;
                position.epoch += 1;
                out.push(self.fetch(object, index, hosts));
            }
        }
    }

    fn fetch(
        &self,
        object: ObjectId,
        position: usize,
        hosts: &BTreeMap<HostId, Host>,
    ) -> TransferCommand {
        let at = &self.order[position];
        let mut sources = vec![at.parent];
        if hosts.get(&at.host).is_some_and(|h| h.can_serve) {
            let others = (1..position).rev().filter(|i| *i != at.parent);
            sources.extend(others.filter(|i| self.can_serve(*i, hosts)).take(FALLBACKS));
        }
        if at.parent != 0 {
            sources.push(0);
        }
        TransferCommand::Fetch {
            host: at.host,
            object,
            len_bytes: self.len_bytes,
            chunk_bytes: self.estimate.chunk_bytes,
            sources: sources.iter().map(|i| self.order[*i].host).collect(),
            epoch: at.epoch,
        }
    }

    /// The maximum number of children of any host on the path from the origin to this position.
    fn fan_out(&self, position: usize) -> usize {
        let children = |of: usize| {
            let of_this = |p: &&Position| p.parent == of && !p.is_gone;
            self.order.iter().skip(1).filter(of_this).count()
        };
        let (mut at, mut max_children) = (position, 1);
        while at != 0 {
            at = self.order[at].parent;
            max_children = max_children.max(children(at));
        }
        max_children
    }
}
