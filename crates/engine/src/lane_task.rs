//! The task that came over its host's lane: the node waits for one count of each, however the task ends.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use broadleaf_proto::TaskKey;

/// Number that means that no task came over the lane.
const NO_TASK: u64 = u64::MAX;

/// See the module. Only the main thread uses it.
#[derive(Debug)]
pub struct LaneTask {
    /// Until it is counted.
    task: AtomicU64,
    /// The round of the lane that it belongs to.
    round: AtomicU32,
}

impl Default for LaneTask {
    fn default() -> Self {
        Self {
            task: AtomicU64::new(NO_TASK),
            round: AtomicU32::new(0),
        }
    }
}

impl LaneTask {
    /// A task was taken from the lane. If the one before was taken back and is not counted, the node does not wait for it.
    pub fn on_taken(&self, task: TaskKey, round: u32) {
        self.task.store(task.0, Ordering::Relaxed);
        self.round.store(round, Ordering::Relaxed);
    }

    /// Whether a task came over the lane, so that its answer may leave on it.
    #[inline]
    pub fn is(&self, task: TaskKey) -> bool {
        self.task.load(Ordering::Relaxed) == task.0
    }

    /// A task has been answered or will not be. If it came over the lane, returns the round in which it is counted.
    #[inline]
    pub fn on_over(&self, task: TaskKey) -> Option<u32> {
        self.is(task).then(|| {
            self.task.store(NO_TASK, Ordering::Relaxed);
            self.round.load(Ordering::Relaxed)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_task_of_the_lane_is_counted_once() {
        let lane = LaneTask::default();
        lane.on_taken(TaskKey(7), 3);
        assert!(lane.is(TaskKey(7)) && !lane.is(TaskKey(8)));
        assert_eq!(lane.on_over(TaskKey(8)), None, "it came over the socket");
        assert_eq!(lane.on_over(TaskKey(7)), Some(3));
        assert_eq!(lane.on_over(TaskKey(7)), None);
        lane.on_taken(TaskKey(9), 4);
        assert_eq!(lane.on_over(TaskKey(9)), Some(4));
    }
}
