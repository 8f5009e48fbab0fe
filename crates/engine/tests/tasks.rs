//! Random sequences of what can happen to an engine's tasks: each one that it claims ends exactly once, tasks begin in the
//! order of their offers and only on top of shallower ones that wait, and nothing stays behind.

#![allow(clippy::unwrap_used)] // a test fails by panicking

use broadleaf_engine::{Next, Outer, Stack, Work};
use broadleaf_proto::task::AssignRecord;
use broadleaf_proto::{FunctionId, Payload, TaskKey};
use proptest::prelude::*;

const N_LEVELS: usize = 4;

#[derive(Clone, Copy, Debug)]
enum Event {
    Offer {
        depth: u16,
    },
    /// The node takes an offer back, if it is there and has not been claimed.
    TakeBack(usize),
    /// The engine's main thread goes on.
    Step,
    /// The same, but the task that it chooses to run on top of another is not started.
    Interrupted,
    Wait,
    EndWait,
    Finish,
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        6 => (0..5_u16).prop_map(|depth| Event::Offer { depth }),
        2 => (0..8_usize).prop_map(Event::TakeBack),
        6 => Just(Event::Step),
        1 => Just(Event::Interrupted),
        4 => Just(Event::Wait),
        2 => Just(Event::EndWait),
        3 => Just(Event::Finish),
    ]
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Offer {
    Open,
    Claimed,
    Revoked,
    Ended,
}

/// A task that has begun.
struct Begun {
    index: usize,
    depth: u16,
    outer: Outer,
    /// The level below, if it runs on top of another task.
    below: Option<usize>,
    waits: bool,
}

/// The engine as its driver runs it, and what a list of its offers says.
struct World {
    work: Work,
    stack: Stack,
    first_offer: u32,
    offers: Vec<(u16, Offer)>,
    /// Those that have neither begun nor been found to be taken back, in order.
    queued: Vec<usize>,
    begun: Vec<Begun>,
}

impl World {
    fn new(first_offer: u32) -> Self {
        Self {
            work: Work::default(),
            stack: Stack::new(),
            first_offer,
            offers: Vec::new(),
            queued: Vec::new(),
            begun: Vec::new(),
        }
    }

    fn index(&self, task: &AssignRecord) -> usize {
        task.offer.wrapping_sub(self.first_offer) as usize
    }

    fn offer(&mut self, depth: u16) {
        let index = self.offers.len();
        self.offers.push((depth, Offer::Open));
        self.queued.push(index);
        self.work.push(AssignRecord {
            key: TaskKey(index as u64),
            offer: self.first_offer.wrapping_add(index as u32),
            function: FunctionId(0),
            depth,
            payload: Payload::default(),
        });
    }

    fn take_back(&mut self, choice: usize) {
        let mut open = (self.offers.iter_mut()).filter(|(_, offer)| *offer == Offer::Open);
        if let Some((_, offer)) = open.nth(choice) {
            *offer = Offer::Revoked;
        }
    }

    fn step(&mut self, interrupted: bool) {
        let floor = match self.begun.last() {
            None => None,
            Some(top) if top.waits => Some(top.depth),
            Some(_) => return,
        };
        let next = match floor {
            None => self.work.next_step(),
            Some(floor) => {
                assert_eq!(self.stack.running_depth(), Some(floor));
                self.work.next_step_above(floor)
            }
        };
        let may_begin = |index: &&usize| floor.is_none_or(|floor| self.offers[**index].0 > floor);
        let first = self.queued.iter().find(may_begin).copied();
        let Next::Run(task) = next else {
            assert_eq!(next, Next::Nothing);
            assert_eq!(first, None, "it may begin, and does not");
            return;
        };
        assert_eq!(Some(self.index(&task)), first, "not in order");
        let Some(_) = floor else {
            self.claim(&task, None);
            return;
        };
        let Some(below) = self.stack.rise(N_LEVELS) else {
            self.work.choose(task);
            self.work.end_choice();
            return;
        };
        self.work.choose(task);
        let chosen = (!interrupted).then(|| self.work.take_chosen().unwrap());
        if !chosen.is_some_and(|task| self.claim(&task, Some(below))) {
            self.stack.fall(below);
            self.work.end_choice();
        }
    }

    fn claim(&mut self, task: &AssignRecord, below: Option<usize>) -> bool {
        let index = self.index(task);
        self.queued.retain(|queued| *queued != index);
        let (_, offer) = &mut self.offers[index];
        if *offer == Offer::Revoked {
            return false;
        }
        assert_eq!(std::mem::replace(offer, Offer::Claimed), Offer::Open);
        assert!(self.begun.last().is_none_or(|top| top.depth < task.depth));
        assert_eq!(
            self.stack.level(),
            self.begun.len(),
            "a level for each task"
        );
        let outer = self.stack.enter(task.key, task.depth);
        assert_eq!(self.stack.submitted_depth(), task.depth + 1);
        self.begun.push(Begun {
            index,
            depth: task.depth,
            outer,
            below,
            waits: false,
        });
        true
    }

    fn wait(&mut self) {
        let Some(top) = self.begun.last_mut() else {
            assert_eq!(self.stack.begin_wait(), None);
            return;
        };
        let said = self.stack.begin_wait();
        let key = TaskKey(top.index as u64);
        assert_eq!(said, (!top.waits).then_some(key), "said once a wait");
        top.waits = true;
        if said.is_some() {
            let (offers, first) = (&self.offers, self.first_offer);
            let is_open = |index: usize| offers[index].1 == Offer::Open;
            (self.work).forget_revoked(|task| is_open(task.offer.wrapping_sub(first) as usize));
            self.queued.retain(|index| is_open(*index));
        }
    }

    fn end_wait(&mut self) {
        if let Some(top) = self.begun.last_mut().filter(|top| top.waits) {
            top.waits = false;
            self.stack.end_wait();
        }
    }

    fn finish(&mut self) {
        self.end_wait();
        let Some(top) = self.begun.pop() else {
            return;
        };
        assert_eq!(self.stack.task(), Some(TaskKey(top.index as u64)));
        let (_, offer) = &mut self.offers[top.index];
        assert_eq!(std::mem::replace(offer, Offer::Ended), Offer::Claimed);
        self.stack.leave(&top.outer);
        if let Some(below) = top.below {
            self.stack.fall(below);
            self.work.end_choice();
        }
        let below = self.begun.last().map(|task| TaskKey(task.index as u64));
        assert_eq!(self.stack.task(), below, "the one below runs again");
    }
}

proptest! {
    #[test]
    fn every_claimed_task_ends_once_and_nothing_stays(
        events in proptest::collection::vec(event(), 0..80),
        first_offer in prop_oneof![Just(0_u32), Just(u32::MAX - 5)],
    ) {
        let mut world = World::new(first_offer);
        for event in events {
            match event {
                Event::Offer { depth } => world.offer(depth),
                Event::TakeBack(choice) => world.take_back(choice),
                Event::Step => world.step(false),
                Event::Interrupted => world.step(true),
                Event::Wait => world.wait(),
                Event::EndWait => world.end_wait(),
                Event::Finish => world.finish(),
            }
        }
        while !world.begun.is_empty() || !world.queued.is_empty() {
            world.finish();
            world.step(false);
        }
        prop_assert_eq!(world.work.next_step(), Next::Nothing);
        let is_over = |offer| matches!(offer, Offer::Ended | Offer::Revoked);
        prop_assert!(world.offers.iter().all(|(_, offer)| is_over(*offer)));
        prop_assert_eq!(world.stack.task(), None);
        prop_assert_eq!((world.stack.submitted_depth(), world.stack.level()), (0, 0));
    }
}
