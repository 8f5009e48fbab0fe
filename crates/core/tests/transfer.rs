//! The transfer machine: its rules one by one, and simulated broadcasts with hosts that die, stall or come late.
#![allow(clippy::unwrap_used)] // a test fails by panicking

use std::collections::BTreeMap;

use broadleaf_core::transfer::cost::Topology;
use broadleaf_core::transfer::{TopologyChoice, TransferCommand, Transfers};
use broadleaf_proto::relay::Progress;
use broadleaf_proto::{HostId, ObjectId};

const MS: u64 = 1_000_000;
const OBJECT: ObjectId = ObjectId(7);
const LEN: u64 = 64 << 20;

fn hosts(n: u32) -> Vec<HostId> {
    (1..=n).map(HostId).collect()
}

fn progress(source: HostId, have_bytes: u64) -> Progress {
    Progress {
        object: OBJECT,
        have_bytes,
        is_complete: have_bytes == LEN,
        source,
        receiving_ns: 100 * MS,
        wire_bytes: have_bytes,
        mover_bytes: 0,
        resumed_at: Vec::new(),
        corrupt_chunks: 0,
    }
}

fn wanted(n: u32, topology: TopologyChoice) -> (Transfers, Vec<TransferCommand>) {
    let mut transfers = Transfers::default();
    let mut out = Vec::new();
    for host in hosts(n) {
        transfers.on_host_up(host, true);
    }
    transfers.want(0, OBJECT, LEN, HostId(0), &hosts(n), topology, &mut out);
    transfers.check().unwrap();
    (transfers, out)
}

/// The host, its sources and the epoch of each order to fetch.
fn fetches(orders: &[TransferCommand]) -> Vec<(u32, Vec<u32>, u32)> {
    let of = |order: &TransferCommand| match order {
        TransferCommand::Fetch {
            host,
            sources,
            epoch,
            ..
        } => Some((host.0, sources.iter().map(|h| h.0).collect(), *epoch)),
        TransferCommand::Complete { .. } => None,
    };
    orders.iter().filter_map(of).collect()
}

const CHAIN: TopologyChoice = TopologyChoice::Fixed(Topology::Chain);

#[test]
fn a_chain_falls_back_to_those_before_and_to_the_origin_last() {
    let (_, out) = wanted(4, CHAIN);
    assert_eq!(
        fetches(&out),
        [
            (1, vec![0], 0),
            (2, vec![1, 0], 0),
            (3, vec![2, 1, 0], 0),
            (4, vec![3, 2, 1, 0], 0),
        ]
    );
}

#[test]
fn shapes_can_be_forced_and_large_objects_go_down_a_chain_else() {
    let parents = |topology| -> Vec<u32> {
        fetches(&wanted(6, topology).1)
            .iter()
            .map(|f| f.1[0])
            .collect()
    };
    assert_eq!(parents(TopologyChoice::Fixed(Topology::Flat)), [0; 6]);
    assert_eq!(
        parents(TopologyChoice::Fixed(Topology::Binomial)),
        [0, 0, 2, 0, 4, 4]
    );
    assert_eq!(
        parents(TopologyChoice::Fixed(Topology::Kary(2))),
        [0, 0, 1, 1, 2, 2]
    );
    assert_eq!(parents(TopologyChoice::Cheapest), [0, 1, 2, 3, 4, 5]);
}

#[test]
fn who_cannot_serve_is_nobodys_parent_and_gets_all_from_the_origin() {
    let mut transfers = Transfers::default();
    let mut out = Vec::new();
    for host in hosts(4) {
        transfers.on_host_up(host, host.0 % 2 == 0);
    }
    transfers.want(0, OBJECT, LEN, HostId(0), &hosts(4), CHAIN, &mut out);
    assert_eq!(
        fetches(&out),
        [
            (2, vec![0], 0),
            (4, vec![2, 0], 0),
            (1, vec![0], 0),
            (3, vec![0], 0),
        ]
    );
}

#[test]
fn when_a_host_is_gone_those_behind_it_go_on_with_its_parent() {
    for (gone, moved) in [
        (1, vec![(2, vec![0], 1)]),
        (2, vec![(3, vec![1, 0], 1)]),
        (4, vec![]),
    ] {
        let (mut transfers, mut out) = wanted(4, CHAIN);
        out.clear();
        transfers.on_host_down(HostId(gone), &mut out);
        transfers.check().unwrap();
        assert_eq!(fetches(&out), moved, "host {gone} is gone");
    }
}

#[test]
fn two_adjacent_hosts_may_go() {
    let (mut transfers, mut out) = wanted(4, CHAIN);
    out.clear();
    transfers.on_host_down(HostId(2), &mut out);
    transfers.on_host_down(HostId(3), &mut out);
    transfers.check().unwrap();
    assert_eq!(fetches(&out), [(3, vec![1, 0], 1), (4, vec![1, 0], 1)]);
}

#[test]
fn an_object_is_complete_when_all_that_are_left_have_it() {
    let (mut transfers, mut out) = wanted(3, CHAIN);
    out.clear();
    transfers.on_progress(0, HostId(1), &progress(HostId(0), LEN), &mut out);
    transfers.on_progress(0, HostId(2), &progress(HostId(1), LEN), &mut out);
    assert_eq!(out, []);
    transfers.on_host_down(HostId(3), &mut out);
    assert_eq!(out, [TransferCommand::Complete { object: OBJECT }]);
}

#[test]
fn a_host_that_comes_late_gets_it_from_the_last_before_it() {
    let (mut transfers, mut out) = wanted(2, CHAIN);
    out.clear();
    transfers.on_host_up(HostId(3), true);
    let both = [HostId(2), HostId(3)];
    transfers.want(MS, OBJECT, LEN, HostId(0), &both, CHAIN, &mut out);
    assert_eq!(fetches(&out), [(3, vec![2, 1, 0], 0)]);
}

#[test]
fn who_is_slow_by_itself_ends_with_nobody_behind_it() {
    let (mut transfers, mut out) = wanted(4, CHAIN);
    out.clear();
    let chunk = u64::from(transfers.chunk_bytes(OBJECT).unwrap());
    for tick in 1..12 {
        let now = tick * 260 * MS;
        // 1 is fast; 2 is itself slow; 3 and 4 have everything that 2 has.
        let have = [40 * chunk * tick, chunk * tick, chunk * tick, chunk * tick];
        for (host, have_bytes) in (1..).zip(have) {
            let source = HostId(host - 1);
            transfers.on_progress(
                now,
                HostId(host),
                &progress(source, have_bytes.min(LEN - 1)),
                &mut out,
            );
        }
        transfers.check().unwrap();
    }
    // The median is that of the three slow ones, so nobody is slow compared to them.
    assert_eq!(out, []);
    let (mut transfers, mut out) = wanted(6, CHAIN);
    out.clear();
    for tick in 1..12 {
        let now = tick * 260 * MS;
        let have = [50, 49, 48, 47, 3, 3].map(|n| n * chunk * tick / 4);
        for (host, have_bytes) in (1..).zip(have) {
            let source = HostId(host - 1);
            transfers.on_progress(
                now,
                HostId(host),
                &progress(source, have_bytes.min(LEN - 1)),
                &mut out,
            );
        }
    }
    let (host, sources, epoch) = &fetches(&out)[0];
    assert_eq!((*host, sources[0], *epoch), (6, 4, 1));
}

#[test]
fn what_nobody_wants_is_forgotten() {
    let (mut transfers, mut out) = wanted(3, CHAIN);
    out.clear();
    transfers.forget(OBJECT);
    transfers.on_progress(0, HostId(1), &progress(HostId(0), LEN), &mut out);
    transfers.on_host_down(HostId(2), &mut out);
    assert_eq!(out, []);
}

#[test]
fn measured_links_decide() {
    let mut transfers = Transfers::default();
    let mut out = Vec::new();
    for host in hosts(16) {
        transfers.on_host_up(host, true);
        transfers.on_round_trip(host, 400_000);
    }
    assert!((transfers.hop().latency_s - 200e-6).abs() < 1e-9);
    transfers.want(0, OBJECT, LEN, HostId(0), &hosts(16), CHAIN, &mut out);
    let mut done = progress(HostId(0), LEN);
    done.receiving_ns = LEN * 8; // 1 Gb/s
    for host in hosts(16) {
        done.source = HostId(host.0 - 1);
        transfers.on_progress(MS, host, &done, &mut out);
    }
    let hop = transfers.hop();
    assert!((hop.seconds_per_byte / 8e-9 - 1.0).abs() < 0.02, "{hop:?}");
}

/// One simulated host.
#[derive(Clone, Debug, Default)]
struct Node {
    sources: Vec<u32>,
    at: usize,
    epoch: u32,
    have: u64,
    wire: u64,
    silent_for: u32,
    is_dead: bool,
    is_stopped: bool,
}

struct Network {
    transfers: Transfers,
    nodes: BTreeMap<u32, Node>,
    now: u64,
    is_complete: bool,
    random: u64,
}

const TICK_NS: u64 = 50 * MS;
const RATE: u64 = 2 << 20;

impl Network {
    fn new(n: u32, topology: TopologyChoice, seed: u64) -> Self {
        let (transfers, out) = wanted(n, topology);
        let mut network = Self {
            transfers,
            nodes: (1..=n).map(|h| (h, Node::default())).collect(),
            now: 0,
            is_complete: false,
            random: seed,
        };
        network.obey(out);
        network
    }

    fn below(&mut self, n: u64) -> u64 {
        self.random = self
            .random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (self.random >> 33) % n
    }

    fn obey(&mut self, orders: Vec<TransferCommand>) {
        for order in orders {
            let TransferCommand::Fetch {
                host,
                sources,
                epoch,
                ..
            } = order
            else {
                self.is_complete = true;
                continue;
            };
            assert!(!sources.contains(&host), "nobody gets it from itself");
            let node = self.nodes.get_mut(&host.0).unwrap();
            if node.sources.is_empty() || epoch > node.epoch {
                node.sources = sources.iter().map(|h| h.0).collect();
                node.at = 0;
                node.epoch = epoch;
            }
        }
    }

    /// Every host receives once; one that hears nothing for a second turns to the next source.
    fn tick(&mut self) {
        self.now += TICK_NS;
        let before = self.nodes.clone();
        let ids: Vec<u32> = self.nodes.keys().copied().collect();
        for id in ids {
            let node = self.nodes.get_mut(&id).unwrap();
            if node.is_dead || node.is_stopped || node.have == LEN {
                continue;
            }
            let source = node.sources[node.at % node.sources.len()];
            let (has, answers) = match before.get(&source) {
                None => (LEN, true),
                Some(s) => (s.have, !s.is_dead && !s.is_stopped),
            };
            let got = if answers {
                has.saturating_sub(node.have).min(RATE)
            } else {
                0
            };
            node.have += got;
            node.wire += got;
            node.silent_for = if answers { 0 } else { node.silent_for + 1 };
            if node.silent_for > 20 {
                node.silent_for = 0;
                node.at += 1;
            }
            let said = Progress {
                wire_bytes: node.wire,
                ..progress(HostId(source), node.have)
            };
            let mut out = Vec::new();
            self.transfers
                .on_progress(self.now, HostId(id), &said, &mut out);
            self.obey(out);
        }
        self.transfers.check().unwrap();
    }

    fn kill(&mut self, id: u32, is_noticed: bool) {
        self.nodes.get_mut(&id).unwrap().is_dead = true;
        if is_noticed {
            let mut out = Vec::new();
            self.transfers.on_host_down(HostId(id), &mut out);
            self.obey(out);
            self.transfers.check().unwrap();
        }
    }

    fn finish(&mut self) {
        for _ in 0..2_000 {
            self.tick();
            let mut living = self.nodes.values().filter(|n| !n.is_dead && !n.is_stopped);
            if living.all(|n| n.have == LEN) {
                break;
            }
        }
        for (id, node) in &self.nodes {
            if !node.is_dead && !node.is_stopped {
                assert_eq!(node.have, LEN, "host {id} waits forever: {node:?}");
                assert_eq!(node.wire, LEN, "host {id} got bytes twice");
            }
        }
    }
}

#[test]
fn the_living_complete_whoever_dies_or_stalls() {
    let wishes = [
        CHAIN,
        TopologyChoice::Fixed(Topology::Binomial),
        TopologyChoice::Fixed(Topology::Kary(3)),
        TopologyChoice::Cheapest,
    ];
    for seed in 0..200 {
        for topology in wishes {
            let n = 3 + (seed % 12) as u32;
            let mut network = Network::new(n, topology, seed);
            for _ in 0..=(seed % 4) {
                for _ in 0..network.below(20) {
                    network.tick();
                }
                let victim = 1 + network.below(u64::from(n)) as u32;
                match network.below(3) {
                    0 => network.kill(victim, true),
                    1 => network.kill(victim, false),
                    _ => network.nodes.get_mut(&victim).unwrap().is_stopped = true,
                }
            }
            network.finish();
        }
    }
}

#[test]
fn the_rest_completes_and_is_told_when_the_dead_are_known() {
    let mut network = Network::new(6, CHAIN, 1);
    for _ in 0..5 {
        network.tick();
    }
    network.kill(2, true);
    network.kill(3, true);
    network.finish();
    assert!(network.is_complete);
}

#[test]
fn bandwidth_is_lacked_where_there_is_a_choice_and_nothing_tells() {
    let mut transfers = Transfers::default();
    let mut out = Vec::new();
    transfers.on_host_up(HostId(1), true);
    assert!(!transfers.lacks_bandwidth(), "one host has but one parent");
    transfers.on_host_up(HostId(2), true);
    assert!(transfers.lacks_bandwidth());
    let mut want = |transfers: &mut Transfers, object, len| {
        transfers.want(0, object, len, HostId(0), &hosts(2), CHAIN, &mut out);
    };
    want(&mut transfers, ObjectId(8), 1000);
    assert!(transfers.lacks_bandwidth(), "so little tells nothing");
    want(&mut transfers, OBJECT, LEN);
    assert!(!transfers.lacks_bandwidth(), "what travels will tell");
    let mut out = Vec::new();
    transfers.on_progress(MS, HostId(1), &progress(HostId(0), LEN), &mut out);
    transfers.forget(OBJECT);
    assert!(!transfers.lacks_bandwidth());
    assert!(transfers.bytes_per_s(HostId(1)) > 0.0);
    assert!(transfers.bytes_per_s(HostId(2)) <= 0.0);
}

#[test]
fn what_a_host_says_of_its_progress_stays_within_the_object() {
    let (mut transfers, mut out) = wanted(3, CHAIN);
    out.clear();
    let mut say = |now, host, progress: Progress| {
        transfers.on_progress(now, HostId(host), &progress, &mut out);
        transfers.check().unwrap();
    };
    for have_bytes in [LEN / 2, 0, u64::MAX, 1] {
        for (step, host) in [(1, 1), (2, 2), (3, 3)] {
            let claim = Progress {
                have_bytes,
                resumed_at: vec![u64::MAX],
                wire_bytes: u64::MAX,
                receiving_ns: 1,
                ..progress(HostId(77), 0)
            };
            say(step * 10_000 * MS, host, claim);
        }
    }
    assert_eq!(fetches(&out), []);
    // Not all of it has arrived, whatever the report says.
    let (mut transfers, mut out) = wanted(1, CHAIN);
    out.clear();
    let early = Progress {
        is_complete: true,
        ..progress(HostId(0), LEN / 2)
    };
    transfers.on_progress(MS, HostId(1), &early, &mut out);
    assert_eq!(out, []);
    transfers.on_progress(2 * MS, HostId(1), &progress(HostId(0), LEN), &mut out);
    assert_eq!(out, [TransferCommand::Complete { object: OBJECT }]);
}
