//! Links to hosts that outlive their connections, and processes that are stopped for a while.
//!
//! A network is cut, a connection is reset, or a process is stopped. Both sides find that out by their own [`Liveness`], the
//! relay dials by [`Redial`], and the link goes on with what was on its way. What is simulated here is the network and the
//! three messages by which a link is resumed.
//!
//! A host may be given up only if something kept it from speaking for most of the limit, and a link whose network works
//! carries on soon.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use broadleaf_core::liveness::{Limits, Liveness, Verdict};
use broadleaf_core::redial::{Attempt, Redial};
use broadleaf_core::{Input, Nanos};
use broadleaf_proto::ids::{ClientId, EngineId, HostId};

use crate::Mutation;
use crate::cluster::{Cluster, Event, NodeEvent};
use crate::peers::hosts::RelayMessage;

const MS: Nanos = 1_000_000;
/// How long a host may be silent.
const HOST_LIMITS: Limits = Limits {
    silent_ns: 2_500 * MS,
    gone_ns: 8_000 * MS,
    reset_ns: 4_000 * MS,
};
/// How long the controller may be silent.
const CONTROLLER_LIMITS: Limits = Limits {
    silent_ns: 900 * MS,
    ..HOST_LIMITS
};
/// The longest time from sending to arrival, and between two ticks of a machine that judges, twice.
const SLACK_NS: Nanos = 4_000 * MS;
/// A relay waits for the controller's answer on a new connection this long.
const ANSWER_NS: Nanos = 2_000 * MS;
/// The system of a process notices this long after a cut that its connection is broken.
const UNCONFIRMED_NS: Nanos = 6_000 * MS;

/// Who may be stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Actor {
    Controller,
    Relay(HostId),
    Client(ClientId),
    Engine(u32),
}

/// What happens to links.
#[derive(Clone, Copy, Debug)]
pub(crate) enum LinkEvent {
    /// The network of a host is cut, or its connection is reset.
    Breaks(HostId),
    /// The connection may carry on by itself.
    Recovers(HostId),
    /// A relay's liveness is due.
    RelayTick(HostId),
    /// A relay's system says that connection of this number is broken.
    RelayLost(HostId, u32),
    /// A relay's next attempt to dial is due.
    Dials(HostId),
    /// An attempt has not succeeded.
    AttemptFails(HostId, u32),
    /// The controller's answer to an attempt: its connection will have this number.
    Answered(HostId, u32, u32),
}

/// What arrives at the driver because of links.
#[derive(Clone, Copy, Debug)]
pub(crate) enum LinkInput {
    Tick,
    Pong(HostId),
    /// The connection of this number is broken; the peer's system may have said that it does not know it.
    Lost(HostId, u32, bool),
    /// An attempt has reached the controller.
    Hello(HostId, u32),
    /// The relay has answered over the connection of this number.
    Resumes(HostId, u32),
    /// The host was cut off, or may go.
    Closes(HostId),
}

/// The link between the controller and one relay.
#[derive(Debug)]
pub(crate) struct HostLink {
    /// Which host, for the relay that comes after this one.
    name: u32,
    /// What waits for a connection, in order.
    held: VecDeque<Event>,
    /// Both sides use the same connection.
    is_connected: bool,
    /// Counts connections.
    number: u32,
    /// When its connection was reset last.
    reset_at: Nanos,
    /// Until when its network is cut.
    cut_until: Nanos,
    /// Until when the connection carries nothing because of a cut.
    quiet_until: Nanos,
    liveness: Liveness,
    redial: Redial,
    attempt: u32,
    /// The relay's process has ended unnoticed.
    has_ended: bool,
    /// From when to when something kept it from speaking.
    outages: Vec<(Nanos, Nanos)>,
}

/// All links to hosts, and who is stopped.
#[derive(Debug)]
pub(crate) struct Links {
    pub(crate) of_hosts: BTreeMap<HostId, HostLink>,
    /// The controller's.
    liveness: Liveness,
    is_ticking: bool,
    /// Hosts that the driver believes to be away, and the processes of their engines.
    away: BTreeMap<HostId, Vec<(EngineId, u32)>>,
    /// Hosts whose links are closed for good.
    given_up: BTreeSet<HostId>,
    /// Until when processes are, or were, stopped.
    stopped_until: BTreeMap<Actor, Nanos>,
    /// When the controller was stopped.
    controller_stops: Vec<(Nanos, Nanos)>,
    /// Until when the connections of clients are broken.
    clients: BTreeMap<ClientId, Nanos>,
    /// Links that went on after the driver had missed the host, hosts that were given up, and stops.
    pub(crate) rejoined: u32,
    pub(crate) lost: u32,
    pub(crate) stops: u32,
}

impl Default for Links {
    fn default() -> Self {
        Self {
            of_hosts: BTreeMap::new(),
            liveness: Liveness::asking(HOST_LIMITS),
            is_ticking: false,
            away: BTreeMap::new(),
            given_up: BTreeSet::new(),
            stopped_until: BTreeMap::new(),
            controller_stops: Vec::new(),
            clients: BTreeMap::new(),
            rejoined: 0,
            lost: 0,
            stops: 0,
        }
    }
}

/// How much of the time from then until now these periods cover, at most.
fn covered(periods: &[(Nanos, Nanos)], since: Nanos, now: Nanos) -> Nanos {
    let parts = periods
        .iter()
        .map(|(from, to)| now.min(*to).saturating_sub(since.max(*from)));
    parts.sum()
}

impl Links {
    /// Whether what is sent over the link to a host arrives. One that is closed passes on what was on its way.
    pub(crate) fn carries(&self, now: Nanos, host: HostId) -> bool {
        let link = self.of_hosts.get(&host);
        link.is_none_or(|l| l.is_connected && l.quiet_until <= now && l.held.is_empty())
    }

    pub(crate) fn is_away(&self, host: HostId) -> bool {
        self.away.contains_key(&host)
    }

    pub(crate) fn is_given_up(&self, host: HostId) -> bool {
        self.given_up.contains(&host)
    }

    /// Keeps what arrives over a link that carries nothing.
    pub(crate) fn hold(&mut self, host: HostId, event: Event) {
        if let Some(link) = self.of_hosts.get_mut(&host) {
            link.held.push_back(event);
        }
    }

    /// When a process that is stopped goes on.
    pub(crate) fn goes_on_at(&self, now: Nanos, actor: Actor) -> Option<Nanos> {
        let until = self.stopped_until.get(&actor).copied();
        until.filter(|until| *until > now)
    }

    /// When a process that was stopped went on, or will; 0 if it never was.
    pub(crate) fn last_stop(&self, actor: Actor) -> Nanos {
        self.stopped_until.get(&actor).copied().unwrap_or(0)
    }

    /// Until when a client's connection is broken.
    pub(crate) fn client_until(&self, client: ClientId) -> Nanos {
        self.clients.get(&client).copied().unwrap_or(0)
    }
}

impl Cluster {
    /// A relay has dialled in.
    pub(crate) fn open_link(&mut self, host: HostId, name: u32) {
        let link = HostLink {
            name,
            held: VecDeque::new(),
            is_connected: true,
            number: 0,
            reset_at: 0,
            cut_until: 0,
            quiet_until: 0,
            liveness: Liveness::listening(CONTROLLER_LIMITS),
            redial: Redial::new(MS, ANSWER_NS),
            attempt: 0,
            has_ended: false,
            outages: Vec::new(),
        };
        self.links_to_hosts.of_hosts.insert(host, link);
    }

    /// The controller has welcomed a relay.
    pub(crate) fn on_link_up(&mut self, host: HostId) {
        let (now, links) = (self.now, &mut self.links_to_hosts);
        links.liveness.on_up(now, host);
        let was_ticking = std::mem::replace(&mut links.is_ticking, true);
        if let Some(link) = links.of_hosts.get_mut(&host) {
            link.liveness.on_up(now, HostId::CONTROLLER);
            self.wait_for_relay_tick(host);
        }
        if !was_ticking {
            self.wait_for_host_tick();
        }
    }

    /// The controller has learnt that a relay is gone. Returns false if it was known.
    pub(crate) fn on_link_down(&mut self, host: HostId) -> bool {
        let links = &mut self.links_to_hosts;
        links.liveness.on_down(host);
        links.away.remove(&host);
        links.of_hosts.remove(&host);
        links.given_up.insert(host)
    }

    fn wait_for_host_tick(&mut self) {
        match self.links_to_hosts.liveness.next_tick() {
            Some(at) => {
                let delay = at.saturating_sub(self.now);
                self.after(delay, Event::Node(NodeEvent::Link(LinkInput::Tick)));
            }
            None => self.links_to_hosts.is_ticking = false,
        }
    }

    fn wait_for_relay_tick(&mut self, host: HostId) {
        let link = self.links_to_hosts.of_hosts.get(&host);
        if let Some(at) = link.and_then(|link| link.liveness.next_tick()) {
            let delay = at.saturating_sub(self.now);
            self.after(delay, Event::Link(LinkEvent::RelayTick(host)));
        }
    }

    fn wait_to_dial(&mut self, host: HostId) {
        let link = self.links_to_hosts.of_hosts.get(&host);
        if let Some(at) = link.and_then(|link| link.redial.next_tick()) {
            let delay = at.saturating_sub(self.now);
            self.after(delay, Event::Link(LinkEvent::Dials(host)));
        }
    }

    pub(crate) fn on_link_event(&mut self, event: LinkEvent) -> Result<(), String> {
        match event {
            LinkEvent::Breaks(host) => self.break_link(host),
            LinkEvent::Recovers(host) => return self.deliver_held(host),
            LinkEvent::RelayTick(host) => return self.relay_judges(host),
            LinkEvent::RelayLost(host, number) => {
                let now = self.now;
                if let Some(link) = self.relays_link(host)
                    && link.number == number
                {
                    link.is_connected = false;
                    link.liveness.on_broken(now, HostId::CONTROLLER, false);
                    self.begin_to_dial(host);
                }
            }
            LinkEvent::Dials(host) => self.dial(host),
            LinkEvent::AttemptFails(host, attempt) => {
                let now = self.now;
                let is_said = self.plan.mutation != Mutation::FailuresUnsaid;
                if let Some(link) = self.relays_link(host)
                    && link.attempt == attempt
                {
                    link.attempt += 1;
                    if is_said {
                        link.redial.on_attempt(now, Attempt::Failed);
                    }
                    self.wait_to_dial(host);
                }
            }
            LinkEvent::Answered(host, attempt, number) => self.relay_resumes(host, attempt, number),
        }
        Ok(())
    }

    pub(crate) fn on_link_input(&mut self, input: LinkInput) -> Result<(), String> {
        match input {
            LinkInput::Tick => return self.judge_hosts(),
            LinkInput::Pong(host) => return self.on_host_heard(host),
            LinkInput::Lost(host, number, is_reset) => {
                let now = self.now;
                let links = &mut self.links_to_hosts;
                let link = links.of_hosts.get_mut(&host);
                if let Some(link) = link.filter(|link| link.number == number) {
                    link.is_connected = false;
                    if links.liveness.on_broken(now, host, is_reset) {
                        return self.on_host_silent(host);
                    }
                }
            }
            LinkInput::Hello(host, attempt) => {
                let links = &mut self.links_to_hosts;
                let is_cut = |link: &HostLink| link.cut_until > self.now;
                if let Some(link) = links.of_hosts.get_mut(&host)
                    && !is_cut(link)
                {
                    // From here on, nothing arrives over the connection before.
                    link.is_connected = false;
                    link.number += 1;
                    let answered = LinkEvent::Answered(host, attempt, link.number);
                    let delay = 1 + self.random.time(40 * MS);
                    self.after(delay, Event::Link(answered));
                }
            }
            LinkInput::Resumes(host, number) => {
                let now = self.now;
                let link = self.links_to_hosts.of_hosts.get_mut(&host);
                let Some(link) = link.filter(|link| link.number == number) else {
                    return Ok(()); // Another attempt came after it.
                };
                if link.cut_until > now {
                    let delay = link.cut_until - now;
                    let input = NodeEvent::Link(LinkInput::Resumes(host, number));
                    self.after(delay, Event::Node(input));
                    return Ok(());
                }
                link.is_connected = true;
                link.quiet_until = 0;
                self.on_host_heard(host)?;
                return self.deliver_held(host);
            }
            LinkInput::Closes(host) => return self.give_up(host),
        }
        Ok(())
    }

    /// The link whose relay is there to use it.
    fn relays_link(&mut self, host: HostId) -> Option<&mut HostLink> {
        let link = self.links_to_hosts.of_hosts.get_mut(&host);
        link.filter(|link| !link.has_ended)
    }

    fn break_link(&mut self, host: HostId) {
        let again = self.random.chance(50);
        let delay = self.random.below(self.plan.busy_ns);
        if again {
            self.after(delay, Event::Link(LinkEvent::Breaks(host)));
        }
        let (is_reset, first) = (self.random.chance(25), self.random.chance(50));
        let lasts = if self.random.chance(30) {
            self.random.below(12_000 * MS)
        } else {
            self.random.time(6_000 * MS)
        };
        // The system tries again after doubling pauses.
        let waits = self.random.below(lasts.min(2_000 * MS));
        let delays = [0, 0].map(|_| self.random.time(1_000 * MS));
        let now = self.now;
        let Some(link) = self.relays_link(host) else {
            return;
        };
        if !link.is_connected || link.quiet_until > now {
            return;
        }
        let number = link.number;
        if is_reset {
            // Some systems say so when they are next sent something.
            link.is_connected = false;
            link.reset_at = now;
            let [here, there] = if first { delays } else { [0, delays[0]] };
            let lost = NodeEvent::Link(LinkInput::Lost(host, number, true));
            self.after(here, Event::Node(lost));
            self.after(there, Event::Link(LinkEvent::RelayLost(host, number)));
            return;
        }
        link.cut_until = now + lasts;
        link.quiet_until = now + lasts + waits;
        let (quiet_ns, outage) = (link.quiet_until - now, (now, link.quiet_until));
        link.outages.push(outage);
        self.after(quiet_ns, Event::Link(LinkEvent::Recovers(host)));
        if lasts > UNCONFIRMED_NS {
            let lost = NodeEvent::Link(LinkInput::Lost(host, number, false));
            self.after(UNCONFIRMED_NS, Event::Node(lost));
            let lost = LinkEvent::RelayLost(host, number);
            self.after(UNCONFIRMED_NS + delays[0], Event::Link(lost));
        }
    }

    /// What was on its way arrives, if there is a connection.
    fn deliver_held(&mut self, host: HostId) -> Result<(), String> {
        let now = self.now;
        let Some(link) = self.links_to_hosts.of_hosts.get_mut(&host) else {
            return Ok(());
        };
        if !link.is_connected || link.quiet_until > now {
            return Ok(());
        }
        let mut held = std::mem::take(&mut link.held);
        if self.plan.mutation == Mutation::ReversesLinks {
            held.make_contiguous().reverse();
        }
        for event in held {
            let is_lost = match self.plan.mutation {
                Mutation::LosesReports => matches!(event, Event::Node(_)),
                Mutation::LosesOrders => !matches!(event, Event::Node(_)),
                _ => false,
            };
            if !(is_lost && self.random.chance(20)) {
                self.step(event)?;
            }
        }
        Ok(())
    }

    fn begin_to_dial(&mut self, host: HostId) {
        let now = self.now;
        if self.plan.mutation == Mutation::NeverDials {
            return;
        }
        if let Some(link) = self.relays_link(host) {
            link.redial.begin(now);
        }
        self.wait_to_dial(host);
    }

    fn dial(&mut self, host: HostId) {
        let now = self.now;
        let delay = 1 + self.random.time(40 * MS);
        let Some(link) = self.relays_link(host) else {
            return;
        };
        if !link.redial.on_tick(now) {
            return self.wait_to_dial(host);
        }
        let attempt = link.attempt;
        let connect_ns = link.redial.connect_ns();
        let fails_in = if link.cut_until > now {
            connect_ns
        } else {
            let hello = NodeEvent::Link(LinkInput::Hello(host, attempt));
            self.after(delay, Event::Node(hello));
            ANSWER_NS
        };
        let fails = LinkEvent::AttemptFails(host, attempt);
        self.after(fails_in, Event::Link(fails));
    }

    /// The controller has answered an attempt.
    fn relay_resumes(&mut self, host: HostId, attempt: u32, number: u32) {
        let (now, delay) = (self.now, 1 + self.random.time(40 * MS));
        let Some(link) = self.relays_link(host) else {
            return;
        };
        if link.attempt != attempt || link.cut_until > now {
            return;
        }
        link.attempt += 1;
        link.redial.on_resumed();
        link.liveness.heard(now, HostId::CONTROLLER);
        let resumes = NodeEvent::Link(LinkInput::Resumes(host, number));
        self.after(delay, Event::Node(resumes));
    }

    /// Something has arrived at a relay.
    pub(crate) fn on_controller_heard(&mut self, host: HostId) {
        let now = self.now;
        if let Some(link) = self.relays_link(host)
            && link.liveness.heard(now, HostId::CONTROLLER)
        {
            link.redial.on_heard();
        }
    }

    fn relay_judges(&mut self, host: HostId) -> Result<(), String> {
        let (now, mut verdicts) = (self.now, Vec::new());
        let Some(link) = self.relays_link(host) else {
            return Ok(());
        };
        link.liveness.on_tick(now, &mut verdicts);
        for verdict in verdicts {
            match verdict {
                Verdict::Silent(_) => self.begin_to_dial(host),
                Verdict::Gone(_) => {
                    self.check_left(host)?;
                    self.lose_host(host);
                }
                Verdict::Ask(_) => {}
            }
        }
        self.wait_for_relay_tick(host);
        Ok(())
    }

    /// A relay's process has ended. Returns whether its system can say so.
    pub(crate) fn end_link(&mut self, host: HostId) -> bool {
        let links = &self.links_to_hosts;
        let is_stopped = links.goes_on_at(self.now, Actor::Relay(host)).is_some();
        let carries = links.carries(self.now, host) && !is_stopped;
        if carries {
            self.links_to_hosts.of_hosts.remove(&host);
        } else if let Some(link) = self.links_to_hosts.of_hosts.get_mut(&host) {
            link.has_ended = true;
        }
        carries
    }

    fn judge_hosts(&mut self) -> Result<(), String> {
        let mut verdicts = Vec::new();
        let liveness = &mut self.links_to_hosts.liveness;
        if self.plan.mutation == Mutation::JudgesAfterStop {
            while let Some(due) = liveness.next_tick().filter(|due| *due < self.now) {
                liveness.on_tick(due, &mut verdicts);
            }
        }
        liveness.on_tick(self.now, &mut verdicts);
        for verdict in verdicts {
            match verdict {
                Verdict::Ask(host) => {
                    self.tell_relay(host, RelayMessage::Ping);
                }
                Verdict::Silent(host) => self.on_host_silent(host)?,
                Verdict::Gone(host) => {
                    self.check_gone(host)?;
                    self.give_up(host)?;
                }
            }
        }
        self.check_links()?;
        self.wait_for_host_tick();
        Ok(())
    }

    /// The controller closes a link, and the host ends. Returns whether that is told over the link.
    pub(crate) fn close_host(&mut self, host: HostId) -> bool {
        let carries = self.links_to_hosts.carries(self.now, host);
        if carries {
            self.lose_host(host);
        } else {
            let closes = NodeEvent::Link(LinkInput::Closes(host));
            self.after(0, Event::Node(closes));
        }
        carries
    }

    /// The controller's side closes a link for good.
    fn give_up(&mut self, host: HostId) -> Result<(), String> {
        let links = &mut self.links_to_hosts;
        let name = links.of_hosts.get(&host).map(|link| link.name);
        links.lost += u32::from(name.is_some());
        self.end_host(host);
        self.node(NodeEvent::Input(Input::HostDown { host }))?;
        if let Some(name) = name {
            let delay = 1 + self.random.time(500 * MS);
            self.after(delay, Event::HostStarts(name));
        }
        Ok(())
    }

    fn on_host_silent(&mut self, host: HostId) -> Result<(), String> {
        let engines = self.controller.engines().into_iter();
        let there = engines.filter(|info| self.controller.host_of(info.engine) == host);
        let there = there.map(|info| (info.engine, info.pid)).collect();
        self.links_to_hosts.away.insert(host, there);
        if self.plan.mutation == Mutation::AbsenceUnsaid {
            return Ok(());
        }
        self.feed(Input::HostAway { host })
    }

    /// Something has arrived from a host.
    pub(crate) fn on_host_heard(&mut self, host: HostId) -> Result<(), String> {
        let links = &mut self.links_to_hosts;
        if !links.liveness.heard(self.now, host) {
            return Ok(());
        }
        links.rejoined += 1;
        let before = links.away.remove(&host).unwrap_or_default();
        self.check_kept(host, &before)?;
        if self.plan.mutation == Mutation::ReturnUnsaid {
            return Ok(());
        }
        self.feed(Input::HostBack { host })
    }

    /// Stops a process for a while.
    fn stop(&mut self, actor: Actor) {
        let lasts = if self.random.chance(20) {
            self.random.below(12_000 * MS)
        } else {
            self.random.time(4_000 * MS)
        };
        let (now, until) = (self.now, self.now + lasts);
        let links = &mut self.links_to_hosts;
        if links.goes_on_at(now, actor).is_some() {
            return;
        }
        links.stops += 1;
        links.stopped_until.insert(actor, until);
        match actor {
            Actor::Controller => links.controller_stops.push((now, until)),
            Actor::Relay(host) => {
                if let Some(link) = links.of_hosts.get_mut(&host) {
                    link.outages.push((now, until));
                }
            }
            Actor::Client(_) | Actor::Engine(_) => {}
        }
    }

    /// Stops some process, or breaks a client's connection.
    pub(crate) fn stop_some(&mut self) {
        let hosts: Vec<HostId> = self.hosts.keys().copied().collect();
        let host = hosts.get(self.random.below(hosts.len() as u64) as usize);
        let alive = self.processes.values().filter(|p| p.alive);
        let alive: Vec<u32> = alive.map(|p| p.pid).collect();
        let pid = alive.get(self.random.below(alive.len() as u64) as usize);
        let client = ClientId(self.random.below(self.plan.n_clients.into()) as u32);
        let actor = match self.random.below(5) {
            0 => Some(Actor::Controller),
            1 => host.copied().map(Actor::Relay),
            2 => pid.copied().map(Actor::Engine),
            3 => Some(Actor::Client(client)),
            _ => {
                let until = self.now + self.random.time(6_000 * MS);
                self.links_to_hosts.clients.insert(client, until);
                None
            }
        };
        if let Some(actor) = actor {
            self.stop(actor);
        }
    }

    /// Engines that live have their variables: no process was given up in favour of another one.
    fn check_kept(&self, host: HostId, before: &[(EngineId, u32)]) -> Result<(), String> {
        let engines = self.counters().engines;
        for (engine, pid) in before {
            let lives = self.process_of(host, *engine) == Some(*pid);
            let now = engines[engine.0 as usize].pid;
            if lives && now != *pid {
                return Err(format!("{engine:?} was process {pid}, and is {now}"));
            }
        }
        Ok(())
    }

    /// A host is given up only if something kept it from speaking.
    fn check_gone(&self, host: HostId) -> Result<(), String> {
        let Some(link) = self.links_to_hosts.of_hosts.get(&host) else {
            return Err(format!("{host:?} is given up before its end is told"));
        };
        if link.has_ended {
            return Ok(());
        }
        let limit_ns = HOST_LIMITS.reset_ns;
        let since = self.now.saturating_sub(HOST_LIMITS.gone_ns + SLACK_NS);
        let outage_ns = covered(&link.outages, since, self.now);
        if outage_ns < limit_ns / 2 {
            return Err(format!(
                "{host:?} is given up although it was kept from speaking for only {outage_ns} ns: {link:?}"
            ));
        }
        Ok(())
    }

    /// A relay leaves only if something kept the controller from speaking.
    fn check_left(&self, host: HostId) -> Result<(), String> {
        let links = &self.links_to_hosts;
        let Some(link) = links.of_hosts.get(&host) else {
            return Ok(());
        };
        let since = self.now.saturating_sub(HOST_LIMITS.gone_ns + SLACK_NS);
        let outage_ns = covered(&link.outages, since, self.now)
            + covered(&links.controller_stops, since, self.now);
        if outage_ns < HOST_LIMITS.gone_ns / 2 {
            return Err(format!(
                "{host:?} leaves although it could not hear anything for only {outage_ns} ns: {link:?}"
            ));
        }
        Ok(())
    }

    /// A link carries on soon after its network works and both its processes run.
    fn check_links(&self) -> Result<(), String> {
        let links = &self.links_to_hosts;
        let controller = links.last_stop(Actor::Controller);
        for (host, link) in &links.of_hosts {
            let relay = links.last_stop(Actor::Relay(*host));
            let works_since = controller.max(relay).max(link.quiet_until);
            let works_since = works_since.max(link.reset_at);
            let is_heard = !links.is_away(*host);
            if !link.has_ended && !is_heard && works_since + SLACK_NS < self.now {
                return Err(format!("nothing carries on the link to {host:?}: {link:?}"));
            }
        }
        Ok(())
    }
}
