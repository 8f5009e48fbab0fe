//! What is expected of a task: that it takes as long as the one before, if that called the same function.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use broadleaf_proto::FunctionId;

use crate::Nanos;

/// See the module. Only the main thread uses it.
#[derive(Debug)]
pub struct LastTask {
    function: AtomicU32,
    task_ns: AtomicU64,
}

impl Default for LastTask {
    fn default() -> Self {
        Self {
            function: AtomicU32::new(u32::MAX),
            task_ns: AtomicU64::new(Nanos::MAX),
        }
    }
}

impl LastTask {
    /// A task has ended.
    #[inline]
    pub fn on_ended(&self, function: FunctionId, task_ns: Nanos) {
        self.function.store(function.0, Ordering::Relaxed);
        self.task_ns.store(task_ns, Ordering::Relaxed);
    }

    /// How long a task of this function is expected to take: for ever, if the last one was of another.
    #[inline]
    pub fn expected_ns(&self, function: FunctionId) -> Nanos {
        if self.function.load(Ordering::Relaxed) == function.0 {
            self.task_ns.load(Ordering::Relaxed)
        } else {
            Nanos::MAX
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_function_is_expected_to_take_as_long_as_last_time() {
        let last = LastTask::default();
        assert_eq!(last.expected_ns(FunctionId(1)), Nanos::MAX);
        last.on_ended(FunctionId(1), 5);
        assert_eq!(last.expected_ns(FunctionId(1)), 5);
        assert_eq!(last.expected_ns(FunctionId(2)), Nanos::MAX);
    }
}
