//! Which hosts at the other end of this process's links still answer.
//!
//! A pure machine, the same on both sides of a link: the controller *asks* its relays twice a second, and a relay
//! *listens* for its controller's questions. A host that has been silent for a while is said to be silent: it gets no new
//! work, and who dials dials again. One that is silent for longer than the second limit is gone. Each is said once.
//!
//! A connection may also break. If the other side's system says that it knows no such connection, its process has ended or
//! dials again at once, so a short limit is enough. Otherwise a broken connection is no more than silence.
//!
//! Silence counts only while this process listened. A process that was stopped (by a signal, a debugger, a machine that
//! slept) finds its own tick late. It cannot have heard anybody meanwhile, and what was sent to it may still be unread.
//! So a late tick excuses the silence that it lasted, and judges nobody: it asks, and the next tick judges. Only a host
//! that was over the limit at the late tick before is judged by a late one, so a process that is stopped again and again
//! judges, too.

use std::collections::BTreeMap;

use broadleaf_proto::ids::HostId;

use crate::Nanos;

/// Time between two ticks.
pub const TICK_NS: Nanos = 500_000_000;
/// Who has heard all hosts within this time, and only listens, needs no tick.
const QUIET_NS: Nanos = 2 * TICK_NS;

/// Something to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Send the host a ping.
    Ask(HostId),
    /// The host has been silent for longer than the first limit, until it is heard.
    Silent(HostId),
    /// The host is gone: close its link. It is forgotten.
    Gone(HostId),
}

/// Who sends the pings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Asks,
    Listens,
}

#[derive(Clone, Copy, Debug)]
struct Peer {
    /// When its silence began, moved forward by what this process slept through.
    silent_since: Nanos,
    /// It was over the limit at the last tick, which was late.
    is_on_last_call: bool,
    /// It was said to be silent.
    is_silent: bool,
    /// Its system does not know the connection any more.
    is_reset: bool,
    /// When it was last sent a ping; 0 for never.
    asked_at: Nanos,
}

/// How long a host may be silent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Until it is said to be silent.
    pub silent_ns: Nanos,
    /// Until it is gone; no less than that.
    pub gone_ns: Nanos,
    /// Until it is gone if its system does not know the connection any more.
    pub reset_ns: Nanos,
}

/// See the module.
#[derive(Clone, Debug)]
pub struct Liveness {
    part: Part,
    limits: Limits,
    peers: BTreeMap<HostId, Peer>,
    /// The earliest time of the next tick.
    tick_at: Nanos,
}

impl Liveness {
    /// Of a process that sends pings to its peers.
    pub fn asking(limits: Limits) -> Self {
        Self::new(Part::Asks, limits)
    }

    /// Of a process whose peers send the pings.
    pub fn listening(limits: Limits) -> Self {
        Self::new(Part::Listens, limits)
    }

    fn new(part: Part, limits: Limits) -> Self {
        Self {
            part,
            limits,
            peers: BTreeMap::new(),
            tick_at: 0,
        }
    }

    /// A host has connected.
    pub fn on_up(&mut self, now: Nanos, host: HostId) {
        if self.peers.is_empty() {
            self.tick_at = self.tick_at.max(now);
        }
        let peer = Peer {
            silent_since: now,
            is_on_last_call: false,
            is_silent: false,
            is_reset: false,
            asked_at: 0,
        };
        self.peers.insert(host, peer);
    }

    /// The connection to a host broke; `is_reset` if its system said that it knows no such connection. Returns whether that
    /// is news: the host was not silent before.
    pub fn on_broken(&mut self, now: Nanos, host: HostId, is_reset: bool) -> bool {
        let Some(peer) = self.peers.get_mut(&host) else {
            return false;
        };
        if is_reset && !peer.is_reset {
            peer.is_reset = true;
            peer.silent_since = now;
        }
        !std::mem::replace(&mut peer.is_silent, true)
    }

    /// A host's link is closed.
    pub fn on_down(&mut self, host: HostId) {
        self.peers.remove(&host);
    }

    /// Something was received from a host, or it has a connection again. Returns whether it was silent before.
    #[inline]
    pub fn heard(&mut self, now: Nanos, host: HostId) -> bool {
        let Some(peer) = self.peers.get_mut(&host) else {
            return false;
        };
        peer.silent_since = now;
        peer.is_on_last_call = false;
        peer.is_reset = false;
        std::mem::take(&mut peer.is_silent)
    }

    /// Whether a host was said to be silent, and was not heard since.
    pub fn is_silent(&self, host: HostId) -> bool {
        self.peers.get(&host).is_some_and(|peer| peer.is_silent)
    }

    /// A host is sent a ping: because of [`Verdict::Ask`], or before it is due.
    pub fn asked(&mut self, now: Nanos, host: HostId) {
        if let Some(peer) = self.peers.get_mut(&host) {
            peer.asked_at = now;
        }
    }

    /// A host answered the ping that was sent at `asked_at`: the round trip. `None` if no such ping was sent.
    pub fn answered(&self, now: Nanos, host: HostId, asked_at: Nanos) -> Option<Nanos> {
        let peer = self.peers.get(&host)?;
        (asked_at <= peer.asked_at).then(|| now.saturating_sub(asked_at))
    }

    /// When [`Self::on_tick`] must be called. `None` while there is nobody to judge.
    pub fn next_tick(&self) -> Option<Nanos> {
        match self.part {
            Part::Asks => (!self.peers.is_empty()).then_some(self.tick_at),
            Part::Listens => {
                let since = self.peers.values().map(|peer| peer.silent_since).min()?;
                Some(self.tick_at.max(since.saturating_add(QUIET_NS)))
            }
        }
    }

    /// Judges everybody, if that is due; returns whether it was.
    pub fn on_tick(&mut self, now: Nanos, out: &mut Vec<Verdict>) -> bool {
        let Some(due) = self.next_tick().filter(|due| *due <= now) else {
            return false;
        };
        self.tick_at = now + TICK_NS;
        let late_ns = now - due;
        let was_stopped = late_ns > TICK_NS;
        let (part, limits) = (self.part, self.limits);
        self.peers.retain(|host, peer| {
            if was_stopped {
                peer.silent_since = peer.silent_since.saturating_add(late_ns).min(now);
            }
            let silence_ns = now - peer.silent_since;
            let gone_ns = if peer.is_reset {
                limits.reset_ns
            } else {
                limits.gone_ns
            };
            let is_over = silence_ns > gone_ns;
            if is_over && (!was_stopped || peer.is_on_last_call) {
                out.push(Verdict::Gone(*host));
                return false;
            }
            peer.is_on_last_call = is_over;
            let is_silent = silence_ns > limits.silent_ns && !was_stopped;
            if is_silent && !std::mem::replace(&mut peer.is_silent, true) {
                out.push(Verdict::Silent(*host));
            }
            if part == Part::Asks {
                out.push(Verdict::Ask(*host));
            }
            true
        });
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT_NS: Nanos = 20 * TICK_NS;
    const LIMITS: Limits = Limits {
        silent_ns: 4 * TICK_NS,
        gone_ns: LIMIT_NS,
        reset_ns: 4 * TICK_NS,
    };
    const A: HostId = HostId(1);
    const B: HostId = HostId(2);

    fn tick(machine: &mut Liveness, now: Nanos) -> Vec<Verdict> {
        let mut out = Vec::new();
        machine.on_tick(now, &mut out);
        out
    }

    /// Ticks whenever that is due, until this time.
    fn run(machine: &mut Liveness, until: Nanos) -> Vec<Verdict> {
        let mut out = Vec::new();
        while let Some(at) = machine.next_tick().filter(|at| *at <= until) {
            machine.on_tick(at, &mut out);
        }
        out
    }

    fn gone(verdicts: &[Verdict]) -> usize {
        let gone = verdicts.iter().filter(|v| matches!(v, Verdict::Gone(_)));
        gone.count()
    }

    #[test]
    fn a_silent_host_is_gone_once_and_the_others_stay() {
        let mut machine = Liveness::asking(LIMITS);
        machine.on_up(0, A);
        machine.on_up(0, B);
        let first = run(&mut machine, LIMIT_NS);
        assert_eq!(gone(&first), 0, "at the limit, not over it");
        assert_eq!(first.iter().filter(|v| **v == Verdict::Ask(A)).count(), 21);
        machine.heard(LIMIT_NS, B);
        let rest = run(&mut machine, 2 * LIMIT_NS);
        assert_eq!(rest[0], Verdict::Gone(A));
        assert_eq!(gone(&rest), 1);
    }

    #[test]
    fn who_listens_needs_no_tick_while_it_hears_and_never_asks() {
        let mut machine = Liveness::listening(LIMITS);
        machine.on_up(0, HostId::CONTROLLER);
        for beat in 1..100 {
            let now = beat * TICK_NS;
            assert!(machine.next_tick().is_some_and(|at| at > now));
            machine.heard(now, HostId::CONTROLLER);
        }
        let verdicts = run(&mut machine, 200 * TICK_NS);
        let host = HostId::CONTROLLER;
        assert_eq!(verdicts, [Verdict::Silent(host), Verdict::Gone(host)]);
        assert_eq!(machine.next_tick(), None);
    }

    #[test]
    fn a_host_is_silent_until_it_is_heard_and_again_later() {
        let mut machine = Liveness::asking(LIMITS);
        machine.on_up(0, A);
        let silent = |verdicts: Vec<Verdict>| {
            let said = verdicts.iter().filter(|v| **v == Verdict::Silent(A));
            said.count()
        };
        assert_eq!(silent(run(&mut machine, 4 * TICK_NS)), 0, "at the limit");
        assert_eq!(silent(run(&mut machine, 12 * TICK_NS)), 1);
        assert!(machine.is_silent(A));
        assert!(machine.heard(12 * TICK_NS, A));
        assert!(!machine.is_silent(A));
        assert!(!machine.heard(13 * TICK_NS, A));
        assert_eq!(silent(run(&mut machine, 17 * TICK_NS)), 0);
        assert_eq!(silent(run(&mut machine, 20 * TICK_NS)), 1);
    }

    #[test]
    fn a_host_whose_system_forgot_the_connection_has_a_short_limit() {
        let mut machine = Liveness::asking(LIMITS);
        machine.on_up(0, A);
        machine.on_up(0, B);
        run(&mut machine, TICK_NS);
        assert!(machine.on_broken(TICK_NS, A, true));
        assert!(
            !machine.on_broken(TICK_NS + 1, A, true),
            "said once, and counted from the first time"
        );
        assert!(machine.on_broken(TICK_NS, B, false));
        assert_eq!(gone(&run(&mut machine, 5 * TICK_NS)), 0);
        let verdicts = run(&mut machine, 6 * TICK_NS);
        assert_eq!(gone(&verdicts), 1);
        assert!(verdicts.contains(&Verdict::Gone(A)));
        assert!(
            !verdicts.contains(&Verdict::Silent(B)),
            "that was said when it broke"
        );
        assert!(machine.heard(6 * TICK_NS, B));
    }

    #[test]
    fn nobody_is_judged_for_the_time_in_which_this_process_was_stopped() {
        for mut machine in [Liveness::asking(LIMITS), Liveness::listening(LIMITS)] {
            machine.on_up(0, A);
            assert_eq!(gone(&run(&mut machine, 4 * TICK_NS)), 0);
            assert_eq!(gone(&tick(&mut machine, 100 * LIMIT_NS)), 0);
            let until = 100 * LIMIT_NS + LIMIT_NS - 6 * TICK_NS;
            assert_eq!(gone(&run(&mut machine, until)), 0);
            assert_eq!(gone(&run(&mut machine, until + 6 * TICK_NS)), 1);
        }
    }

    #[test]
    fn after_a_stop_it_asks_before_it_judges() {
        let mut machine = Liveness::asking(LIMITS);
        machine.on_up(0, A);
        assert_eq!(gone(&run(&mut machine, LIMIT_NS)), 0);
        // What A answered is unread.
        let now = 2 * LIMIT_NS;
        assert_eq!(tick(&mut machine, now), [Verdict::Ask(A)]);
        machine.heard(now + 1, A);
        assert_eq!(gone(&run(&mut machine, now + LIMIT_NS)), 0);
    }

    #[test]
    fn stops_without_end_do_not_keep_a_host_that_is_gone() {
        let mut machine = Liveness::asking(LIMITS);
        machine.on_up(0, A);
        let found = (1..100).map(|n| tick(&mut machine, n * 4 * TICK_NS));
        let found: Vec<Verdict> = found.flatten().collect();
        assert_eq!(found.iter().filter(|v| **v == Verdict::Gone(A)).count(), 1);
    }

    #[test]
    fn only_a_ping_that_was_sent_has_a_round_trip() {
        let mut machine = Liveness::asking(LIMITS);
        machine.on_up(0, A);
        assert_eq!(machine.answered(9, A, 5), None);
        machine.asked(5, A);
        assert_eq!(machine.answered(9, A, 5), Some(4));
        assert_eq!(machine.answered(9, A, 6), None);
        assert_eq!(machine.answered(9, B, 5), None);
    }
}
