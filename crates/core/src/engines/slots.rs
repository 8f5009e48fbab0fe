//! The engine slots, and which of them the scheduler may be looking for: those with room, idle ones, those with tasks
//! of their own, those with tasks that could be taken back.
//!
//! Whoever changes an engine has it looked at again before the next decision, so nothing is searched for: the work for a
//! task does not grow with the number of engines.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::ops::{Deref, Index, IndexMut};

use super::{Engine, State};

const NONE: u32 = u32::MAX;

/// Engines by a small number: those with the same number are in one list, in the order in which they came.
#[derive(Clone, Debug, Default)]
struct ByNumber {
    /// First and last of each list.
    lists: Vec<(u32, u32)>,
    /// A bit for each list that is not empty.
    occupied: Vec<u64>,
    /// Previous and next of each engine.
    links: Vec<(u32, u32)>,
    len: usize,
}

impl ByNumber {
    fn insert(&mut self, number: u32, id: u32) {
        let (list, at) = (number as usize, id as usize);
        if list >= self.lists.len() {
            self.lists.resize(list + 1, (NONE, NONE));
            self.occupied.resize(list / 64 + 1, 0);
        }
        if at >= self.links.len() {
            self.links.resize(at + 1, (NONE, NONE));
        }
        let before = self.lists[list].1;
        self.links[at] = (before, NONE);
        if before == NONE {
            self.lists[list].0 = id;
            self.occupied[list / 64] |= 1 << (list % 64);
        } else {
            self.links[before as usize].1 = id;
        }
        self.lists[list].1 = id;
        self.len += 1;
    }

    fn remove(&mut self, number: u32, id: u32) {
        let list = number as usize;
        let (previous, next) = self.links[id as usize];
        if previous == NONE {
            self.lists[list].0 = next;
        } else {
            self.links[previous as usize].1 = next;
        }
        if next == NONE {
            self.lists[list].1 = previous;
        } else {
            self.links[next as usize].0 = previous;
        }
        if self.lists[list].0 == NONE {
            self.occupied[list / 64] &= !(1 << (list % 64));
        }
        self.len -= 1;
    }

    /// The lowest number that an engine has.
    fn lowest(&self) -> Option<u32> {
        let mut words = self.occupied.iter().enumerate();
        let (index, word) = words.find(|(_, word)| **word != 0)?;
        Some((index * 64) as u32 + word.trailing_zeros())
    }

    fn first(&self, number: u32) -> Option<u32> {
        self.lists
            .get(number as usize)
            .map(|list| list.0)
            .filter(|id| *id != NONE)
    }

    /// Those with the lowest numbers first, each list from its front.
    fn ascending(&self) -> impl Iterator<Item = u32> + '_ {
        let numbers =
            (self.occupied.iter().enumerate()).flat_map(|(index, word)| bits(index, *word));
        numbers.flat_map(|number| self.list(number))
    }

    /// Those with the highest numbers first, each list from its front.
    fn descending(&self) -> impl Iterator<Item = u32> + '_ {
        let words = self.occupied.iter().enumerate().rev();
        let numbers = words.flat_map(|(index, word)| {
            let mut numbers: smallvec::SmallVec<[u32; 8]> = bits(index, *word).collect();
            numbers.reverse();
            numbers
        });
        numbers.flat_map(|number| self.list(number))
    }

    fn list(&self, number: u32) -> impl Iterator<Item = u32> + '_ {
        let next = |id: &u32| Some(self.links[*id as usize].1).filter(|id| *id != NONE);
        std::iter::successors(self.first(number), next)
    }
}

/// The numbers whose bits are set in a word.
fn bits(index: usize, word: u64) -> impl Iterator<Item = u32> {
    let next = |word: &u64| Some(*word & (*word - 1)).filter(|word| *word != 0);
    let words = std::iter::successors(Some(word).filter(|word| *word != 0), next);
    words.map(move |word| (index * 64) as u32 + word.trailing_zeros())
}

/// Where an engine is listed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Place {
    /// If it has room: the least depth that it accepts, and its outstanding tasks.
    room: Option<(u16, u32)>,
    is_idle: bool,
    takes_pinned: bool,
    /// Number of bits of the number of its tasks that could be taken back: it changes seldom.
    tail_bits: u32,
}

impl Place {
    fn of(engine: &Engine) -> Self {
        let has_room = engine.has_room();
        let min_depth = match engine.floor() {
            Some(floor) if !engine.stack.is_empty() => floor + 1,
            _ => 0,
        };
        Self {
            room: has_room.then_some((min_depth, engine.outstanding)),
            is_idle: engine.state == State::Up && engine.outstanding == 0 && engine.stealing == 0,
            takes_pinned: engine.can_take_pinned(),
            tail_bits: u32::BITS - n_in_tail(engine).leading_zeros(),
        }
    }
}

/// Number of an engine's tasks that could be taken back.
fn n_in_tail(engine: &Engine) -> u32 {
    if engine.stack.is_empty() {
        engine.n_stealable()
    } else {
        engine.n_stealable_nested()
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
    /// Engines with tasks that could be taken back, by the number of bits of their number.
    tails: ByNumber,
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
        let (before, now) = (self.places[index], Place::of(&self.slots[index]));
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
        if before.tail_bits != now.tail_bits {
            if before.tail_bits > 0 {
                self.tails.remove(before.tail_bits, id);
            }
            if now.tail_bits > 0 {
                self.tails.insert(now.tail_bits, id);
            }
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
            Some((self.slots[id as usize].load(), id))
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
            engine.has_room() && engine.accepts(depth) && allows(engine)
        };
        let best = match only {
            Some(only) if n_only < n_rooms => {
                let there = only.filter_map(|id| self.slots.get(id as usize));
                let fitting = there.filter(|engine| fits(engine));
                fitting
                    .min_by_key(|e| (e.load(), e.last_used))
                    .map(|e| e.id.0)
            }
            _ => {
                let mut best: Option<(u32, u32)> = None;
                for rooms in self.rooms_for(depth) {
                    let first = rooms.ascending().find(|id| fits(&self.slots[*id as usize]));
                    let first = first.map(|id| (self.slots[id as usize].load(), id));
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

    /// Whether an engine is idle and another has tasks that could be taken back.
    pub fn may_steal(&mut self) -> bool {
        self.refresh();
        self.idle.len > 0 && self.tails.len > 0
    }

    /// The idle engine after this one in their list, or the first.
    pub fn idle_after(&mut self, previous: Option<u32>) -> Option<u32> {
        self.refresh();
        match previous {
            None => self.idle.first(0),
            Some(id) => Some(self.idle.links[id as usize].1).filter(|id| *id != NONE),
        }
    }

    /// The engines with the most tasks that could be taken back, at most `n`, and most first.
    pub fn longest_tails(&mut self, n: usize) -> smallvec::SmallVec<[u32; 16]> {
        self.refresh();
        let mut longest: smallvec::SmallVec<[u32; 16]> = self.tails.descending().take(n).collect();
        longest.sort_by_key(|id| (Reverse(n_in_tail(&self.slots[*id as usize])), *id));
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
        places.all(|((engine, place), is_changed)| *is_changed || Place::of(engine) == *place)
            && rooms == listed(|p| p.room.is_some())
            && self.idle.len == listed(|p| p.is_idle)
            && self.pinned.len == listed(|p| p.takes_pinned)
            && self.tails.len == listed(|p| p.tail_bits > 0)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_keep_their_order_and_their_numbers() {
        let mut by = ByNumber::default();
        for (number, id) in [(3, 0), (70, 1), (3, 2), (0, 3), (3, 4)] {
            by.insert(number, id);
        }
        assert_eq!(by.ascending().collect::<Vec<_>>(), [3, 0, 2, 4, 1]);
        assert_eq!(by.descending().collect::<Vec<_>>(), [1, 0, 2, 4, 3]);
        assert_eq!(by.lowest(), Some(0));
        by.remove(3, 2);
        by.remove(0, 3);
        assert_eq!(by.lowest(), Some(3));
        assert_eq!(by.ascending().collect::<Vec<_>>(), [0, 4, 1]);
        by.remove(3, 0);
        by.remove(3, 4);
        by.remove(70, 1);
        assert_eq!((by.ascending().count(), by.lowest(), by.len), (0, None, 0));
    }
}
