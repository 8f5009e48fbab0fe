//! The tasks that an engine was offered, in their order: which it may have started, and which can be taken back.

use broadleaf_proto::ids::{EngineId, TaskKey};

use crate::Nanos;
use crate::engines::Engine;

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
pub(crate) struct Offer {
    /// `None` once done or taken back.
    pub key: Option<TaskKey>,
    pub claim: Claim,
    /// It may run on another engine.
    pub movable: bool,
    /// The nesting depth of its task.
    pub depth: u16,
    /// How long its task takes, in nanoseconds, if that is known to be short; 0 if not.
    pub short_ns: u32,
}

impl Offer {
    pub fn is_takeable(&self) -> bool {
        self.key.is_some() && self.movable && self.claim == Claim::Open
    }

    /// Whether it is being taken back and later ones must not overtake it.
    pub fn is_returning(&self) -> bool {
        self.key.is_some() && !self.movable && self.claim == Claim::Returning
    }
}

impl Engine {
    /// Appends an offer and gives its number.
    pub fn offer(&mut self, key: TaskKey, movable: bool, depth: u16, short_ns: u32) -> u32 {
        let number = self.next_offer();
        let offer = Offer {
            key: Some(key),
            claim: Claim::Open,
            movable,
            depth,
            short_ns,
        };
        self.offers.push_back(offer);
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

    pub fn next_offer(&self) -> u32 {
        self.first_offer.wrapping_add(self.offers.len() as u32)
    }

    fn index_of(&self, number: u32) -> Option<usize> {
        let index = number.wrapping_sub(self.first_offer) as usize;
        self.offers.get(index)?.key.map(|_| index)
    }

    /// An offer of the sequence.
    pub(crate) fn offers_by_number(&self, number: u32) -> Option<&Offer> {
        self.index_of(number).map(|index| &self.offers[index])
    }

    /// What is known about an offer in the sequence.
    pub fn claim(&self, number: u32) -> Option<Claim> {
        match self.suspended(number) {
            Some(suspended) => Some(suspended.offer.claim),
            None => self.index_of(number).map(|index| self.offers[index].claim),
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
        self.discount(self.offers[index]);
        self.offers[index].claim = claim;
        self.count(self.offers[index]);
    }

    /// Removes an offer; true if it was the head, so that the next is now believed to run.
    pub fn strike(&mut self, number: u32) -> bool {
        if self.stack.is_empty() {
            // The front is always an open offer, and believed to run.
            let is_front = number == self.first_offer;
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
    pub(crate) fn take_out(&mut self, number: u32) -> Option<Offer> {
        let index = self.index_of(number)?;
        let offer = self.offers[index];
        self.discount(offer);
        self.offers[index].key = None;
        self.outstanding -= 1;
        self.n_long -= u32::from(offer.short_ns == 0);
        self.short_ns -= Nanos::from(offer.short_ns);
        while self.offers.front().is_some_and(|o| o.key.is_none()) {
            self.offers.pop_front();
            self.first_offer = self.first_offer.wrapping_add(1);
        }
        Some(offer)
    }

    /// Position in the sequence of the offer believed to run, if there is one.
    fn head_index(&self) -> Option<usize> {
        if self.stack.is_empty() {
            return (!self.offers.is_empty()).then_some(0);
        }
        if self.stack.last().is_some_and(|top| !top.waits) {
            return None;
        }
        let runs = |offer: &Offer| offer.key.is_some() && self.accepts(offer.depth);
        self.offers.iter().position(runs)
    }

    /// The offer believed to run.
    pub fn head(&self) -> Option<(TaskKey, u32)> {
        if let Some(top) = self.stack.last().filter(|top| !top.waits) {
            return Some((top.offer.key?, top.number));
        }
        let index = self.head_index()?;
        let number = self.first_offer.wrapping_add(index as u32);
        Some((self.offers[index].key?, number))
    }

    /// Every open offer, oldest first.
    pub fn offers(&self) -> impl Iterator<Item = (u32, TaskKey)> {
        let suspended = self
            .stack
            .iter()
            .filter_map(|s| Some((s.number, s.offer.key?)));
        let others = self
            .offers
            .iter()
            .enumerate()
            .filter_map(|(i, o)| Some((self.first_offer.wrapping_add(i as u32), o.key?)));
        suspended.chain(others)
    }

    /// Offers behind the head that could be taken back for another engine.
    pub fn n_stealable(&self) -> u32 {
        if self.takeable == 0 || self.is_away {
            return 0;
        }
        let head = self.head_index().map(|index| self.offers[index]);
        self.takeable - u32::from(head.is_some_and(|o| o.is_takeable()))
    }

    /// How long the stealable offers will take if each takes this long.
    pub fn tail_ns(&self, task_ns: Nanos) -> Nanos {
        u64::from(self.n_stealable()).saturating_mul(task_ns)
    }

    /// Offers behind the head that could be taken back for another engine, latest first.
    pub fn stealable(&self) -> impl Iterator<Item = (u32, TaskKey)> {
        let head = self.head_index();
        self.offers
            .iter()
            .enumerate()
            .rev()
            .filter(move |(i, o)| Some(*i) != head && o.is_takeable())
            .filter_map(|(i, o)| Some((self.first_offer.wrapping_add(i as u32), o.key?)))
    }

    /// Offers without a revoke, oldest first.
    pub fn open_offers(&self) -> impl Iterator<Item = (u32, TaskKey)> {
        let open = |(_, o): &(usize, &Offer)| o.claim == Claim::Open;
        self.offers
            .iter()
            .enumerate()
            .filter(open)
            .filter_map(|(i, o)| Some((self.first_offer.wrapping_add(i as u32), o.key?)))
    }

    /// Offers that could be taken back for another engine, with the head, oldest first.
    pub fn movable(&self) -> impl Iterator<Item = (u32, TaskKey)> {
        self.offers
            .iter()
            .enumerate()
            .filter(|(_, o)| o.is_takeable())
            .filter_map(|(i, o)| Some((self.first_offer.wrapping_add(i as u32), o.key?)))
    }

    /// Whether the counts agree with the offers.
    pub fn is_consistent(&self) -> bool {
        let count =
            |wanted: &dyn Fn(&Offer) -> bool| self.offers.iter().filter(|o| wanted(o)).count();
        let live = count(&|o| o.key.is_some()) + self.stack.iter().filter(|s| !s.waits).count();
        let returning = count(&Offer::is_returning);
        let unfinished = || self.offers.iter().filter(|o| o.key.is_some());
        let n_long = unfinished().filter(|o| o.short_ns == 0).count();
        let short_ns: Nanos = unfinished().map(|o| Nanos::from(o.short_ns)).sum();
        live == self.outstanding as usize
            && (n_long, short_ns) == (self.n_long as usize, self.short_ns)
            && count(&Offer::is_takeable) == self.takeable as usize
            && returning == self.returning as usize
            && self.is_stack_consistent()
            && self.offers.front().is_none_or(|o| o.key.is_some())
    }
}
