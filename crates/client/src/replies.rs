//! Control requests, and their replies.

use std::collections::BTreeMap;

/// Requests by number, each with its reply once that has arrived. Only those that somebody waits for are in it.
#[derive(Debug)]
pub struct Replies<T> {
    next: u64,
    awaited: BTreeMap<u64, Option<T>>,
}

impl<T> Default for Replies<T> {
    fn default() -> Self {
        Self {
            next: 0,
            awaited: BTreeMap::new(),
        }
    }
}

impl<T> Replies<T> {
    /// The number of a request whose reply nobody waits for.
    pub fn number(&mut self) -> u64 {
        let number = self.next;
        self.next += 1;
        number
    }

    /// The number of a request whose reply somebody waits for, until it is taken.
    pub fn start(&mut self) -> u64 {
        let number = self.number();
        self.awaited.insert(number, None);
        number
    }

    /// A reply has arrived; it is dropped if nobody waits for it.
    pub fn on_reply(&mut self, number: u64, reply: T) {
        if let Some(slot) = self.awaited.get_mut(&number) {
            *slot = Some(reply);
        }
    }

    /// Whether there is nothing to wait for: the reply is there, or has been taken.
    pub fn is_answered(&self, number: u64) -> bool {
        !matches!(self.awaited.get(&number), Some(None))
    }

    /// Takes the reply, or gives up waiting for it.
    pub fn take(&mut self, number: u64) -> Option<T> {
        self.awaited.remove(&number).flatten()
    }

    /// Number of requests that somebody waits for.
    pub fn len(&self) -> usize {
        self.awaited.len()
    }

    /// Whether nobody waits for a reply.
    pub fn is_empty(&self) -> bool {
        self.awaited.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reply_waits_for_the_one_who_asked() {
        let mut replies = Replies::default();
        let (first, second) = (replies.start(), replies.start());
        assert!(!replies.is_answered(first));
        replies.on_reply(first, "a");
        assert!(replies.is_answered(first) && !replies.is_answered(second));
        assert_eq!(
            (replies.take(first), replies.take(first)),
            (Some("a"), None)
        );
        assert!(replies.is_answered(first), "taken");
        assert_eq!(replies.take(second), None);
        replies.on_reply(second, "late");
        let unheard = replies.number();
        replies.on_reply(unheard, "nobody asked");
        assert!(replies.is_empty());
        assert_eq!(replies.start(), 3);
    }
}
