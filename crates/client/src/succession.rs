//! Whether a client goes on when the controller is gone: with another one that takes its place.
//!
//! A client has one session after the other, each with a controller of its own. When the controller of one has died and
//! has kept a journal, the client waits for the next controller. It prepares a session with that one, and uses it once it
//! is ready. That controller may die as well, also before the session is ready.

/// What the client does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// It uses its last session, which is lost if that has ended without another one being awaited.
    Uses,
    /// It waits for another controller.
    Awaits,
    /// It prepares a session with another controller, which may have died meanwhile.
    Prepares { is_lost: bool },
    /// It is closed.
    Over,
}

/// What follows from the end of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sequel {
    /// The client is closed.
    Over,
    /// It must be dialled until another controller accepts this client.
    Dial,
    /// Somebody dials already.
    Dials,
}

/// See the module.
#[derive(Clone, Copy, Debug)]
pub struct Succession {
    state: State,
    /// The number of the session in use, or the last one that was.
    current: u32,
    /// Another controller may take the place of the one in use.
    may_go_on: bool,
}

impl Succession {
    /// The first session has number 0. `may_go_on` says whether its controller would have a successor.
    pub fn new(may_go_on: bool) -> Self {
        Self {
            state: State::Uses,
            current: 0,
            may_go_on,
        }
    }

    /// A session has ended; `has_died` says whether its controller may have died, rather than said that it ends, or was
    /// left.
    pub fn on_lost(&mut self, number: u32, has_died: bool) -> Sequel {
        match &mut self.state {
            State::Over => return Sequel::Over,
            State::Prepares { is_lost } if number > self.current => {
                *is_lost = true;
                return Sequel::Dials;
            }
            // An earlier one ends once more.
            State::Prepares { .. } | State::Awaits => return Sequel::Dials,
            State::Uses => {}
        }
        if has_died && self.may_go_on {
            self.state = State::Awaits;
            Sequel::Dial
        } else {
            self.state = State::Over;
            Sequel::Over
        }
    }

    /// Another controller has accepted the client. The number of the session with it; `None` if the client was closed
    /// meanwhile.
    pub fn on_accepted(&mut self) -> Option<u32> {
        (self.state == State::Awaits).then(|| {
            self.state = State::Prepares { is_lost: false };
            self.current + 1
        })
    }

    /// The session is ready. Returns whether it is used from now on; otherwise its controller has died or the client was
    /// closed.
    pub fn on_ready(&mut self, may_go_on: bool) -> bool {
        let State::Prepares { is_lost } = self.state else {
            return false;
        };
        if is_lost {
            self.state = State::Awaits;
            return false;
        }
        self.state = State::Uses;
        self.current += 1;
        self.may_go_on = may_go_on;
        true
    }

    /// The client is closed, or no controller has accepted it in time.
    pub fn close(&mut self) {
        self.state = State::Over;
    }

    /// Whether the client is closed.
    pub fn is_over(&self) -> bool {
        self.state == State::Over
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_goes_on_as_often_as_its_controller_dies() {
        let mut client = Succession::new(true);
        for number in 0..3 {
            assert_eq!(client.on_lost(number, true), Sequel::Dial);
            assert_eq!(client.on_lost(number, true), Sequel::Dials);
            assert!(!client.is_over());
            assert_eq!(client.on_accepted(), Some(number + 1));
            assert_eq!(client.on_lost(number, true), Sequel::Dials);
            assert!(client.on_ready(true));
        }
    }

    #[test]
    fn it_is_closed_without_a_journal_or_when_the_end_was_announced() {
        let mut client = Succession::new(false);
        assert_eq!(client.on_lost(0, true), Sequel::Over);
        assert!(client.is_over());
        let mut client = Succession::new(true);
        assert_eq!(client.on_lost(0, false), Sequel::Over);
        assert!(client.is_over());
        let mut client = Succession::new(true);
        assert_eq!(client.on_lost(0, true), Sequel::Dial);
        assert_eq!(client.on_accepted(), Some(1));
        assert!(client.on_ready(false), "its successor keeps no journal");
        assert_eq!(client.on_lost(1, true), Sequel::Over);
    }

    #[test]
    fn a_controller_that_dies_before_the_session_is_ready_is_not_used() {
        let mut client = Succession::new(true);
        assert_eq!(client.on_lost(0, true), Sequel::Dial);
        assert_eq!(client.on_accepted(), Some(1));
        assert_eq!(client.on_lost(1, true), Sequel::Dials);
        assert!(!client.on_ready(true));
        assert_eq!(client.on_accepted(), Some(1));
        assert!(client.on_ready(true));
        assert_eq!(client.on_lost(1, true), Sequel::Dial);
    }

    #[test]
    fn nothing_opens_a_closed_client() {
        let mut client = Succession::new(true);
        assert_eq!(client.on_lost(0, true), Sequel::Dial);
        client.close();
        assert_eq!(client.on_accepted(), None);
        assert!(client.is_over());
        let mut client = Succession::new(true);
        assert_eq!(client.on_lost(0, true), Sequel::Dial);
        assert_eq!(client.on_accepted(), Some(1));
        client.close();
        assert!(!client.on_ready(true));
        assert_eq!(client.on_lost(1, true), Sequel::Over);
        assert!(client.is_over());
    }
}
