//! Functions that the engines of another host were given and may not have read: an estimate that is never too low.
//!
//! A relay says in each of its answers to pings how much waits for its engines. What it was told to give them after
//! that ping was sent counts separately, in full, until a later answer.

/// See the module.
#[derive(Clone, Debug, Default)]
pub struct GivenFunctions {
    /// What waited for the engines when the relay last answered.
    unread_bytes: u64,
    /// What was given since the ping that it answered.
    on_the_way_bytes: u64,
    /// A ping that is not answered yet: when it was sent, and how much of what is on the way was given before it.
    pinged: Option<(u64, u64)>,
}

impl GivenFunctions {
    /// An engine is given a function. Returns whether the relay should be pinged at once, because much is on the way
    /// and no answer will say soon what became of it.
    pub fn give(&mut self, n_bytes: u64, limit_bytes: u64) -> bool {
        self.on_the_way_bytes = self.on_the_way_bytes.saturating_add(n_bytes);
        self.pinged.is_none() && self.on_the_way_bytes > limit_bytes / 8
    }

    /// The relay was sent a ping.
    pub fn on_ping(&mut self, sent_ns: u64) {
        self.pinged.get_or_insert((sent_ns, self.on_the_way_bytes));
    }

    /// The relay answered a ping: pings are answered in the order in which they were sent.
    pub fn on_pong(&mut self, sent_ns: u64, unread_bytes: u64) {
        if let Some((pinged_ns, given_bytes)) = self.pinged
            && sent_ns >= pinged_ns
        {
            self.unread_bytes = unread_bytes;
            self.on_the_way_bytes -= given_bytes;
            self.pinged = None;
        }
    }

    /// What waited for the engines when the relay last answered.
    pub fn unread_bytes(&self) -> u64 {
        self.unread_bytes
    }

    /// What was given since the ping that the relay last answered. Engines may have read it.
    pub fn on_the_way_bytes(&self) -> u64 {
        self.on_the_way_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT_BYTES: u64 = 800;

    fn bytes(given: &GivenFunctions) -> (u64, u64) {
        (given.unread_bytes(), given.on_the_way_bytes())
    }

    #[test]
    fn what_was_given_after_a_ping_stays_on_the_way_when_it_is_answered() {
        let mut given = GivenFunctions::default();
        assert!(!given.give(100, LIMIT_BYTES));
        given.on_ping(5);
        assert!(!given.give(300, LIMIT_BYTES), "a ping is on its way");
        assert_eq!(bytes(&given), (0, 400));
        given.on_pong(5, 70);
        assert_eq!(bytes(&given), (70, 300));
        assert!(given.give(1, LIMIT_BYTES));
        given.on_ping(6);
        given.on_pong(6, 0);
        assert_eq!(bytes(&given), (0, 0));
    }

    #[test]
    fn an_answer_counts_what_was_given_before_the_oldest_ping_that_it_may_belong_to() {
        let mut given = GivenFunctions::default();
        given.on_ping(5);
        given.give(100, LIMIT_BYTES);
        given.on_ping(6);
        given.on_pong(4, 9);
        assert_eq!(bytes(&given), (0, 100), "to a ping before the last answer");
        given.on_pong(5, 30);
        assert_eq!(bytes(&given), (30, 100));
        given.on_pong(6, 0);
        assert_eq!(bytes(&given), (30, 100), "no ping is awaited");
        given.on_ping(7);
        given.on_pong(7, 0);
        assert_eq!(bytes(&given), (0, 0));
    }
}
