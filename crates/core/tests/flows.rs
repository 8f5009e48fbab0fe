//! Payload by MPI: a chain of simulated hosts whose movers die, are stopped or start late at any
//! step. Every host gets everything, over TCP if need be; no object is received in two ways at once,
//! and no byte twice.
#![allow(clippy::unwrap_used)] // a test fails by panicking

use broadleaf_core::transfer::Transfers;
use broadleaf_core::transfer::flows::{Direction, Flows, STALL_NS};
use broadleaf_proto::mover::{Landing, MAX_FLOWS, MoverRank};
use broadleaf_proto::{HostId, ObjectId};

const OBJECT: ObjectId = ObjectId(7);
const PIECE: u32 = 1 << 18;
const RATE: u64 = PIECE as u64;
const LEN: u64 = 40 * RATE;
const STEP_NS: u64 = 100_000_000;

fn rank(world: u64, rank: usize) -> MoverRank {
    MoverRank {
        world,
        rank: rank as u32,
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Process {
    Running,
    /// Alive, but does nothing.
    Stopped,
    Gone,
}

/// A flow that a host's mover was told to receive, and has not ended.
#[derive(Clone, Copy, Debug)]
struct Incoming {
    flow: u32,
    /// The flow at the other end, once that exists.
    sent_as: Option<u32>,
    is_abandoned: bool,
    is_stopped: bool,
}

#[derive(Debug)]
struct Host {
    flows: Flows,
    mover: Process,
    have: u64,
    by_mpi: u64,
    by_tcp: u64,
    incoming: Option<Incoming>,
    asks_over_tcp: bool,
}

struct World {
    transfers: Transfers,
    hosts: Vec<Host>,
    /// Events of movers that the controller has not received yet.
    unheard: Vec<(usize, Option<MoverRank>)>,
    now: u64,
    random: u64,
}

impl World {
    fn new(n: usize, seed: u64) -> Self {
        let host = |index: usize| Host {
            flows: Flows::default(),
            mover: Process::Gone,
            have: if index == 0 { LEN } else { 0 },
            by_mpi: 0,
            by_tcp: 0,
            incoming: None,
            asks_over_tcp: false,
        };
        Self {
            transfers: Transfers::default(),
            hosts: (0..n).map(host).collect(),
            unheard: Vec::new(),
            now: 0,
            random: seed,
        }
    }

    fn below(&mut self, n: u64) -> u64 {
        self.random = self
            .random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (self.random >> 33) % n
    }

    fn start_mover(&mut self, index: usize, world: u64) {
        let host = &mut self.hosts[index];
        if host.mover == Process::Gone {
            host.mover = Process::Running;
            host.flows.on_mover(rank(world, index));
            self.unheard.push((index, Some(rank(world, index))));
        }
    }

    /// The controller hears of one mover.
    fn hear(&mut self) {
        let (index, mover) = self.unheard.remove(0);
        self.transfers.on_mover(HostId(index as u32), mover);
    }

    /// A mover's process ends: its host notices at once, the controller later.
    fn end_mover(&mut self, index: usize) {
        let host = &mut self.hosts[index];
        if host.mover == Process::Gone {
            return;
        }
        host.mover = Process::Gone;
        let sent_as = host.incoming.take().and_then(|i| i.sent_as);
        let ended = host.flows.on_gone();
        assert!(!host.flows.holds(OBJECT), "what is gone holds nothing");
        self.unheard.push((index, None));
        // The host asks over TCP instead, so nothing is sent by MPI any more.
        if let Some(flow) = sent_as {
            self.hosts[index - 1].flows.stop_one(self.now, flow);
        }
        let sent = ended
            .iter()
            .any(|(_, direction)| *direction == Direction::Out);
        if sent && index + 1 < self.hosts.len() {
            self.say_no_mover(index + 1);
        }
    }

    fn say_no_mover(&mut self, index: usize) {
        let now = self.now;
        let host = &mut self.hosts[index];
        if let Some(incoming) = &mut host.incoming {
            assert_eq!(host.flows.abandon(now, OBJECT), [incoming.flow]);
            incoming.is_abandoned = true;
        }
    }

    /// Asks the previous host for what is missing.
    fn ask(&mut self, index: usize) {
        let (source, target) = (HostId(index as u32 - 1), HostId(index as u32));
        let from = self.transfers.mover_between(source, target);
        let (now, host) = (self.now, &mut self.hosts[index]);
        let range = (host.have, LEN);
        let Some((flow, landing)) = host.flows.receive(now, OBJECT, from, range, PIECE) else {
            host.asks_over_tcp = true;
            return;
        };
        host.incoming = Some(Incoming {
            flow: flow.flow,
            sent_as: None,
            is_abandoned: false,
            is_stopped: false,
        });
        let before = &mut self.hosts[index - 1];
        match before.flows.send(now, OBJECT, landing, range, 0) {
            Some(sent) => self.hosts[index].incoming.as_mut().unwrap().sent_as = Some(sent.flow),
            None => self.say_no_mover(index),
        }
    }

    fn receive(&mut self, index: usize) {
        let now = self.now;
        let (has, sender) = (self.hosts[index - 1].have, self.hosts[index - 1].mover);
        let host = &mut self.hosts[index];
        assert!(
            !(host.asks_over_tcp && host.incoming.is_some()),
            "received in two ways"
        );
        if host.asks_over_tcp {
            let got = has.saturating_sub(host.have).min(RATE);
            host.have += got;
            host.by_tcp += got;
            return;
        }
        let Some(incoming) = host.incoming else {
            return;
        };
        if has == host.have {
            host.flows.on_waiting(now, OBJECT);
        }
        let is_moving = host.mover == Process::Running && sender == Process::Running;
        let is_over = incoming.is_abandoned && host.mover == Process::Running
            || incoming.is_stopped && is_moving
            || host.have == LEN;
        if is_over {
            host.incoming = None;
            assert_eq!(
                host.flows.on_ended(incoming.flow),
                Some((OBJECT, Direction::In))
            );
            let before = &mut self.hosts[index - 1];
            if let Some(flow) = incoming.sent_as.filter(|_| before.mover != Process::Gone) {
                before.flows.on_ended(flow);
            }
        } else if is_moving && incoming.sent_as.is_some() && has > host.have {
            for (flow, object, end_bytes) in host.flows.wants_memory() {
                assert_eq!((flow, object), (incoming.flow, OBJECT));
                assert!(host.have < end_bytes && end_bytes <= LEN);
                assert!(host.flows.on_memory(now, flow, end_bytes));
            }
            let got = (has - host.have).min(RATE);
            let moved = host.flows.on_moved(now, incoming.flow, host.have + got);
            assert_eq!(moved, Some((OBJECT, host.have)));
            host.have += got;
            host.by_mpi += got;
        }
    }

    fn step(&mut self) {
        self.now += STEP_NS;
        if !self.unheard.is_empty() && self.below(2) == 0 {
            self.hear();
        }
        for index in 1..self.hosts.len() {
            let host = &self.hosts[index];
            let is_idle = !host.asks_over_tcp && !host.flows.is_receiving(OBJECT);
            if host.have < LEN && is_idle {
                self.ask(index);
            }
            self.receive(index);
        }
        for index in 0..self.hosts.len() {
            if self.hosts[index].flows.is_overdue(self.now) {
                self.end_mover(index);
            }
        }
    }

    /// The host is told to get the rest elsewhere; the flow that it has must end first.
    fn redirect(&mut self, index: usize) {
        let now = self.now;
        let host = &mut self.hosts[index];
        host.asks_over_tcp = false;
        let told = host.flows.stop(now, OBJECT, Some(Direction::In));
        if let Some(incoming) = host.incoming.as_mut().filter(|i| told.contains(&i.flow)) {
            incoming.is_stopped = true;
            if let Some(flow) = incoming.sent_as {
                self.hosts[index - 1].flows.stop_one(now, flow);
            }
        }
    }

    fn finish(&mut self) {
        for _ in 0..3_000 {
            if self
                .hosts
                .iter()
                .all(|h| h.have == LEN && !h.flows.is_busy())
            {
                break;
            }
            self.step();
        }
        for (index, host) in self.hosts.iter().enumerate().skip(1) {
            assert_eq!(host.have, LEN, "host {index} waits forever: {host:?}");
            assert_eq!(
                host.by_mpi + host.by_tcp,
                LEN,
                "host {index} got bytes twice"
            );
            assert!(
                !host.flows.holds(OBJECT),
                "host {index} keeps memory forever"
            );
        }
    }
}

#[test]
fn every_host_gets_all_whichever_movers_die_stand_still_or_come_late() {
    let mut by_mpi = 0;
    for seed in 0..1_000 {
        let n = 2 + (seed % 6) as usize;
        let mut world = World::new(n, seed);
        let n_hosts = n as u64;
        for index in 0..n {
            if world.below(8) > 0 {
                let number = 1 + u64::from(world.below(10) == 0);
                world.start_mover(index, number);
            }
        }
        // A host that is asked before the controller has heard of movers sends over TCP.
        while !world.unheard.is_empty() && seed % 5 > 0 {
            world.hear();
        }
        for _ in 0..world.below(6) {
            for _ in 0..world.below(30) {
                world.step();
            }
            let victim = world.below(n_hosts) as usize;
            match world.below(5) {
                // As with `mpiexec`: if one rank ends, all do.
                0 => (0..n).for_each(|index| world.end_mover(index)),
                1 => world.end_mover(victim),
                2 if world.hosts[victim].mover == Process::Running => {
                    world.hosts[victim].mover = Process::Stopped;
                }
                3 => world.start_mover(victim, 3),
                _ if victim > 0 => world.redirect(victim),
                _ => {}
            }
        }
        world.finish();
        by_mpi += world.hosts.iter().map(|h| h.by_mpi).sum::<u64>();
    }
    assert!(by_mpi > 1_000 * LEN, "most comes by MPI: {}", by_mpi / LEN);
}

#[test]
fn without_a_mover_at_both_ends_in_one_world_there_is_no_way_by_mpi() {
    let mut transfers = Transfers::default();
    let (one, other) = (HostId(1), HostId(2));
    transfers.on_mover(one, Some(rank(5, 0)));
    assert_eq!(transfers.mover_between(one, other), None);
    transfers.on_mover(other, Some(rank(6, 1)));
    assert_eq!(transfers.mover_between(one, other), None);
    transfers.on_mover(other, Some(rank(5, 1)));
    assert_eq!(transfers.mover_between(one, other), Some(rank(5, 0)));
    transfers.on_host_down(one, &mut Vec::new());
    assert_eq!(transfers.mover_between(one, other), None);
}

#[test]
fn an_object_is_not_asked_for_again_by_mpi_while_it_may_still_come() {
    let mut flows = Flows::default();
    flows.on_mover(rank(1, 1));
    let from = Some(rank(1, 0));
    let (flow, _) = flows.receive(0, OBJECT, from, (0, LEN), PIECE).unwrap();
    assert_eq!(flows.receive(0, OBJECT, from, (0, LEN), PIECE), None);
    assert_eq!(flows.stop(0, OBJECT, None), [flow.flow]);
    assert!(flows.stop(0, OBJECT, None).is_empty(), "told once");
    assert!(flows.is_receiving(OBJECT));
    flows.on_ended(flow.flow);
    assert!(!flows.is_receiving(OBJECT));
    assert!(flows.receive(0, OBJECT, from, (0, LEN), PIECE).is_some());
}

#[test]
fn memory_is_wanted_as_bytes_arrive_and_the_time_it_takes_is_not_the_movers() {
    let mut flows = Flows::default();
    flows.on_mover(rank(1, 1));
    let len_bytes = 1 << 30;
    let range = (5, len_bytes);
    let (flow, _) = flows
        .receive(0, OBJECT, Some(rank(1, 0)), range, PIECE)
        .unwrap();
    let flow = flow.flow;
    assert_eq!(
        flows.on_moved(0, flow, 6),
        None,
        "MPI cannot write where no memory is"
    );
    let (mut now, mut room, mut have) = (0, 5, 5);
    while have < len_bytes {
        for (of, object, end_bytes) in flows.wants_memory() {
            assert_eq!((of, object), (flow, OBJECT));
            // Room for a window of messages, and not much more.
            assert!(end_bytes > room && end_bytes - have <= 16 << 20);
            now += 2 * STALL_NS;
            assert!(flows.on_memory(now, flow, end_bytes));
            room = end_bytes;
        }
        assert!(!flows.is_overdue(now));
        assert!(room == len_bytes || room - have >= 4 * u64::from(PIECE));
        let next = (have + u64::from(PIECE)).min(len_bytes);
        assert_eq!(flows.on_moved(now, flow, next), Some((OBJECT, have)));
        have = next;
    }
    assert!(flows.wants_memory().is_empty());
}

#[test]
fn messages_of_any_size_get_memory_for_four_of_them() {
    let mut flows = Flows::default();
    flows.on_mover(rank(1, 1));
    let piece_bytes = 1 << 30;
    let range = (0, u64::MAX);
    flows
        .receive(0, OBJECT, Some(rank(1, 0)), range, piece_bytes)
        .unwrap();
    let mut room = 0;
    while let [(flow, _, end_bytes)] = flows.wants_memory()[..] {
        assert!(end_bytes - room <= 8 << 20, "in steps");
        room = end_bytes;
        assert!(flows.on_memory(0, flow, end_bytes));
    }
    assert!(room > 2 * u64::from(piece_bytes));
}

#[test]
fn a_flow_that_was_stopped_gets_no_more_memory() {
    let mut flows = Flows::default();
    flows.on_mover(rank(1, 1));
    flows.receive(0, OBJECT, Some(rank(1, 0)), (0, LEN), PIECE);
    let [(flow, _, end_bytes)] = flows.wants_memory()[..] else {
        panic!("it has none");
    };
    flows.stop(0, OBJECT, Some(Direction::In));
    assert!(flows.wants_memory().is_empty());
    assert!(!flows.on_memory(0, flow, end_bytes));
}

#[test]
fn a_mover_that_does_not_end_what_it_is_told_to_is_killed_once() {
    let mut flows = Flows::default();
    flows.on_mover(rank(1, 1));
    let landing = Landing {
        mover: rank(1, 0),
        tag: 1,
        piece_bytes: PIECE,
    };
    let flow = flows.send(0, OBJECT, landing, (0, LEN), 0).unwrap();
    assert!(!flows.is_overdue(2 * STALL_NS), "the receiver may be slow");
    flows.stop_one(2 * STALL_NS, flow.flow);
    assert!(!flows.is_overdue(3 * STALL_NS));
    assert!(flows.is_overdue(3 * STALL_NS + 1));
    assert!(!flows.is_overdue(4 * STALL_NS));
    assert_eq!(flows.mover(), None, "nothing new is given to it");
}

#[test]
fn no_more_flows_are_open_than_a_mover_takes() {
    let mut flows = Flows::default();
    flows.on_mover(rank(1, 1));
    let mut receive = |number| {
        let object = ObjectId(number);
        flows.receive(0, object, Some(rank(1, 0)), (0, LEN), PIECE)
    };
    for number in 0..MAX_FLOWS as u64 {
        assert!(receive(number).is_some());
    }
    assert_eq!(receive(1 << 20), None);
}
