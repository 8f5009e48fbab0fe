//! The tasks that an engine has begun: one runs, and those below it wait.
//!
//! The main thread writes. Others look: whoever submits a task asks how deep that is nested, and output belongs to the
//! running task whoever wrote it.

use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU64, AtomicUsize, Ordering};

use broadleaf_proto::TaskKey;

/// Number that means that no task is running.
const NO_TASK: u64 = u64::MAX;

/// See the module.
#[derive(Debug)]
pub struct Stack {
    /// The running task.
    task: AtomicU64,
    /// How deep a task is nested that is submitted now.
    depth: AtomicU16,
    /// Whether the controller has been told that the running task waits.
    waits: AtomicBool,
    /// The running task's level on the claim board.
    level: AtomicUsize,
}

impl Default for Stack {
    fn default() -> Self {
        Self::new()
    }
}

/// What was so before a task began on top of another one, or on top of none.
#[derive(Debug)]
#[must_use = "the task below goes on"]
pub struct Outer {
    task: u64,
    depth: u16,
    waits: bool,
}

impl Stack {
    /// Of an engine that runs nothing.
    pub const fn new() -> Self {
        Self {
            task: AtomicU64::new(NO_TASK),
            depth: AtomicU16::new(0),
            waits: AtomicBool::new(false),
            level: AtomicUsize::new(0),
        }
    }

    /// The running task.
    #[inline]
    pub fn task(&self) -> Option<TaskKey> {
        Some(self.task.load(Ordering::Acquire))
            .filter(|key| *key != NO_TASK)
            .map(TaskKey)
    }

    /// How deep a task is nested that is submitted now: 0 outside tasks.
    #[inline]
    pub fn submitted_depth(&self) -> u16 {
        self.depth.load(Ordering::Acquire)
    }

    /// How deep the running task is nested: only deeper ones may run on top of it.
    pub fn running_depth(&self) -> Option<u16> {
        self.submitted_depth().checked_sub(1)
    }

    /// The running task's level on the claim board.
    #[inline]
    pub fn level(&self) -> usize {
        self.level.load(Ordering::Acquire)
    }

    /// A claimed task begins. These are plain stores, which cost a tenth of an exchange.
    #[inline]
    pub fn enter(&self, task: TaskKey, depth: u16) -> Outer {
        let outer = Outer {
            task: self.task.load(Ordering::Relaxed),
            depth: self.depth.load(Ordering::Relaxed),
            waits: self.waits.load(Ordering::Relaxed),
        };
        self.task.store(task.0, Ordering::Release);
        self.depth.store(depth + 1, Ordering::Release);
        self.waits.store(false, Ordering::Release);
        outer
    }

    /// It has ended: the one below, if there is one, runs again.
    #[inline]
    pub fn leave(&self, outer: &Outer) {
        self.task.store(outer.task, Ordering::Release);
        self.depth.store(outer.depth, Ordering::Release);
        self.waits.store(outer.waits, Ordering::Release);
    }

    /// The running task waits. Returns it if the controller must be told: a callback may wait in the middle of a wait of
    /// the same task.
    pub fn begin_wait(&self) -> Option<TaskKey> {
        let task = self.task()?;
        let waited = self.waits.swap(true, Ordering::AcqRel);
        (!waited).then_some(task)
    }

    /// The wait is over of which the controller was told.
    pub fn end_wait(&self) {
        self.waits.store(false, Ordering::Release);
    }

    /// A task is about to begin on top of the running one, which interrupts are not meant for from here on. Returns that
    /// one's level for [`Stack::fall`]; `None` if there are no more than `n_levels`.
    pub fn rise(&self, n_levels: usize) -> Option<usize> {
        let level = self.level();
        (level + 1 < n_levels).then(|| {
            self.level.store(level + 1, Ordering::Release);
            level
        })
    }

    /// It has ended, or has not begun: the task at this level runs again.
    pub fn fall(&self, level: usize) {
        self.level.store(level, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_task_on_top_of_another_leaves_it_as_it_was() {
        let stack = Stack::new();
        assert_eq!((stack.task(), stack.running_depth()), (None, None));
        assert_eq!(stack.begin_wait(), None, "nobody waits outside tasks");
        let below = stack.enter(TaskKey(7), 0);
        assert_eq!(stack.begin_wait(), Some(TaskKey(7)));
        assert_eq!(stack.begin_wait(), None, "said once");
        assert_eq!(stack.rise(2), Some(0));
        let outer = stack.enter(TaskKey(8), 3);
        assert_eq!((stack.submitted_depth(), stack.level()), (4, 1));
        assert_eq!(stack.rise(2), None, "the board has no more levels");
        assert_eq!(stack.begin_wait(), Some(TaskKey(8)));
        stack.end_wait();
        stack.leave(&outer);
        stack.fall(0);
        assert_eq!((stack.task(), stack.level()), (Some(TaskKey(7)), 0));
        assert_eq!(stack.running_depth(), Some(0));
        assert_eq!(stack.begin_wait(), None, "it still waits");
        stack.end_wait();
        stack.leave(&below);
        assert_eq!((stack.task(), stack.submitted_depth()), (None, 0));
    }
}
