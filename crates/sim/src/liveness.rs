//! A controller and its relays, and nothing but their pings: processes are stopped and go on, links fall silent for a
//! while or for good.
//!
//! After every tick, for each pair of a judge and a host that it judges: a host is given up only if it has said nothing
//! in time, counted in the time in which the judge ran; it is given up at most once, and soon after its time is over. It is
//! said to be silent only after the first limit, and once until it is heard.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, VecDeque};

use broadleaf_core::Nanos;
use broadleaf_core::liveness::{Limits, Liveness, TICK_NS, Verdict};
use broadleaf_proto::HostId;

use crate::random::Random;

const BUSY_NS: Nanos = 240 * TICK_NS;

/// The result of a run of one seed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LivenessOutcome {
    /// Number of hosts that were given up.
    pub gone: u64,
    /// Number of times that a host was said to be silent.
    pub silent: u64,
    /// Number of relays that were connected at the end.
    pub stayed: u64,
    /// Number of times that a process was stopped.
    pub stops: u64,
    /// Number of ticks that found that their process had been stopped.
    pub late_ticks: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Message {
    Ping,
    Pong,
    Closed,
}

/// A direction of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Way {
    from: HostId,
    to: HostId,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Tick(HostId),
    Arrives(Way, Message),
    Stops(HostId, Nanos),
    GoesOn(HostId),
}

/// What is true of a host that a process judges.
#[derive(Clone, Copy, Debug)]
struct Truth {
    /// By the judge's running time: when the last message arrived, read or not.
    arrived: Nanos,
    /// The same, of the last one that it read.
    read: Nanos,
    /// Times that the judge had been stopped by then.
    stops: u64,
    /// A message came too late once.
    was_late: bool,
    /// What the judge says.
    is_silent: bool,
}

impl Truth {
    /// The longest silence that the judge may have counted: a stop counts up to the next tick, and a short one to its
    /// end.
    fn counted(&self, running: Nanos, stops: u64) -> Nanos {
        running - self.arrived + 2 * TICK_NS * (stops - self.stops)
    }
}

struct Process {
    machine: Liveness,
    /// Since when it is stopped.
    stopped_at: Option<Nanos>,
    slept_ns: Nanos,
    stops: u64,
    /// What arrived while it was stopped.
    unread: VecDeque<(Way, Message)>,
    peers: BTreeMap<HostId, Truth>,
}

impl Process {
    fn new(machine: Liveness) -> Self {
        Self {
            machine,
            stopped_at: None,
            slept_ns: 0,
            stops: 0,
            unread: VecDeque::new(),
            peers: BTreeMap::new(),
        }
    }

    /// Its time: that in which it ran.
    fn running(&self, now: Nanos) -> Nanos {
        self.stopped_at.unwrap_or(now) - self.slept_ns
    }

    fn connect(&mut self, host: HostId) {
        self.machine.on_up(0, host);
        let truth = Truth {
            arrived: 0,
            read: 0,
            stops: 0,
            was_late: false,
            is_silent: false,
        };
        self.peers.insert(host, truth);
    }
}

struct World {
    now: Nanos,
    random: Random,
    limit_ns: Nanos,
    processes: BTreeMap<HostId, Process>,
    events: BinaryHeap<Reverse<(Nanos, u64, Event)>>,
    n_events: u64,
    last_arrival: BTreeMap<Way, Nanos>,
    /// Relays whose link carries nothing until this time, or ever.
    silent_until: BTreeMap<HostId, Nanos>,
    /// Relays that may be given up, because they or their links were silent for too long.
    may_go: BTreeSet<HostId>,
    outcome: LivenessOutcome,
}

/// Runs one seed.
///
/// # Errors
/// What went wrong.
pub fn run_liveness(seed: u64) -> Result<LivenessOutcome, String> {
    let mut world = World::new(seed);
    let outcome = world.run();
    outcome.map_err(|what| format!("seed {seed} at {} ns: {what}", world.now))?;
    Ok(world.outcome)
}

impl World {
    fn new(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let limit_ns = (8 + random.below(24)) * TICK_NS;
        let limits = Limits {
            silent_ns: limit_ns / 4,
            gone_ns: limit_ns,
            reset_ns: limit_ns,
        };
        let n_relays = 1 + random.below(6) as u32;
        let mut controller = Process::new(Liveness::asking(limits));
        let mut processes = BTreeMap::new();
        for relay in (1..=n_relays).map(HostId) {
            controller.connect(relay);
            let mut process = Process::new(Liveness::listening(limits));
            process.connect(HostId::CONTROLLER);
            processes.insert(relay, process);
        }
        processes.insert(HostId::CONTROLLER, controller);
        let mut world = Self {
            now: 0,
            random,
            limit_ns,
            processes,
            events: BinaryHeap::new(),
            n_events: 0,
            last_arrival: BTreeMap::new(),
            silent_until: BTreeMap::new(),
            may_go: BTreeSet::new(),
            outcome: LivenessOutcome::default(),
        };
        for host in (0..=n_relays).map(HostId) {
            world.plan_stops(host);
            world.wait_for_tick(host);
        }
        for relay in (1..=n_relays).map(HostId) {
            if world.random.chance(30) {
                let at = world.random.below(BUSY_NS);
                let is_final = world.random.chance(50);
                let mut lasts = world.random.below(2 * limit_ns);
                if !is_final && world.random.chance(50) {
                    // It ends in time, but just then the judge is stopped.
                    lasts = limit_ns - world.random.below(TICK_NS);
                    let judge = if world.random.chance(50) {
                        relay
                    } else {
                        HostId::CONTROLLER
                    };
                    let stop_at = at + lasts - world.random.below(TICK_NS);
                    let stop_ns = 2 * TICK_NS + world.random.below(4 * TICK_NS);
                    world.push(stop_at, Event::Stops(judge, stop_ns));
                }
                if is_final || lasts > limit_ns / 3 {
                    world.may_go.insert(relay);
                }
                let until = if is_final { Nanos::MAX } else { at + lasts };
                world.silent_until.insert(relay, until);
                // It falls silent by then; see `send`.
                world.last_arrival.insert(
                    Way {
                        from: relay,
                        to: relay,
                    },
                    at,
                );
            }
        }
        world
    }

    /// Some processes are stopped once or twice, and some again and again.
    fn plan_stops(&mut self, host: HostId) {
        let stutters = self.random.chance(10);
        // It finds each of its ticks late.
        let is_always_late = stutters && self.random.chance(50);
        let n = if stutters { 80 } else { self.random.below(3) };
        let mut at = self.random.below(BUSY_NS / 4);
        for _ in 0..n {
            let (lasts, runs) = if is_always_late {
                let lasts = 2 * TICK_NS + self.random.below(TICK_NS);
                (lasts, TICK_NS / 2 + self.random.below(TICK_NS / 2))
            } else if stutters {
                let lasts = TICK_NS / 5 + self.random.below(3 * TICK_NS);
                (lasts, self.random.below(TICK_NS))
            } else {
                let lasts = self.random.time(4 * self.limit_ns);
                (lasts, self.random.below(BUSY_NS / 2))
            };
            if lasts > self.limit_ns / 3 {
                let relays = self.processes.keys().copied();
                let all = relays.filter(|h| host == HostId::CONTROLLER || *h == host);
                self.may_go.extend(all);
            }
            self.push(at, Event::Stops(host, lasts));
            at += lasts + runs;
        }
    }

    fn push(&mut self, at: Nanos, event: Event) {
        self.n_events += 1;
        self.events.push(Reverse((at, self.n_events, event)));
    }

    fn wait_for_tick(&mut self, host: HostId) {
        if let Some(at) = self.processes[&host].machine.next_tick() {
            self.push(at.max(self.now), Event::Tick(host));
        }
    }

    /// Sends over a link: in order, after a delay, and never while the link is silent.
    fn send(&mut self, from: HostId, to: HostId, message: Message) {
        let relay = from.max(to);
        let way = Way { from, to };
        let falls_silent = self.last_arrival.get(&Way {
            from: relay,
            to: relay,
        });
        let is_silent = falls_silent.is_some_and(|at| *at <= self.now);
        let until = self.silent_until.get(&relay).filter(|_| is_silent);
        if until == Some(&Nanos::MAX) {
            return;
        }
        let delay = 1 + self.random.time(self.limit_ns / 8);
        let at = (self.now + delay).max(until.copied().unwrap_or(0));
        let at = at.max(self.last_arrival.get(&way).copied().unwrap_or(0) + 1);
        self.last_arrival.insert(way, at);
        self.push(at, Event::Arrives(way, message));
    }

    fn run(&mut self) -> Result<(), String> {
        let end = BUSY_NS + 16 * self.limit_ns;
        while let Some(Reverse((at, _, event))) = self.events.pop() {
            if at > end && self.processes.values().all(|p| p.stopped_at.is_none()) {
                break;
            }
            self.now = at;
            self.step(event)?;
        }
        self.check_end()
    }

    fn step(&mut self, event: Event) -> Result<(), String> {
        match event {
            Event::Tick(host) => {
                if self.processes[&host].stopped_at.is_none() {
                    self.tick(host)?;
                }
            }
            Event::Arrives(way, message) => self.arrives(way, message)?,
            Event::Stops(host, lasts) => {
                if let Some(process) = self.processes.get_mut(&host)
                    && process.stopped_at.is_none()
                {
                    process.stopped_at = Some(self.now);
                    process.stops += 1;
                    self.outcome.stops += 1;
                    self.push(self.now + lasts, Event::GoesOn(host));
                }
            }
            Event::GoesOn(host) => self.goes_on(host)?,
        }
        Ok(())
    }

    fn goes_on(&mut self, host: HostId) -> Result<(), String> {
        let reads_first = self.random.chance(50);
        let Some(process) = self.processes.get_mut(&host) else {
            return Ok(());
        };
        if let Some(at) = process.stopped_at.take() {
            process.slept_ns += self.now - at;
        }
        if reads_first {
            self.read_all(host)?;
            self.tick(host)
        } else {
            self.tick(host)?;
            self.read_all(host)
        }
    }

    fn read_all(&mut self, host: HostId) -> Result<(), String> {
        while let Some(process) = self.processes.get_mut(&host)
            && let Some((way, message)) = process.unread.pop_front()
        {
            self.read(way, message)?;
        }
        Ok(())
    }

    fn arrives(&mut self, way: Way, message: Message) -> Result<(), String> {
        let limit_ns = self.limit_ns;
        let Some(process) = self.processes.get_mut(&way.to) else {
            return Ok(());
        };
        let (now, stops) = (process.running(self.now), process.stops);
        // The stop that the judge is in counts for nothing yet: it ends before the judge reads.
        let ended_stops = stops - u64::from(process.stopped_at.is_some());
        if let Some(truth) = process.peers.get_mut(&way.from) {
            truth.was_late |= truth.counted(now, ended_stops.max(truth.stops)) > limit_ns;
            truth.arrived = now;
            truth.stops = stops;
        }
        if process.stopped_at.is_some() {
            process.unread.push_back((way, message));
            Ok(())
        } else {
            self.read(way, message)
        }
    }

    fn read(&mut self, way: Way, message: Message) -> Result<(), String> {
        let Some(process) = self.processes.get_mut(&way.to) else {
            return Ok(());
        };
        let running = process.running(self.now);
        let Some(truth) = process.peers.get_mut(&way.from) else {
            return Ok(()); // The link is closed.
        };
        truth.read = running;
        if message != Message::Closed
            && process.machine.heard(self.now, way.from) != std::mem::take(&mut truth.is_silent)
        {
            return Err(format!("{:?} hears {:?}: {truth:?}", way.to, way.from));
        }
        match message {
            Message::Ping => {
                self.send(way.to, way.from, Message::Pong);
            }
            Message::Pong => {}
            Message::Closed => {
                process.machine.on_down(way.from);
                process.peers.remove(&way.from);
            }
        }
        self.wait_for_tick(way.to);
        Ok(())
    }

    fn tick(&mut self, host: HostId) -> Result<(), String> {
        let mut verdicts = Vec::new();
        let process = self.processes.get_mut(&host).ok_or("no such process")?;
        let due = process.machine.next_tick();
        if !process.machine.on_tick(self.now, &mut verdicts) {
            return Ok(());
        }
        let was_late = due.is_some_and(|due| self.now - due > TICK_NS);
        self.outcome.late_ticks += u64::from(was_late);
        for verdict in verdicts {
            match verdict {
                Verdict::Ask(peer) => self.send(host, peer, Message::Ping),
                Verdict::Silent(peer) => self.misses(host, peer)?,
                Verdict::Gone(peer) => self.give_up(host, peer)?,
            }
        }
        let process = &self.processes[&host];
        let running = process.running(self.now);
        for (peer, truth) in &process.peers {
            if running - truth.read > self.limit_ns + 2 * TICK_NS {
                return Err(format!(
                    "{host:?} keeps {peer:?}, which has been silent since {truth:?}"
                ));
            }
        }
        self.wait_for_tick(host);
        Ok(())
    }

    fn misses(&mut self, host: HostId, peer: HostId) -> Result<(), String> {
        let limit_ns = self.limit_ns / 4;
        let process = self.processes.get_mut(&host).ok_or("no such process")?;
        let running = process.running(self.now);
        let truth = process.peers.get_mut(&peer).ok_or("it is gone")?;
        // What it has not read yet does not count: dialling in vain does no harm.
        // A stop counts up to the next tick, and one that ends less than a tick after that goes unnoticed.
        let counted_ns = running - truth.read + 3 * TICK_NS * process.stops;
        if counted_ns <= limit_ns || std::mem::replace(&mut truth.is_silent, true) {
            return Err(format!(
                "{host:?} misses {peer:?} after {counted_ns} ns of {limit_ns}: {truth:?}"
            ));
        }
        self.outcome.silent += 1;
        Ok(())
    }

    fn give_up(&mut self, host: HostId, peer: HostId) -> Result<(), String> {
        let process = self.processes.get_mut(&host).ok_or("no such process")?;
        let running = process.running(self.now);
        let truth = process.peers.remove(&peer);
        let truth = truth.ok_or_else(|| format!("{host:?} gave {peer:?} up twice"))?;
        if !truth.was_late && truth.counted(running, process.stops) <= self.limit_ns {
            return Err(format!(
                "{host:?} gave up {peer:?}, which has spoken in time: {truth:?}"
            ));
        }
        self.outcome.gone += 1;
        self.send(host, peer, Message::Closed);
        Ok(())
    }

    fn check_end(&mut self) -> Result<(), String> {
        for relay in self.processes.keys().skip(1) {
            let here = self.processes[relay]
                .peers
                .contains_key(&HostId::CONTROLLER);
            let there = self.processes[&HostId::CONTROLLER]
                .peers
                .contains_key(relay);
            let is_cut = self.silent_until.get(relay) == Some(&Nanos::MAX);
            if here != there || is_cut && here || !self.may_go.contains(relay) && !here {
                return Err(format!(
                    "{relay:?} is connected: {here}, and to the controller: {there}"
                ));
            }
            self.outcome.stayed += u64::from(here);
        }
        Ok(())
    }
}
