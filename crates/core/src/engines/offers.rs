//! The tasks that an engine was offered, in their order: which it may have started, and which can be taken back.
//!
//! Tasks may wait for tasks. While an engine's task waits, the engine runs other tasks on top of it, but only those nested
//! deeper than the waiting one. So an engine's stack holds at most one task of each depth, and tasks of equal depth never
//! hold up a waiting one. There is always progress: among the unfinished tasks, a deepest one waits for nothing, and any
//! waiting engine may run it.

use std::collections::VecDeque;

use broadleaf_proto::ids::{EngineId, TaskKey};
use broadleaf_proto::limits::CLAIM_SLOTS;

use crate::Nanos;

/// What is known about an offer's claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Claim {
    /// It may or may not be claimed.
    Open,
    /// A revoke is in progress, on behalf of this idle engine if any.
    Revoking(Option<EngineId>),
    /// A revoke is in progress, because the engine's task waits for others and the engine takes only deeper ones.
    Returning,
    /// The revoke failed: the engine has it.
    Claimed,
}

/// One entry of an engine's sequence of offers.
#[derive(Clone, Copy, Debug)]
struct Offer {
    /// `None` once done or taken back.
    key: Option<TaskKey>,
    claim: Claim,
    /// It may run on another engine.
    movable: bool,
    /// The nesting depth of its task.
    depth: u16,
    /// How long its task takes, in nanoseconds, if that is known to be short; 0 if not.
    short_ns: u32,
}

impl Offer {
    fn is_takeable(&self) -> bool {
        self.key.is_some() && self.movable && self.claim == Claim::Open
    }

    /// Whether it is being taken back and later ones must not overtake it.
    fn is_returning(&self) -> bool {
        self.key.is_some() && !self.movable && self.claim == Claim::Returning
    }
}

/// A task that waits for others, or has waited.
#[derive(Clone, Copy, Debug)]
struct Suspended {
    /// The offer's number.
    number: u32,
    offer: Offer,
    /// Whether it is waiting. Only the last task of a stack may be running.
    waits: bool,
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub(crate) struct Offers {
    /// In their order, without those of `stack`.
    sequence: VecDeque<Offer>,
    /// The number of the first of the sequence.
    first: u32,
    /// Unfinished tasks that have waited for others, each started while the previous one waited.
    stack: Vec<Suspended>,
    /// Offers that are neither done nor taken back nor waiting for other tasks.
    outstanding: u32,
    /// Offers that could be taken back for another engine.
    takeable: u32,
    /// Unfinished offers whose tasks are not known to be short.
    n_long: u32,
    /// How long the other unfinished offers take, estimated from earlier tasks of their functions.
    short_ns: Nanos,
    /// Offers being taken back that later ones must not overtake: those of mode `Each`.
    returning: u32,
}

impl Offers {
    /// Appends an offer and gives its number.
    pub fn push(&mut self, key: TaskKey, movable: bool, depth: u16, short_ns: u32) -> u32 {
        let number = self.next();
        let offer = Offer {
            key: Some(key),
            claim: Claim::Open,
            movable,
            depth,
            short_ns,
        };
        self.sequence.push_back(offer);
        self.outstanding += 1;
        self.n_long += u32::from(short_ns == 0);
        self.short_ns += Nanos::from(short_ns);
        self.count(offer);
        number
    }

    /// Adds an offer, or its state after a change, to the counts.
    #[inline]
    fn count(&mut self, offer: Offer) {
        if offer.is_takeable() {
            self.takeable += 1;
        } else {
            self.returning += u32::from(offer.is_returning());
        }
    }

    /// Removes an offer, or its state before a change, from the counts.
    #[inline]
    fn discount(&mut self, offer: Offer) {
        if offer.is_takeable() {
            self.takeable -= 1;
        } else {
            self.returning -= u32::from(offer.is_returning());
        }
    }

    /// The number that the next offer gets.
    fn next(&self) -> u32 {
        self.first.wrapping_add(self.sequence.len() as u32)
    }

    fn index_of(&self, number: u32) -> Option<usize> {
        let index = number.wrapping_sub(self.first) as usize;
        self.sequence.get(index)?.key.map(|_| index)
    }

    /// An offer of the sequence.
    fn by_number(&self, number: u32) -> Option<&Offer> {
        self.index_of(number).map(|index| &self.sequence[index])
    }

    /// What is known about an offer in the sequence.
    pub fn claim(&self, number: u32) -> Option<Claim> {
        match self.suspended(number) {
            Some(suspended) => Some(suspended.offer.claim),
            None => self
                .index_of(number)
                .map(|index| self.sequence[index].claim),
        }
    }

    /// Records what was learned about an offer's claim.
    pub fn set_claim(&mut self, number: u32, claim: Claim) {
        if let Some(suspended) = self.stack.iter_mut().find(|s| s.number == number) {
            suspended.offer.claim = claim;
            return;
        }
        let Some(index) = self.index_of(number) else {
            return;
        };
        self.discount(self.sequence[index]);
        self.sequence[index].claim = claim;
        self.count(self.sequence[index]);
    }

    /// Removes an offer; true if it was the head, so that the next is now believed to run.
    pub fn strike(&mut self, number: u32) -> bool {
        if self.stack.is_empty() {
            // The front is always an open offer, and believed to run.
            let is_front = number == self.first;
            return self.take_out(number).is_some() && is_front;
        }
        let was_head = self.head().is_some_and(|(_, head)| head == number);
        if let Some(index) = self.stack.iter().position(|s| s.number == number) {
            let gone = self.stack.remove(index);
            self.outstanding -= u32::from(!gone.waits);
        } else {
            self.take_out(number);
        }
        was_head
    }

    /// Takes an offer out of the sequence.
    fn take_out(&mut self, number: u32) -> Option<Offer> {
        let index = self.index_of(number)?;
        let offer = self.sequence[index];
        self.discount(offer);
        self.sequence[index].key = None;
        self.outstanding -= 1;
        self.n_long -= u32::from(offer.short_ns == 0);
        self.short_ns -= Nanos::from(offer.short_ns);
        while self.sequence.front().is_some_and(|o| o.key.is_none()) {
            self.sequence.pop_front();
            self.first = self.first.wrapping_add(1);
        }
        Some(offer)
    }

    /// Position in the sequence of the offer believed to run, if there is one.
    fn head_index(&self) -> Option<usize> {
        if self.stack.is_empty() {
            return (!self.sequence.is_empty()).then_some(0);
        }
        if self.stack.last().is_some_and(|top| !top.waits) {
            return None;
        }
        let runs = |offer: &Offer| offer.key.is_some() && self.accepts(offer.depth);
        self.sequence.iter().position(runs)
    }

    /// The offer believed to run.
    pub fn head(&self) -> Option<(TaskKey, u32)> {
        if let Some(top) = self.stack.last().filter(|top| !top.waits) {
            return Some((top.offer.key?, top.number));
        }
        let index = self.head_index()?;
        let number = self.first.wrapping_add(index as u32);
        Some((self.sequence[index].key?, number))
    }

    /// Whether this offer, the latest, is believed to run.
    pub fn is_head(&self, key: TaskKey, number: u32) -> bool {
        if self.stack.is_empty() {
            self.outstanding == 1
        } else {
            self.head() == Some((key, number))
        }
    }

    /// Every open offer, oldest first.
    pub fn iter(&self) -> impl Iterator<Item = (u32, TaskKey)> {
        let suspended = self
            .stack
            .iter()
            .filter_map(|s| Some((s.number, s.offer.key?)));
        let others = self
            .sequence
            .iter()
            .enumerate()
            .filter_map(|(i, o)| Some((self.first.wrapping_add(i as u32), o.key?)));
        suspended.chain(others)
    }

    /// Offers behind the head that could be taken back for another engine.
    pub fn n_stealable(&self) -> u32 {
        if self.takeable == 0 {
            return 0;
        }
        let head = self.head_index().map(|index| self.sequence[index]);
        self.takeable - u32::from(head.is_some_and(|o| o.is_takeable()))
    }

    /// Offers behind the head that could be taken back for another engine, latest first.
    pub fn stealable(&self) -> impl Iterator<Item = (u32, TaskKey)> {
        let head = self.head_index();
        self.sequence
            .iter()
            .enumerate()
            .rev()
            .filter(move |(i, o)| Some(*i) != head && o.is_takeable())
            .filter_map(|(i, o)| Some((self.first.wrapping_add(i as u32), o.key?)))
    }

    /// Offers without a revoke, oldest first.
    pub fn open(&self) -> impl Iterator<Item = (u32, TaskKey)> {
        let open = |(_, o): &(usize, &Offer)| o.claim == Claim::Open;
        self.sequence
            .iter()
            .enumerate()
            .filter(open)
            .filter_map(|(i, o)| Some((self.first.wrapping_add(i as u32), o.key?)))
    }

    /// Offers that could be taken back for another engine, with the head, oldest first.
    pub fn movable(&self) -> impl Iterator<Item = (u32, TaskKey)> {
        self.sequence
            .iter()
            .enumerate()
            .filter(|(_, o)| o.is_takeable())
            .filter_map(|(i, o)| Some((self.first.wrapping_add(i as u32), o.key?)))
    }

    /// Offers that are neither done nor taken back nor waiting for other tasks.
    pub fn outstanding(&self) -> u32 {
        self.outstanding
    }

    /// Offers that are neither done nor taken back.
    pub fn n_unfinished(&self) -> usize {
        self.outstanding as usize + self.n_waiting()
    }

    /// Unfinished tasks that have waited for others.
    pub fn n_stacked(&self) -> usize {
        self.stack.len()
    }

    /// Whether every task is done.
    pub fn is_empty(&self) -> bool {
        self.outstanding == 0 && self.stack.is_empty()
    }

    /// Whether another fits on the claim board.
    pub fn has_slot(&self) -> bool {
        self.sequence.len() < CLAIM_SLOTS
    }

    /// Unfinished offers whose tasks are not known to be short.
    pub fn n_long(&self) -> u32 {
        self.n_long
    }

    /// How long the other unfinished offers take, estimated from earlier tasks of their functions.
    pub fn short_ns(&self) -> Nanos {
        self.short_ns
    }

    /// Whether offers are being taken back that later ones must not overtake.
    pub fn some_return(&self) -> bool {
        self.returning > 0
    }

    /// How many of the open offers had not reached the engine's board, given the number after the last one that had.
    /// `None` for a number that was never offered, or that cannot have been the last.
    pub fn n_on_the_way(&self, next_offer: u32) -> Option<u32> {
        let n = self.next().wrapping_sub(next_offer);
        (n as usize <= self.sequence.len()).then_some(n)
    }

    /// Whether an engine can have begun these offers, if this is the number of its next one.
    pub fn may_have_begun(mut begun: impl Iterator<Item = u32>, next_offer: u32) -> bool {
        let to_next = |number: u32| next_offer.wrapping_sub(number);
        let mut previous = CLAIM_SLOTS as u32 + 1;
        begun.all(|number| {
            let later = to_next(number) < core::mem::replace(&mut previous, to_next(number));
            later && to_next(number) > 0
        })
    }

    /// Takes over what the engine has begun for an earlier controller, in order; nothing else is offered to it.
    pub fn adopt(&mut self, begun: &[(u32, TaskKey)], next_offer: u32) {
        self.clear();
        self.first = begun.first().map_or(next_offer, |(number, _)| *number);
        let mut begun = begun.iter().peekable();
        for at in 0..next_offer.wrapping_sub(self.first) {
            let number = self.first.wrapping_add(at);
            let begun = begun.next_if(|(begun, _)| *begun == number);
            self.outstanding += u32::from(begun.is_some());
            self.n_long += u32::from(begun.is_some());
            self.sequence.push_back(Offer {
                key: begun.map(|(_, key)| *key),
                claim: Claim::Claimed,
                movable: false,
                depth: 0,
                short_ns: 0,
            });
        }
    }

    /// Forgets all offers.
    pub fn clear(&mut self) {
        let mut sequence = core::mem::take(&mut self.sequence);
        let mut stack = core::mem::take(&mut self.stack);
        sequence.clear();
        stack.clear();
        *self = Self {
            sequence,
            stack,
            ..Self::default()
        };
    }

    /// Whether the counts agree with the offers.
    pub fn is_consistent(&self) -> bool {
        let count =
            |wanted: &dyn Fn(&Offer) -> bool| self.sequence.iter().filter(|o| wanted(o)).count();
        let live = count(&|o| o.key.is_some()) + self.stack.iter().filter(|s| !s.waits).count();
        let returning = count(&Offer::is_returning);
        let unfinished = || self.sequence.iter().filter(|o| o.key.is_some());
        let n_long = unfinished().filter(|o| o.short_ns == 0).count();
        let short_ns: Nanos = unfinished().map(|o| Nanos::from(o.short_ns)).sum();
        live == self.outstanding as usize
            && (n_long, short_ns) == (self.n_long as usize, self.short_ns)
            && count(&Offer::is_takeable) == self.takeable as usize
            && returning == self.returning as usize
            && self.is_stack_consistent()
            && self.sequence.front().is_none_or(|o| o.key.is_some())
    }

    /// The depth that a task must exceed for the engine to start it; `None` if none of its tasks waits.
    pub fn floor(&self) -> Option<u16> {
        let waiting = self.stack.iter().rev().find(|s| s.waits);
        waiting.map(|s| s.offer.depth)
    }

    /// Whether it may start a task of this depth.
    pub fn accepts(&self, depth: u16) -> bool {
        self.stack.is_empty() || self.floor().is_none_or(|floor| depth > floor)
    }

    /// The least depth of the tasks that the engine accepts.
    pub fn min_depth(&self) -> u16 {
        self.floor().map_or(0, |floor| floor + 1)
    }

    /// Open offers that the engine may not start, because its tasks wait for deeper ones; oldest first.
    pub fn held_up(&self) -> impl Iterator<Item = (u32, TaskKey)> {
        self.open().filter(|(number, _)| {
            let offer = self.by_number(*number);
            offer.is_some_and(|offer| !self.accepts(offer.depth))
        })
    }

    /// The offer on top of the stack, unless its task cannot act on an interrupt yet.
    pub fn uncovered(&self) -> Option<TaskKey> {
        let top = self.stack.last()?;
        top.offer.key.filter(|_| !self.is_buried(top.number))
    }

    /// The order of engines: one without tasks comes before one whose tasks all wait, and that before one with a
    /// running task, from which the new task would only be stolen.
    pub fn load(&self) -> u32 {
        (self.outstanding << 8) + self.stack.len() as u32
    }

    fn suspended(&self, number: u32) -> Option<&Suspended> {
        self.stack.iter().find(|s| s.number == number)
    }

    /// Whether the task of an offer waits for others.
    pub fn waits(&self, number: u32) -> bool {
        self.suspended(number).is_some_and(|s| s.waits)
    }

    /// Whether the task of an offer has waited for others, and is not done.
    pub fn has_waited(&self, number: u32) -> bool {
        self.suspended(number).is_some()
    }

    /// Number of waiting tasks.
    pub fn n_waiting(&self) -> usize {
        self.stack.iter().filter(|s| s.waits).count()
    }

    /// The task to interrupt if none is named: the one believed to run, or the last one that waits.
    pub fn current(&self) -> Option<(TaskKey, u32)> {
        let top = || self.stack.last().map(|top| (top.offer.key, top.number));
        self.head()
            .or_else(|| top().and_then(|(key, number)| Some((key?, number))))
    }

    /// Whether a task cannot act on an interrupt yet, because another runs on top of it.
    pub fn is_buried(&self, number: u32) -> bool {
        let is_top = self.stack.last().is_some_and(|top| top.number == number);
        self.suspended(number)
            .is_some_and(|s| s.waits && !(is_top && self.outstanding == 0))
    }

    /// The task of an offer waits from now on. False if that is impossible.
    pub fn suspend(&mut self, number: u32) -> bool {
        if let Some(top) = self.stack.last_mut().filter(|top| !top.waits) {
            if top.number != number {
                return false;
            }
            top.waits = true;
            self.outstanding -= 1;
            return true;
        }
        let depth = self.by_number(number).map(|offer| offer.depth);
        if depth.is_none_or(|depth| !self.accepts(depth)) {
            return false;
        }
        let Some(mut offer) = self.take_out(number) else {
            return false;
        };
        if offer.claim == Claim::Open {
            offer.claim = Claim::Claimed;
        }
        self.stack.push(Suspended {
            number,
            offer,
            waits: true,
        });
        true
    }

    /// The last task of the stack continues. False if that is impossible.
    pub fn resume(&mut self, number: u32) -> bool {
        let top = self.stack.last_mut();
        let Some(top) = top.filter(|top| top.number == number && top.waits) else {
            return false;
        };
        top.waits = false;
        self.outstanding += 1;
        true
    }

    /// Whether depths grow along the stack, and only the last of it does not wait.
    fn is_stack_consistent(&self) -> bool {
        let last = self.stack.len().saturating_sub(1);
        self.stack.iter().take(last).all(|s| s.waits)
            && self
                .stack
                .windows(2)
                .all(|pair| pair[0].offer.depth < pair[1].offer.depth)
            && self.stack.iter().all(|s| s.offer.key.is_some())
    }
}
