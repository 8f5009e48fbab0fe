//! What was sent to an engine and has not begun: tasks, preparations, and the order to stop.
//!
//! A task runs on top of another one only while that one waits, and only if it is nested deeper: so depths grow along
//! the stack, and no task waits for one below it.

use std::collections::VecDeque;

use broadleaf_proto::task::AssignRecord;
use bytes::Bytes;

/// What the engine does next.
#[derive(Debug, PartialEq, Eq)]
pub enum Next {
    /// It runs these preparations, in this order: whatever was submitted after them finds them made.
    Prepare(VecDeque<Bytes>),
    /// It claims this task, and runs it if that succeeds.
    Run(AssignRecord),
    /// It ends.
    Stop,
    /// There is nothing to do.
    Nothing,
}

/// See the module.
#[derive(Debug, Default)]
pub struct Work {
    /// In the order of their offers.
    tasks: VecDeque<AssignRecord>,
    /// Those that are nested in another.
    n_nested: usize,
    /// The one that is about to run on top of the task that waits.
    chosen: Option<AssignRecord>,
    preparations: VecDeque<Bytes>,
    stops: bool,
}

/// Whether an offer was made before another one. Their numbers wrap around.
fn is_earlier(offer: u32, other: u32) -> bool {
    (offer.wrapping_sub(other) as i32) < 0
}

impl Work {
    /// A task was offered.
    #[inline]
    pub fn push(&mut self, task: AssignRecord) {
        self.n_nested += usize::from(task.depth > 0);
        self.tasks.push_back(task);
    }

    /// A preparation was sent.
    pub fn prepare(&mut self, body: Bytes) {
        self.preparations.push_back(body);
    }

    /// The engine is to end once nothing is left to run.
    pub fn stop(&mut self) {
        self.stops = true;
    }

    /// No task is running.
    #[inline]
    pub fn next_step(&mut self) -> Next {
        if !self.preparations.is_empty() {
            return Next::Prepare(std::mem::take(&mut self.preparations));
        }
        match self.tasks.pop_front() {
            Some(task) => {
                self.n_nested -= usize::from(task.depth > 0);
                Next::Run(task)
            }
            None if self.stops => Next::Stop,
            None => Next::Nothing,
        }
    }

    /// A task of this depth is running and waits. The engine does not end before it has.
    pub fn next_step_above(&mut self, depth: u16) -> Next {
        if !self.preparations.is_empty() {
            return Next::Prepare(std::mem::take(&mut self.preparations));
        }
        if self.n_nested == 0 {
            return Next::Nothing;
        }
        let index = self.tasks.iter().position(|task| task.depth > depth);
        let task = index.and_then(|index| self.tasks.remove(index));
        task.map_or(Next::Nothing, |task| {
            self.n_nested -= 1;
            Next::Run(task)
        })
    }

    /// This task is about to run on top of the one that waits: user code that starts it may end before that.
    pub fn choose(&mut self, task: AssignRecord) {
        debug_assert!(self.chosen.is_none(), "it runs, or is put back");
        self.chosen = Some(task);
    }

    /// User code asks for the chosen task.
    pub fn take_chosen(&mut self) -> Option<AssignRecord> {
        self.chosen.take()
    }

    /// User code has ended. A task that it has not started is where it was before.
    pub fn end_choice(&mut self) {
        if let Some(task) = self.chosen.take() {
            let is_before = |other: &AssignRecord| is_earlier(other.offer, task.offer);
            let index = self.tasks.partition_point(is_before);
            self.n_nested += usize::from(task.depth > 0);
            self.tasks.insert(index, task);
        }
    }

    /// A task begins to wait, perhaps for long: forgets those that were taken back.
    pub fn forget_revoked(&mut self, is_offered: impl Fn(&AssignRecord) -> bool) {
        self.tasks.retain(is_offered);
        self.n_nested = self.tasks.iter().filter(|task| task.depth > 0).count();
    }
}

#[cfg(test)]
mod tests {
    use broadleaf_proto::{FunctionId, Payload, TaskKey};

    use super::*;

    fn task(offer: u32, depth: u16) -> AssignRecord {
        AssignRecord {
            key: TaskKey(u64::from(offer)),
            offer,
            function: FunctionId(0),
            depth,
            payload: Payload::default(),
        }
    }

    /// The offers that begin when no task runs, to the end.
    fn rest(work: &mut Work) -> Vec<u32> {
        let mut offers = Vec::new();
        loop {
            match work.next_step() {
                Next::Run(task) => offers.push(task.offer),
                Next::Prepare(_) => panic!("there is nothing to prepare"),
                Next::Stop | Next::Nothing => return offers,
            }
        }
    }

    #[test]
    fn preparations_come_first_and_the_end_last() {
        let mut work = Work::default();
        assert_eq!(work.next_step(), Next::Nothing);
        work.push(task(0, 0));
        work.prepare(Bytes::from_static(b"one"));
        work.prepare(Bytes::from_static(b"two"));
        work.stop();
        let bodies = ["one", "two"].map(|body| Bytes::from_static(body.as_bytes()));
        assert_eq!(work.next_step(), Next::Prepare(bodies.into()));
        assert_eq!(work.next_step_above(0), Next::Nothing, "the task waits");
        assert_eq!(work.next_step(), Next::Run(task(0, 0)));
        assert_eq!(work.next_step(), Next::Stop);
    }

    #[test]
    fn only_deeper_tasks_run_on_top_of_one_that_waits() {
        let mut work = Work::default();
        for (offer, depth) in [(0, 0), (1, 1), (2, 2), (3, 1)] {
            work.push(task(offer, depth));
        }
        assert_eq!(work.next_step_above(1), Next::Run(task(2, 2)));
        assert_eq!(work.next_step_above(1), Next::Nothing);
        assert_eq!(work.next_step_above(0), Next::Run(task(1, 1)));
        assert_eq!(rest(&mut work), [0, 3]);
    }

    #[test]
    fn a_chosen_task_that_does_not_start_is_where_it_was() {
        let mut work = Work::default();
        // The numbers of offers wrap around.
        let first = u32::MAX - 1;
        for (index, depth) in [(0, 0), (1, 1), (2, 0), (3, 1)] {
            work.push(task(first.wrapping_add(index), depth));
        }
        let Next::Run(chosen) = work.next_step_above(0) else {
            panic!("one is deeper");
        };
        work.choose(chosen);
        work.end_choice();
        work.end_choice();
        assert_eq!(rest(&mut work), [first, u32::MAX, 0, 1]);
    }

    #[test]
    fn tasks_that_were_taken_back_are_forgotten() {
        let mut work = Work::default();
        for offer in 0..4 {
            work.push(task(offer, 1));
        }
        work.forget_revoked(|task| task.offer == 2);
        assert_eq!(work.next_step_above(0), Next::Run(task(2, 1)));
        assert_eq!(work.next_step_above(0), Next::Nothing);
    }
}
