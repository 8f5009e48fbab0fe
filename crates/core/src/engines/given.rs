//! Functions that another host and its engines were given: which bodies are there, since a body crosses once per host, and
//! what the engines may not have read, an estimate that is never too low.
//!
//! A relay says in each of its answers to pings how much waits for its engines. What it was told to give them after
//! that ping was sent counts separately, in full, until a later answer.

use std::collections::BTreeMap;

use broadleaf_proto::ids::{FunctionHash, FunctionId};
use broadleaf_proto::task::FunctionRecord;

/// See the module.
#[derive(Clone, Debug, Default)]
pub struct GivenFunctions {
    /// Bodies that the relay has, by id and content.
    bodies: BTreeMap<FunctionId, FunctionHash>,
    /// What waited for the engines when the relay last answered.
    unread_bytes: u64,
    /// What was given since the ping that it answered.
    on_the_way_bytes: u64,
    /// A ping that is not answered yet: when it was sent, and how much of what is on the way was given before it.
    pinged: Option<(u64, u64)>,
}

/// What goes to the relay for a function that one of its engines is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Given {
    /// Its body is sent first.
    pub sends_body: bool,
    /// A ping follows, because much is on the way and no answer will say soon what became of it.
    pub pings: bool,
}

impl GivenFunctions {
    /// An engine is given a function.
    pub fn give(&mut self, record: &FunctionRecord, limit_bytes: u64) -> Given {
        let n_bytes = record.body.len() as u64;
        self.on_the_way_bytes = self.on_the_way_bytes.saturating_add(n_bytes);
        let before = self.bodies.insert(record.function, record.hash);
        Given {
            sends_body: before != Some(record.hash),
            pings: self.pinged.is_none() && self.on_the_way_bytes > limit_bytes / 8,
        }
    }

    /// The relay is told that no task will name these functions any more.
    pub fn forget(&mut self, freed: &[FunctionId]) {
        self.bodies.retain(|id, _| !freed.contains(id));
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
    use bytes::Bytes;

    use super::*;

    const LIMIT_BYTES: u64 = 800;

    fn give(given: &mut GivenFunctions, n_bytes: usize) -> bool {
        given
            .give(&function(n_bytes as u8, n_bytes), LIMIT_BYTES)
            .pings
    }

    fn function(content: u8, n_bytes: usize) -> FunctionRecord {
        FunctionRecord {
            function: FunctionId(3),
            hash: FunctionHash([content; 16]),
            name: Bytes::new(),
            body: vec![content; n_bytes].into(),
        }
    }

    fn bytes(given: &GivenFunctions) -> (u64, u64) {
        (given.unread_bytes(), given.on_the_way_bytes())
    }

    #[test]
    fn what_was_given_after_a_ping_stays_on_the_way_when_it_is_answered() {
        let mut given = GivenFunctions::default();
        assert!(!give(&mut given, 100));
        given.on_ping(5);
        assert!(!give(&mut given, 300), "a ping is on its way");
        assert_eq!(bytes(&given), (0, 400));
        given.on_pong(5, 70);
        assert_eq!(bytes(&given), (70, 300));
        assert!(give(&mut given, 1));
        given.on_ping(6);
        given.on_pong(6, 0);
        assert_eq!(bytes(&given), (0, 0));
    }

    #[test]
    fn an_answer_counts_what_was_given_before_the_oldest_ping_that_it_may_belong_to() {
        let mut given = GivenFunctions::default();
        given.on_ping(5);
        give(&mut given, 100);
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

    #[test]
    fn a_body_crosses_once_for_all_engines_of_a_host() {
        let mut given = GivenFunctions::default();
        let mut sends = |content| given.give(&function(content, 1), LIMIT_BYTES).sends_body;
        assert_eq!([1, 1, 2, 2].map(&mut sends), [true, false, true, false]);
        given.forget(&[FunctionId(3)]);
        assert!(given.give(&function(2, 1), LIMIT_BYTES).sends_body);
    }
}
