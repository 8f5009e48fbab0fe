//! The engine slots, and which of them the scheduler may be looking for: those with room, idle ones, those with tasks
//! of their own, those with tasks that could be taken back, those that have been drained.
//!
//! Whoever changes an engine has it looked at again before the next decision, so nothing is searched for: the work for a
//! task does not grow with the number of engines.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::ops::{Deref, Index, IndexMut};

use broadleaf_proto::ids::HostId;

use super::awake::{Choice, Spot, Wakefulness};
use super::{Engine, State};
use crate::Nanos;
use crate::lists::ByNumber;
use crate::tasks::targets::Targets;

/// Where an engine is listed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "they are independent facts")]
struct Place {
    /// If it has room: the least depth that it accepts, and its outstanding tasks.
    room: Option<(u16, u32)>,
    is_idle: bool,
    is_up: bool,
    is_draining: bool,
    is_drained: bool,
    has_pinned: bool,
    takes_pinned: bool,
    /// Whether its task has run for so long that its tail is taken from in any case.
    is_late: bool,
    /// Number of bits of the number of its tasks that could be taken back: it changes seldom.
    tail_bits: u32,
    spot: Spot,
}

impl Place {
    fn of(engine: &Engine, awake: &Wakefulness) -> Self {
        let has_room = engine.has_room();
        Self {
            room: has_room.then(|| (engine.offers.min_depth(), engine.offers.outstanding())),
            is_idle: engine.is_idle(),
            is_up: engine.state == State::Up,
            is_draining: engine.state == State::Draining,
            is_drained: engine.state == State::Draining && engine.is_drained(),
            has_pinned: engine.pinned.len() > 0,
            takes_pinned: engine.can_take_pinned(),
            is_late: engine.is_late,
            tail_bits: u32::BITS - engine.n_stealable().leading_zeros(),
            spot: awake.spot_of(engine),
        }
    }
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub(crate) struct Engines {
    slots: Vec<Engine>,
    /// Those that may have changed since they were last looked at, each once.
    changed: Vec<u32>,
    is_changed: Vec<bool>,
    places: Vec<Place>,
    /// Engines with room that accept any task, by their outstanding tasks.
    rooms: ByNumber,
    /// Those whose tasks wait for others, by the least depth that they accept, then by their outstanding tasks.
    deeper: BTreeMap<u16, ByNumber>,
    /// Idle engines; there is one list.
    idle: ByNumber,
    /// Engines that may get a task of their own; there is one list.
    pinned: ByNumber,
    /// Engines for which tasks of their own are queued; there is one list.
    queued: ByNumber,
    /// Those that take any tasks; there is one list.
    up: ByNumber,
    /// Engines that are being drained and have finished; there is one list.
    drained: ByNumber,
    n_draining: usize,
    /// Engines with tasks that could be taken back, by the number of bits of their number.
    tails: ByNumber,
    /// Those of them whose task has run for long, likewise.
    late_tails: ByNumber,
    awake: Wakefulness,
    /// How often an engine was looked at.
    visits: u64,
}

impl Deref for Engines {
    type Target = [Engine];

    fn deref(&self) -> &[Engine] {
        &self.slots
    }
}

impl Index<usize> for Engines {
    type Output = Engine;

    fn index(&self, index: usize) -> &Engine {
        &self.slots[index]
    }
}

impl IndexMut<usize> for Engines {
    fn index_mut(&mut self, index: usize) -> &mut Engine {
        self.mark(index);
        &mut self.slots[index]
    }
}

impl<'a> IntoIterator for &'a Engines {
    type Item = &'a Engine;
    type IntoIter = std::slice::Iter<'a, Engine>;

    fn into_iter(self) -> Self::IntoIter {
        self.slots.iter()
    }
}

impl<'a> IntoIterator for &'a mut Engines {
    type Item = &'a mut Engine;
    type IntoIter = std::slice::IterMut<'a, Engine>;

    fn into_iter(self) -> Self::IntoIter {
        (0..self.slots.len()).for_each(|index| self.mark(index));
        self.slots.iter_mut()
    }
}

impl FromIterator<Engine> for Engines {
    fn from_iter<T: IntoIterator<Item = Engine>>(engines: T) -> Self {
        let mut all = Self::default();
        engines.into_iter().for_each(|engine| all.push(engine));
        all
    }
}

impl Engines {
    /// Adds a slot.
    pub fn push(&mut self, engine: Engine) {
        self.slots.push(engine);
        self.places.push(Place::default());
        self.is_changed.push(false);
        self.mark(self.slots.len() - 1);
    }

    pub fn get_mut(&mut self, index: usize) -> Option<&mut Engine> {
        (index < self.slots.len()).then(|| &mut self[index])
    }

    fn mark(&mut self, index: usize) {
        if !self.is_changed[index] {
            self.is_changed[index] = true;
            self.changed.push(index as u32);
        }
    }

    /// Looks at all engines that may have changed.
    pub fn refresh(&mut self) {
        for index in 0..self.changed.len() {
            self.look_at(self.changed[index]);
        }
        self.changed.clear();
    }

    fn look_at(&mut self, id: u32) {
        let index = id as usize;
        self.visits += 1;
        self.is_changed[index] = false;
        let (before, now) = (
            self.places[index],
            Place::of(&self.slots[index], &self.awake),
        );
        if before == now {
            return;
        }
        self.places[index] = now;
        if before.room != now.room {
            if let Some((depth, outstanding)) = before.room {
                self.rooms_at(depth).remove(outstanding, id);
                if depth > 0 && self.deeper.get(&depth).is_some_and(|rooms| rooms.len == 0) {
                    self.deeper.remove(&depth);
                }
            }
            if let Some((depth, outstanding)) = now.room {
                self.rooms_at(depth).insert(outstanding, id);
            }
        }
        if before.is_idle != now.is_idle {
            move_in(&mut self.idle, now.is_idle, id);
        }
        if before.takes_pinned != now.takes_pinned {
            move_in(&mut self.pinned, now.takes_pinned, id);
        }
        if before.has_pinned != now.has_pinned {
            move_in(&mut self.queued, now.has_pinned, id);
        }
        if before.is_up != now.is_up {
            move_in(&mut self.up, now.is_up, id);
        }
        self.n_draining -= usize::from(before.is_draining);
        self.n_draining += usize::from(now.is_draining);
        if before.is_drained != now.is_drained {
            move_in(&mut self.drained, now.is_drained, id);
        }
        if (before.is_late, before.tail_bits) != (now.is_late, now.tail_bits) {
            if before.tail_bits > 0 {
                self.tails_of(before.is_late).remove(before.tail_bits, id);
            }
            if now.tail_bits > 0 {
                self.tails_of(now.is_late).insert(now.tail_bits, id);
            }
        }
        if before.spot != now.spot {
            self.awake.move_to(id, &before.spot, &now.spot);
        }
    }

    fn tails_of(&mut self, is_late: bool) -> &mut ByNumber {
        if is_late {
            &mut self.late_tails
        } else {
            &mut self.tails
        }
    }

    fn rooms_at(&mut self, depth: u16) -> &mut ByNumber {
        if depth == 0 {
            &mut self.rooms
        } else {
            self.deeper.entry(depth).or_default()
        }
    }

    /// The lists of engines with room that accept tasks of this depth.
    fn rooms_for(&self, depth: u16) -> impl Iterator<Item = &ByNumber> {
        let deeper = self.deeper.range(..=depth).map(|(_, rooms)| rooms);
        std::iter::once(&self.rooms).chain(deeper)
    }

    /// The engine with the fewest outstanding tasks that accepts tasks of this depth; of several, the one that has had
    /// as few for longest.
    pub fn least_loaded(&mut self, depth: u16) -> Option<u32> {
        self.refresh();
        if self.deeper.is_empty() {
            return self.rooms.lowest().and_then(|n| self.rooms.first(n));
        }
        let firsts = self.rooms_for(depth).filter_map(|rooms| {
            let id = rooms.first(rooms.lowest()?)?;
            Some((self.slots[id as usize].offers.load(), id))
        });
        firsts.min_by_key(|(load, _)| *load).map(|(_, id)| id)
    }

    /// Whether engines differ in the depth of the tasks that they accept.
    pub fn some_wait(&mut self) -> bool {
        self.refresh();
        !self.deeper.is_empty()
    }

    /// As [`Self::least_loaded`], of the engines that `allows`. With `only`, no others need be looked at.
    pub fn least_loaded_of(
        &mut self,
        depth: u16,
        only: Option<&mut dyn Iterator<Item = u32>>,
        n_only: usize,
        allows: impl Fn(&Engine) -> bool,
    ) -> Option<u32> {
        self.refresh();
        let n_rooms: usize = self.rooms_for(depth).map(|rooms| rooms.len).sum();
        let mut visits = 0;
        let mut fits = |engine: &Engine| {
            visits += 1;
            engine.has_room() && engine.offers.accepts(depth) && allows(engine)
        };
        let best = match only {
            Some(only) if n_only < n_rooms => {
                let there = only.filter_map(|id| self.slots.get(id as usize));
                let fitting = there.filter(|engine| fits(engine));
                fitting
                    .min_by_key(|e| (e.offers.load(), e.last_used))
                    .map(|e| e.id.0)
            }
            _ => {
                let mut best: Option<(u32, u32)> = None;
                for rooms in self.rooms_for(depth) {
                    let first = rooms.ascending().find(|id| fits(&self.slots[*id as usize]));
                    let first = first.map(|id| (self.slots[id as usize].offers.load(), id));
                    if first.is_some_and(|first| best.is_none_or(|best| first.0 < best.0)) {
                        best = first;
                    }
                }
                best.map(|(_, id)| id)
            }
        };
        self.visits += visits;
        best
    }

    /// An engine that may get a task of its own, if there is one.
    pub fn next_for_pinned(&mut self) -> Option<u32> {
        self.refresh();
        self.pinned.first(0)
    }

    /// Where a short task goes, if more than `bound_ns` of work on each awake engine is a reason to wake another.
    pub fn choose_for_short(&mut self, bound_ns: Nanos) -> Choice {
        self.refresh();
        self.awake.choose(bound_ns)
    }

    /// Whether an engine may be woken for short tasks: anywhere, or on the host of this one.
    pub fn can_wake(&self, thief: Option<u32>) -> bool {
        let host = thief.map(|id| self.slots[id as usize].host);
        self.awake.can_wake(host)
    }

    /// Notes which tasks have run for this long by now.
    pub fn note_late(&mut self, now: Nanos, patience_ns: Nanos) {
        self.refresh();
        while let Some(id) = self.awake.first_head() {
            if self.slots[id as usize].head_since + patience_ns > now {
                break;
            }
            self[id as usize].is_late = true;
            self.refresh();
        }
    }

    /// When the next task will have run for this long.
    pub fn next_late_at(&self, patience_ns: Nanos) -> Option<Nanos> {
        let first = self.awake.first_head()?;
        Some(self.slots[first as usize].head_since + patience_ns)
    }

    /// A host has this many cores.
    pub fn set_cores(&mut self, host: HostId, n_cores: u32) {
        self.awake.set_cores(host, n_cores);
    }

    /// A host is gone, and so are its engines.
    pub fn forget_host(&mut self, host: HostId) {
        self.refresh();
        self.awake.forget_host(host);
    }

    /// How many engines there are or will be: on all hosts, or on this one.
    pub fn n_present(&mut self, host: Option<HostId>) -> usize {
        self.refresh();
        self.awake.n_present(host)
    }

    /// How many are being drained.
    pub fn n_draining(&mut self) -> usize {
        self.refresh();
        self.n_draining
    }

    /// Those that are being drained and have finished.
    pub fn drained(&mut self) -> Vec<u32> {
        self.refresh();
        self.drained.ascending().collect()
    }

    /// Whether one of those that take any tasks is as wanted; with `only`, one of these.
    pub fn some_up(&mut self, only: Option<&Targets>, is_wanted: impl Fn(&Engine) -> bool) -> bool {
        self.refresh();
        let mut visits = 0;
        let mut is_it = |id: u32| {
            visits += 1;
            let engine = self.slots.get(id as usize);
            engine.is_some_and(|e| e.state == State::Up && is_wanted(e))
        };
        let found = match only {
            Some(only) => only.iter().any(&mut is_it),
            None => self.up.ascending().any(&mut is_it),
        };
        self.visits += visits;
        found
    }

    /// Those for which tasks of their own are queued.
    pub fn with_queued(&mut self) -> Vec<u32> {
        self.refresh();
        self.queued.ascending().collect()
    }

    /// Whether an engine is idle and another has tasks that could be taken back.
    pub fn may_steal(&mut self) -> bool {
        self.refresh();
        self.idle.len > 0 && self.tails.len + self.late_tails.len > 0
    }

    /// The idle engine after this one in their list, or the first.
    pub fn idle_after(&mut self, previous: Option<u32>) -> Option<u32> {
        self.refresh();
        match previous {
            None => self.idle.first(0),
            Some(id) => self.idle.after(id),
        }
    }

    /// The engines with the most tasks that could be taken back, at most `n`, and most first: those whose task has run for
    /// long, or the others.
    pub fn longest_tails(&mut self, is_late: bool, n: usize) -> smallvec::SmallVec<[u32; 16]> {
        self.refresh();
        let tails = self.tails_of(is_late);
        let mut longest: smallvec::SmallVec<[u32; 16]> = tails.descending().take(n).collect();
        longest.sort_by_key(|id| (Reverse(self.slots[*id as usize].n_stealable()), *id));
        self.visits += longest.len() as u64;
        longest
    }

    /// How often an engine was looked at, for a message or for a decision.
    pub fn visits(&self) -> u64 {
        self.visits
    }

    /// Whether each engine is listed where it belongs, if it has not changed.
    pub fn is_consistent(&self) -> bool {
        let places = self.slots.iter().zip(&self.places);
        let mut places = places.zip(&self.is_changed);
        let rooms: usize = self.rooms_for(u16::MAX).map(|rooms| rooms.len).sum();
        let listed = |is: fn(&Place) -> bool| self.places.iter().filter(|p| is(p)).count();
        let is_place = |engine, place| Place::of(engine, &self.awake) == place;
        places.all(|((engine, place), is_changed)| *is_changed || is_place(engine, *place))
            && rooms == listed(|p| p.room.is_some())
            && self.idle.len == listed(|p| p.is_idle)
            && self.pinned.len == listed(|p| p.takes_pinned)
            && self.queued.len == listed(|p| p.has_pinned)
            && self.n_draining == listed(|p| p.is_draining)
            && self.up.len == listed(|p| p.is_up)
            && self.drained.len == listed(|p| p.is_drained)
            && self.tails.len == listed(|p| p.tail_bits > 0 && !p.is_late)
            && self.late_tails.len == listed(|p| p.tail_bits > 0 && p.is_late)
            && self
                .awake
                .is_consistent(&self.places.iter().map(|p| &p.spot))
            && self
                .rooms_for(u16::MAX)
                .all(|rooms| rooms.ascending().count() == rooms.len)
            && self.tails.descending().count() == self.tails.len
    }
}

fn move_in(list: &mut ByNumber, is_in: bool, id: u32) {
    if is_in {
        list.insert(0, id);
    } else {
        list.remove(0, id);
    }
}
