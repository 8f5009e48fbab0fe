//! The hosts that are or were there: when each ends by itself, and whether it is wanted.
//!
//! The controller's own host is number 0 and not listed; every other one is a relay, which starts engines as long as it is
//! connected.

use std::collections::{BTreeMap, BTreeSet};

use broadleaf_proto::ids::HostId;

use crate::Nanos;
use crate::counters::HostCounters;

#[derive(Clone, Debug)]
struct Host {
    name: String,
    is_up: bool,
    release: Release,
    /// When it ends by itself, and how much time it had left when it came.
    time: Option<(Nanos, Nanos)>,
    /// The timer of its draining; 0 for none.
    timer_at: Nanos,
}

/// What a relay says of its host when it connects.
pub(crate) struct NewHost {
    pub name: String,
    pub n_engines: u32,
    pub n_cores: u32,
    pub ends_in_ns: Option<Nanos>,
}

/// Whether a host is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Release {
    No,
    /// It leaves with its last engine.
    WhenEmpty,
    /// It was told to leave.
    Told,
}

/// See the module. A host that is gone stays listed until one with its name takes over its slots.
#[derive(Clone, Debug, Default)]
pub(crate) struct Hosts {
    by_id: BTreeMap<HostId, Host>,
    /// Connected ones that leave with their last engine.
    releasing: BTreeSet<HostId>,
    /// Number of connected ones that end by themselves.
    n_ending: usize,
    /// Those of an earlier controller that have yet to say what they have.
    inherited: BTreeSet<HostId>,
}

impl Hosts {
    /// A host of an earlier controller, which may come back.
    pub fn inherit(&mut self, now: Nanos, host: HostId, name: String) {
        self.add(now, host, name, None);
        self.inherited.insert(host);
    }

    /// A host says what it has: whether it is one of those that have yet to do so.
    pub fn take_inherited(&mut self, host: HostId) -> bool {
        self.inherited.remove(&host)
    }

    /// Whether this relay is connected.
    pub fn is_up(&self, host: HostId) -> bool {
        self.by_id.get(&host).is_some_and(|h| h.is_up)
    }

    /// The relay's name; empty for the controller's own host.
    pub fn name(&self, host: HostId) -> String {
        let host = self.by_id.get(&host);
        host.map(|h| h.name.clone()).unwrap_or_default()
    }

    /// Whether this relay is connected, and engines may be started there.
    pub fn is_wanted(&self, host: HostId) -> bool {
        let host = self.by_id.get(&host);
        host.is_some_and(|h| h.is_up && h.release == Release::No)
    }

    /// A relay has connected. It takes over from hosts of the same name, which are forgotten; returns these.
    pub fn add(
        &mut self,
        now: Nanos,
        host: HostId,
        name: String,
        ends_in_ns: Option<Nanos>,
    ) -> Vec<HostId> {
        let same = self.by_id.iter().filter(|(_, h)| h.name == name);
        let former: Vec<HostId> = same.map(|(id, _)| *id).collect();
        self.by_id.retain(|id, _| !former.contains(id));
        let came = Host {
            name,
            is_up: true,
            release: Release::No,
            time: ends_in_ns.map(|ns| (now.saturating_add(ns), ns)),
            timer_at: 0,
        };
        self.by_id.insert(host, came);
        self.recount();
        former
    }

    /// A relay's link is gone. Returns the timer that the host had, 0 for none; `None` if it was not up.
    pub fn lose(&mut self, host: HostId) -> Option<Nanos> {
        let gone = self.by_id.get_mut(&host).filter(|h| h.is_up)?;
        gone.is_up = false;
        self.inherited.remove(&host);
        let timer_at = core::mem::take(&mut gone.timer_at);
        self.recount();
        Some(timer_at)
    }

    /// There is nothing for a later host of its name to take over.
    pub fn forget(&mut self, host: HostId) {
        self.by_id.remove(&host);
    }

    /// Whether a relay with that name is connected.
    pub fn has_named(&self, name: &str) -> bool {
        self.by_id.values().any(|h| h.is_up && h.name == name)
    }

    /// Its timer is set.
    pub fn set_timer(&mut self, host: HostId, at: Nanos) {
        if let Some(host) = self.by_id.get_mut(&host) {
            host.timer_at = at;
        }
    }

    /// The host leaves with its last engine.
    pub fn release(&mut self, host: HostId) {
        let host = self.by_id.get_mut(&host);
        if let Some(host) = host.filter(|h| h.is_up && h.release == Release::No) {
            host.release = Release::WhenEmpty;
        }
        self.recount();
    }

    /// Hosts that leave with their last engine.
    pub fn releasing(&self) -> impl Iterator<Item = HostId> {
        self.releasing.iter().copied()
    }

    /// A host came, went or changed: brings the sets up to date.
    fn recount(&mut self) {
        let up = || self.by_id.iter().filter(|(_, h)| h.is_up);
        let releasing = up().filter(|(_, h)| h.release == Release::WhenEmpty);
        self.releasing = releasing.map(|(id, _)| *id).collect();
        self.n_ending = up().filter(|(_, h)| h.time.is_some()).count();
    }

    /// The host is told to leave.
    pub fn let_go(&mut self, host: HostId) {
        if let Some(host) = self.by_id.get_mut(&host) {
            host.release = Release::Told;
        }
        self.recount();
    }

    /// Its timer has expired.
    pub fn clear_timer(&mut self, host: HostId) {
        if let Some(host) = self.by_id.get_mut(&host) {
            host.timer_at = 0;
        }
    }

    /// Makes a host end within this time, if it would not end sooner. Returns the timer that it
    /// had, 0 for none.
    pub fn end_within(&mut self, now: Nanos, host: HostId, ends_in_ns: Nanos) -> Nanos {
        let Some(host) = self.by_id.get_mut(&host) else {
            return 0;
        };
        let (ends_at, had_ns) = host.time.unwrap_or((Nanos::MAX, ends_in_ns));
        host.time = Some((ends_at.min(now.saturating_add(ends_in_ns)), had_ns));
        let timer_at = core::mem::take(&mut host.timer_at);
        self.recount();
        timer_at
    }

    /// Number of timers that are set.
    pub fn n_timers(&self) -> usize {
        self.by_id.values().filter(|h| h.timer_at != 0).count()
    }

    /// Whether a task that may take this long would end in time on a host. A task longer than the host's whole time does
    /// not wait for a better host.
    pub fn fits(&self, host: HostId, needs_ns: Option<Nanos>, now: Nanos) -> bool {
        match (needs_ns, self.time_of(host)) {
            (Some(needs_ns), Some((ends_at, had_ns))) => {
                now.saturating_add(needs_ns) <= ends_at || needs_ns > had_ns
            }
            _ => true,
        }
    }

    /// When a host ends by itself, and how much time it had left when it came.
    pub fn time_of(&self, host: HostId) -> Option<(Nanos, Nanos)> {
        self.by_id.get(&host).and_then(|h| h.time)
    }

    /// Connected hosts that end by themselves.
    pub fn n_ending(&self) -> usize {
        self.n_ending
    }

    /// The connected hosts: whether each is being released, and when it ends by itself.
    pub fn counters(&self) -> impl Iterator<Item = HostCounters> {
        let up = self.by_id.iter().filter(|(_, h)| h.is_up);
        up.map(|(id, h)| HostCounters {
            host: *id,
            drains: h.release != Release::No,
            ends_at: h.time.map(|(ends_at, _)| ends_at),
        })
    }

    /// The connected relays' hosts.
    pub fn up(&self) -> impl Iterator<Item = HostId> {
        let up = self.by_id.iter().filter(|(_, h)| h.is_up);
        up.map(|(id, _)| *id)
    }

    /// Whether any relay is connected.
    pub fn any_up(&self) -> bool {
        self.by_id.values().any(|h| h.is_up)
    }
}
