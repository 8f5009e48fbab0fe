//! Back-pressure: how much of a client's work may be unresolved.

/// The limits of one client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Unresolved tasks.
    pub max_tasks: u64,
    /// Their payload bytes.
    pub max_bytes: u64,
}

/// What is unresolved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// Tasks.
    pub tasks: u64,
    /// Bytes charged for them. Bytes that several tasks name are charged once, while any of these is unresolved.
    pub bytes: u64,
}

/// What a call would add.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Call {
    /// Its tasks.
    pub tasks: u64,
    /// Bytes of its own, for all its tasks together.
    pub own_bytes: u64,
    /// Bytes that it names and that are charged once for all tasks that name them.
    pub named_bytes: u64,
    /// Those of them that are charged already.
    pub charged_bytes: u64,
}

impl Limits {
    /// Whether a call fits beside what is unresolved.
    ///
    /// A call never waits for bytes that it names itself: they take no more memory for it. All else that it waits for
    /// belongs to tasks that were sent, which end without it. So there is always room for it in the end, however large
    /// it is.
    #[inline]
    pub fn admit(&self, load: Load, call: Call) -> bool {
        let new_bytes = call.own_bytes + call.named_bytes.saturating_sub(call.charged_bytes);
        let others_bytes = load.bytes.saturating_sub(call.charged_bytes);
        // A task that exceeds the limit by itself waits for others only if these have many bytes.
        let is_much_beside_few = new_bytes > self.max_bytes && others_bytes <= self.max_bytes / 16;
        let too_many_tasks = load.tasks + call.tasks > self.max_tasks && load.tasks > 0;
        let too_many_bytes = others_bytes + new_bytes > self.max_bytes && !is_much_beside_few;
        !too_many_tasks && !too_many_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits {
        max_tasks: 10,
        max_bytes: 1600,
    };

    fn admitted(tasks: u64, bytes: u64, call: Call) -> bool {
        LIMITS.admit(Load { tasks, bytes }, call)
    }

    fn of_bytes(own_bytes: u64) -> Call {
        Call {
            tasks: 1,
            own_bytes,
            ..Call::default()
        }
    }

    #[test]
    fn a_call_waits_for_room() {
        assert!(admitted(9, 0, of_bytes(0)));
        assert!(!admitted(10, 0, of_bytes(0)));
        assert!(admitted(1, 1500, of_bytes(100)));
        assert!(!admitted(1, 1500, of_bytes(101)));
    }

    #[test]
    fn nothing_waits_for_nothing() {
        let huge = Call {
            tasks: 1000,
            own_bytes: 1 << 40,
            named_bytes: 1 << 40,
            charged_bytes: 0,
        };
        assert!(admitted(0, 0, huge));
    }

    #[test]
    fn a_call_above_the_limit_goes_beside_a_few_bytes() {
        assert!(admitted(1, 100, of_bytes(1601)));
        assert!(!admitted(1, 101, of_bytes(1601)));
    }

    #[test]
    fn a_call_never_waits_for_bytes_that_it_names() {
        let again = Call {
            tasks: 1,
            own_bytes: 10,
            named_bytes: 1500,
            charged_bytes: 1500,
        };
        assert!(admitted(5, 1500, again));
        assert!(admitted(5, 1600, again));
        // Unless the others are too many.
        assert!(!admitted(5, 1500 + 1591, again));
        let first = Call {
            charged_bytes: 0,
            ..again
        };
        assert!(!admitted(5, 1500, first));
    }
}
