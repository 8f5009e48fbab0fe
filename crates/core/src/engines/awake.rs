//! Which engines short tasks go to: a wake-up costs as much as many of them.
//!
//! An engine is *asleep* if it has no tasks, and *awake* if it has tasks and all of them are short. Short tasks go to awake
//! engines, the fullest of them first, up to a bound on the work that waits there. Beyond that another engine is woken, the
//! one that fell asleep last, on a host that has a core for it. Only when no host has one do awake engines get more than
//! the bound. Tasks that are long, or whose time is not known, are spread over all engines; they are not counted here.
//!
//! Nobody waits behind a task that turns out to be long if there is another engine. From some time on (the patience of
//! those who steal) its engine is *stuck*: it gets no more short tasks, idle engines take over what waits behind it, and it
//! does not count among the awake ones of its host. As its task may be one of many of its kind, it lets one engine more be
//! woken than there are cores, and lowers the bound. So the number of engines that are tried doubles each time that all
//! were stuck.

use std::collections::{BTreeMap, BTreeSet};

use broadleaf_proto::ids::HostId;
use slab::Slab;

use super::{Engine, State};
use crate::Nanos;
use crate::lists::ByNumber;

/// Width of the steps in which queued work is told apart, as a power of two: 4 us.
const STEP_BITS: u32 = 12;
/// Number of those steps. Longer queues count as equal.
const MAX_STEPS: u64 = 2048;

/// What an engine means for short tasks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Activity {
    /// It gets none, or only as any other task.
    #[default]
    Other,
    /// It has no tasks.
    Asleep,
    /// All its tasks are short; with its queued work in steps if it has room.
    Awake(Option<u32>),
    /// Its tasks should be short, and the one that runs is not.
    Stuck,
}

/// Where an engine is listed here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Spot {
    /// Slot of its host while it is there or will be.
    host: Option<u32>,
    is_present: bool,
    activity: Activity,
    /// Since when it has run its task, unless it is known to have run it for long.
    head_since: Option<Nanos>,
}

/// Numbers of a host's cores and engines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Load {
    cores: u32,
    present: u32,
    asleep: u32,
    awake: u32,
    stuck: u32,
}

impl Load {
    fn has_core(self) -> bool {
        self.awake < self.cores + self.stuck
    }

    fn can_wake(self) -> bool {
        self.asleep > 0 && self.has_core()
    }

    fn count(&mut self, spot: &Spot, by: u32) {
        let n = match spot.activity {
            Activity::Other => None,
            Activity::Asleep => Some(&mut self.asleep),
            Activity::Awake(_) => Some(&mut self.awake),
            Activity::Stuck => Some(&mut self.stuck),
        };
        if let Some(n) = n {
            *n = n.wrapping_add(by);
        }
        if spot.is_present {
            self.present = self.present.wrapping_add(by);
        }
    }
}

/// Where a short task goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Choice {
    /// To this engine.
    Engine(u32),
    /// Nowhere yet: awake engines will have room before another one could do anything for it.
    Wait,
    /// Where any other task would go: all engines are busy with long tasks.
    Any,
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub(super) struct Wakefulness {
    slots: BTreeMap<HostId, u32>,
    loads: Slab<Load>,
    n_present: usize,
    n_awake: usize,
    n_stuck: u32,
    /// Sleeping engines by the slot of their host.
    asleep: ByNumber,
    /// Awake engines with room, by their queued work in steps.
    rooms: ByNumber,
    /// Slots of hosts where an engine may be woken.
    can_wake: BTreeSet<u32>,
    /// Engines that have run their task for some time, the longest first; there is one list.
    heads: ByNumber,
    /// Since when, by engine.
    began: Vec<Nanos>,
}

fn steps(work_ns: Nanos) -> u32 {
    (work_ns >> STEP_BITS).min(MAX_STEPS) as u32
}

impl Wakefulness {
    /// A host has this many cores.
    pub fn set_cores(&mut self, host: HostId, n_cores: u32) {
        let loads = &mut self.loads;
        let slot = self.slots.entry(host).or_insert_with(|| {
            let load = Load::default();
            loads.insert(load) as u32
        });
        loads[*slot as usize].cores = n_cores.max(1);
        let slot = *slot;
        self.note_whether_can_wake(slot);
    }

    fn note_whether_can_wake(&mut self, slot: u32) {
        match self.loads.get(slot as usize) {
            Some(load) if load.can_wake() => self.can_wake.insert(slot),
            _ => self.can_wake.remove(&slot),
        };
    }

    /// A host without engines is gone.
    pub fn forget_host(&mut self, host: HostId) {
        if let Some(slot) = self.slots.remove(&host) {
            self.loads.remove(slot as usize);
        }
    }

    pub fn spot_of(&self, engine: &Engine) -> Spot {
        let is_present = engine.state != State::Gone;
        let host = is_present.then(|| self.slots.get(&engine.host).copied());
        let host = host.flatten();
        let offers = &engine.offers;
        let is_reached = engine.state == State::Up && !engine.is_away;
        let is_free = host.is_some() && is_reached && offers.n_stacked() == 0;
        let activity = if !is_free || offers.n_long() > 0 {
            Activity::Other
        } else if offers.outstanding() == 0 {
            Activity::Asleep
        } else if engine.is_late {
            Activity::Stuck
        } else {
            Activity::Awake(engine.has_room().then(|| steps(offers.short_ns())))
        };
        let runs = offers.outstanding() > 0 && !engine.is_late;
        Spot {
            host,
            is_present,
            activity,
            head_since: runs.then_some(engine.head_since),
        }
    }

    pub fn move_to(&mut self, id: u32, before: &Spot, now: &Spot) {
        // Most moves do not change it.
        let slots = [before.host, now.host];
        let could_wake = slots.map(|slot| self.can_wake_in(slot));
        self.leave(id, before, now);
        self.enter(id, before, now);
        for (slot, could_wake) in slots.into_iter().zip(could_wake) {
            if let Some(changed) = slot.filter(|_| self.can_wake_in(slot) != could_wake) {
                self.note_whether_can_wake(changed);
            }
        }
    }

    /// Whether the load of the host in this slot lets an engine be woken there.
    fn can_wake_in(&self, slot: Option<u32>) -> bool {
        let load = slot.and_then(|slot| self.loads.get(slot as usize));
        load.is_some_and(|load| load.can_wake())
    }

    fn leave(&mut self, id: u32, before: &Spot, now: &Spot) {
        if before.head_since != now.head_since && before.head_since.is_some() {
            self.heads.remove(0, id);
        }
        if let Some(load) = before
            .host
            .and_then(|slot| self.loads.get_mut(slot as usize))
        {
            load.count(before, 1_u32.wrapping_neg());
        }
        self.n_present -= usize::from(before.is_present);
        self.n_stuck -= u32::from(before.activity == Activity::Stuck);
        match (before.activity, before.host) {
            (Activity::Asleep, Some(host)) => self.asleep.remove(host, id),
            (Activity::Awake(room), _) => {
                self.n_awake -= 1;
                if let Some(steps) = room {
                    self.rooms.remove(steps, id);
                }
            }
            _ => {}
        }
    }

    fn enter(&mut self, id: u32, before: &Spot, now: &Spot) {
        if let Some(since) = now
            .head_since
            .filter(|_| before.head_since != now.head_since)
        {
            let index = id as usize;
            if index >= self.began.len() {
                self.began.resize(index + 1, 0);
            }
            self.began[index] = since;
            // Those of one batch may come in another order.
            let began = &self.began;
            self.heads
                .insert_before(0, id, |other| began[other as usize] > since);
        }
        if let Some(load) = now.host.and_then(|slot| self.loads.get_mut(slot as usize)) {
            load.count(now, 1);
        }
        self.n_present += usize::from(now.is_present);
        self.n_stuck += u32::from(now.activity == Activity::Stuck);
        match (now.activity, now.host) {
            (Activity::Asleep, Some(host)) => self.asleep.insert(host, id),
            (Activity::Awake(room), _) => {
                self.n_awake += 1;
                if let Some(steps) = room {
                    self.rooms.insert(steps, id);
                }
            }
            _ => {}
        }
    }

    /// Where a short task goes, if more than `bound_ns` of work on each awake engine is a reason to wake another.
    pub fn choose(&self, bound_ns: Nanos) -> Choice {
        let open = self
            .rooms
            .highest_below(steps(bound_ns) / (1 + self.n_stuck));
        let open = open.and_then(|steps| self.rooms.last(steps));
        let woken = || {
            let host = self.can_wake.first()?;
            self.asleep.last(*host)
        };
        let fuller = || self.rooms.first(self.rooms.lowest()?);
        match open.or_else(woken).or_else(fuller) {
            Some(id) => Choice::Engine(id),
            None if self.n_awake > 0 => Choice::Wait,
            None => Choice::Any,
        }
    }

    /// Whether an engine may be woken on any host, or on this one.
    pub fn can_wake(&self, host: Option<HostId>) -> bool {
        match host {
            None => !self.can_wake.is_empty(),
            Some(host) => {
                let slot = self.slots.get(&host);
                let load = slot.and_then(|slot| self.loads.get(*slot as usize));
                load.is_some_and(|load| load.has_core())
            }
        }
    }

    /// The engine whose task has run for longest, without those that are known to have run theirs for long.
    pub fn first_head(&self) -> Option<u32> {
        self.heads.first(0)
    }

    /// Engines that are there or will be: on all hosts, or on this one.
    pub fn n_present(&self, host: Option<HostId>) -> usize {
        match host {
            None => self.n_present,
            Some(host) => {
                let slot = self.slots.get(&host);
                slot.map_or(0, |slot| self.loads[*slot as usize].present as usize)
            }
        }
    }

    /// Whether the counts and lists are those of these engines.
    pub fn is_consistent<'a>(&self, spots: &(impl Iterator<Item = &'a Spot> + Clone)) -> bool {
        let mut loads = self.loads.clone();
        for (_, load) in &mut loads {
            let cores = load.cores;
            *load = Load {
                cores,
                ..Load::default()
            };
        }
        for spot in spots.clone() {
            if let Some(load) = spot.host.and_then(|slot| loads.get_mut(slot as usize)) {
                load.count(spot, 1);
            }
        }
        let count = |is: fn(&Spot) -> bool| spots.clone().filter(|spot| is(spot)).count();
        let can_wake = loads.iter().filter(|(_, load)| load.can_wake());
        let n_rooms = count(|s| matches!(s.activity, Activity::Awake(Some(_))));
        loads.iter().eq(self.loads.iter())
            && can_wake
                .map(|(slot, _)| slot as u32)
                .eq(self.can_wake.iter().copied())
            && self.n_present == count(|s| s.is_present)
            && self.n_stuck as usize == count(|s| s.activity == Activity::Stuck)
            && self.n_awake == count(|s| matches!(s.activity, Activity::Awake(_)))
            && self.asleep.len == count(|s| s.activity == Activity::Asleep)
            && (self.rooms.len, self.rooms.ascending().count()) == (n_rooms, n_rooms)
            && self.heads.len == count(|s| s.head_since.is_some())
    }
}
