//! Limits connections whose peer has not identified itself yet.
//!
//! Anyone who can reach the port can open such connections. So they are limited, have a deadline,
//! and are counted by origin: strangers never use up the budget of this host's own processes, or of
//! addresses that have proven a key before.

use std::collections::{BTreeMap, VecDeque};

use crate::Nanos;

/// Number of addresses remembered for having proven a key; the latest ones stay.
const KNOWN_ADDRESSES: usize = 1024;

/// An address, IPv4 as mapped into IPv6.
pub type Address = [u8; 16];

/// Where a connection comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// A unix socket.
    Local,
    /// Another host, or this one over TCP.
    Remote(Address),
}

/// Connections that share a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Budget {
    /// Those over the unix socket.
    Local,
    /// Those from addresses that have proven a key.
    Known,
    /// All others.
    Strangers,
}

/// The connections that have not been identified.
#[derive(Debug)]
pub struct Admission {
    /// Maximum number of connections in one budget.
    limit: usize,
    /// How long a peer has to identify itself.
    deadline_ns: Nanos,
    /// For each budget, oldest first: arrival number and peer.
    queues: [BTreeMap<u64, usize>; 3],
    waiting: BTreeMap<usize, Waiting>,
    known: VecDeque<Address>,
    next_arrival: u64,
    n_displaced: u64,
}

#[derive(Debug)]
struct Waiting {
    budget: Budget,
    arrival: u64,
    due_ns: Nanos,
    origin: Origin,
}

impl Admission {
    /// Lets `limit` connections of each budget wait for up to `deadline_ns`.
    pub fn new(limit: usize, deadline_ns: Nanos) -> Self {
        Self {
            limit,
            deadline_ns,
            queues: [const { BTreeMap::new() }; 3],
            waiting: BTreeMap::new(),
            known: VecDeque::new(),
            next_arrival: 0,
            n_displaced: 0,
        }
    }

    /// A peer arrived; returns the one that must be closed to make room, if any: the oldest of the same budget.
    pub fn on_arrival(&mut self, now: Nanos, peer: usize, origin: Origin) -> Option<usize> {
        let budget = match origin {
            Origin::Local => Budget::Local,
            Origin::Remote(address) if self.known.contains(&address) => Budget::Known,
            Origin::Remote(_) => Budget::Strangers,
        };
        let displaced = (self.queues[budget as usize].len() >= self.limit)
            .then(|| self.queues[budget as usize].values().next().copied())
            .flatten();
        if let Some(displaced) = displaced {
            self.displace(displaced);
        }
        let arrival = self.next_arrival;
        self.next_arrival += 1;
        self.queues[budget as usize].insert(arrival, peer);
        let waiting = Waiting {
            budget,
            arrival,
            due_ns: now.saturating_add(self.deadline_ns),
            origin,
        };
        self.waiting.insert(peer, waiting);
        displaced
    }

    /// A peer has proven its key and identified itself: its address is known from here on.
    pub fn on_introduced(&mut self, peer: usize) {
        let Some(Origin::Remote(address)) = self.remove(peer).map(|w| w.origin) else {
            return;
        };
        self.known.retain(|known| *known != address);
        if self.known.len() == KNOWN_ADDRESSES {
            self.known.pop_front();
        }
        self.known.push_back(address);
    }

    /// A peer is gone, or refused.
    pub fn on_gone(&mut self, peer: usize) {
        self.remove(peer);
    }

    /// There is no descriptor for another connection: returns the peer to close, the oldest stranger first, and never
    /// one of this host.
    pub fn make_room(&mut self) -> Option<usize> {
        let peer = [Budget::Strangers, Budget::Known]
            .into_iter()
            .find_map(|budget| self.queues[budget as usize].values().next().copied())?;
        self.displace(peer);
        Some(peer)
    }

    /// A peer whose time is over; call again until there is none.
    pub fn next_overdue(&mut self, now: Nanos) -> Option<usize> {
        let (due_ns, peer) = self.oldest()?;
        (due_ns <= now).then(|| {
            self.remove(peer);
            peer
        })
    }

    /// When the next peer's time is over.
    pub fn next_deadline(&self) -> Option<Nanos> {
        self.oldest().map(|(due_ns, _)| due_ns)
    }

    /// The budget of a waiting peer.
    pub fn budget_of(&self, peer: usize) -> Option<Budget> {
        self.waiting.get(&peer).map(|w| w.budget)
    }

    /// Maximum number of connections in one budget.
    pub fn limit(&self) -> usize {
        self.limit
    }

    /// Waiting connections in a budget.
    pub fn n_waiting(&self, budget: Budget) -> usize {
        self.queues[budget as usize].len()
    }

    /// Total number of connections closed to make room for others.
    pub fn n_displaced(&self) -> u64 {
        self.n_displaced
    }

    fn oldest(&self) -> Option<(Nanos, usize)> {
        // All have the same time, so the oldest arrival is due first.
        let firsts = self.queues.iter().filter_map(|q| q.first_key_value());
        let (_, peer) = firsts.min_by_key(|(arrival, _)| **arrival)?;
        self.waiting.get(peer).map(|w| (w.due_ns, *peer))
    }

    fn displace(&mut self, peer: usize) {
        self.remove(peer);
        self.n_displaced += 1;
    }

    fn remove(&mut self, peer: usize) -> Option<Waiting> {
        let waiting = self.waiting.remove(&peer)?;
        self.queues[waiting.budget as usize].remove(&waiting.arrival);
        Some(waiting)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const THERE: Origin = Origin::Remote([9; 16]);
    const FRIEND: Origin = Origin::Remote([1; 16]);

    #[test]
    fn strangers_displace_strangers_only() {
        let mut admission = Admission::new(2, 10);
        assert_eq!(admission.on_arrival(0, 1, FRIEND), None);
        admission.on_introduced(1);
        assert_eq!(admission.on_arrival(1, 2, FRIEND), None);
        assert_eq!(admission.on_arrival(1, 3, Origin::Local), None);
        for peer in 10..12 {
            assert_eq!(admission.on_arrival(2, peer, THERE), None);
        }
        for peer in 12..1000 {
            assert_eq!(admission.on_arrival(2, peer, THERE), Some(peer - 2));
        }
        assert_eq!(admission.n_displaced(), 988);
        assert_eq!(admission.budget_of(2), Some(Budget::Known));
        assert_eq!(admission.budget_of(3), Some(Budget::Local));
        assert_eq!(admission.n_waiting(Budget::Strangers), 2);
    }

    #[test]
    fn who_is_late_goes_and_who_was_introduced_stays() {
        let mut admission = Admission::new(8, 10);
        admission.on_arrival(0, 1, THERE);
        admission.on_arrival(1, 2, Origin::Local);
        admission.on_arrival(2, 3, THERE);
        admission.on_introduced(1);
        assert_eq!(admission.next_deadline(), Some(11));
        assert_eq!(admission.next_overdue(10), None);
        assert_eq!(admission.next_overdue(12), Some(2));
        // The third comes from an address that is known by now, but came as a stranger.
        assert_eq!(admission.next_overdue(12), Some(3));
        assert_eq!(
            (admission.next_overdue(99), admission.next_deadline()),
            (None, None)
        );
    }

    #[test]
    fn without_descriptors_strangers_make_room_and_local_peers_do_not() {
        let mut admission = Admission::new(8, 10);
        admission.on_arrival(0, 1, Origin::Local);
        admission.on_arrival(0, 2, FRIEND);
        admission.on_introduced(2);
        admission.on_arrival(0, 3, FRIEND);
        admission.on_arrival(0, 4, THERE);
        let gone = [(); 3].map(|()| admission.make_room());
        assert_eq!(gone, [Some(4), Some(3), None]);
        admission.on_gone(1);
        assert_eq!(admission.next_deadline(), None);
    }

    #[test]
    fn only_the_latest_addresses_are_remembered() {
        let mut admission = Admission::new(8, 10);
        let address = |n: usize| {
            let mut address = [0; 16];
            address[..8].copy_from_slice(&n.to_le_bytes());
            Origin::Remote(address)
        };
        for n in 0..=KNOWN_ADDRESSES {
            admission.on_arrival(0, n, address(n));
            admission.on_introduced(n);
        }
        admission.on_arrival(0, 1, address(0));
        admission.on_arrival(0, 2, address(KNOWN_ADDRESSES));
        assert_eq!(admission.budget_of(1), Some(Budget::Strangers));
        assert_eq!(admission.budget_of(2), Some(Budget::Known));
    }
}
