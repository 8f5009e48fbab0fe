//! The word in which the engines of a host count their answers to a broadcast that is on the host's lane.

/// Each answer wakes the node.
const HURRY: u64 = 1 << 31;
/// The number of answers that are missing.
const MISSING: u64 = HURRY - 1;

/// The number of the round, in the upper half; whether the node is in a hurry; and the number of answers that are missing.
///
/// Each broadcast is a round. An engine whose answer went through its socket may count it only in the next round, and a
/// count of another round changes nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LaneWord(pub u64);

impl LaneWord {
    /// The next round, in which so many answers are missing.
    #[must_use]
    pub fn begin(self, n_tasks: u32) -> Self {
        let round = self.round().wrapping_add(1);
        Self(u64::from(round) << 32 | u64::from(n_tasks) & MISSING)
    }

    /// The number of the round.
    pub fn round(self) -> u32 {
        (self.0 >> 32) as u32
    }

    /// The number of answers that are missing.
    pub fn n_missing(self) -> u32 {
        (self.0 & MISSING) as u32
    }

    /// The same, and from here on each answer wakes the node.
    #[must_use]
    pub fn hurry(self) -> Self {
        Self(self.0 | HURRY)
    }

    /// An engine counts its answer to a round: the new word, if that changes it, and whether it must wake the node.
    pub fn count(self, round: u32) -> (Option<Self>, bool) {
        let is_its_round = self.round() == round;
        if is_its_round && self.n_missing() > 0 {
            let wakes = self.0 & HURRY != 0 || self.n_missing() == 1;
            (Some(Self(self.0 - 1)), wakes)
        } else {
            // One too many: the node may not know of it yet. It has begun another round only knowing of it.
            (None, is_its_round)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Counts once in the word; returns whether that wakes the node.
    fn count(word: &mut LaneWord, round: u32) -> bool {
        let (next, wakes) = word.count(round);
        *word = next.unwrap_or(*word);
        wakes
    }

    #[test]
    fn only_the_last_answer_wakes_the_node_unless_it_is_in_a_hurry() {
        let mut word = LaneWord::default().begin(3);
        let round = word.round();
        let wakes = [(); 4].map(|()| count(&mut word, round));
        assert_eq!(wakes, [false, false, true, true], "one too many wakes it");
        assert_eq!(word.n_missing(), 0);
        let mut word = word.begin(3);
        let round = word.round();
        assert!(!count(&mut word, round));
        word = word.hurry();
        assert_eq!(word.n_missing(), 2);
        let wakes = [(); 4].map(|()| count(&mut word, round));
        assert_eq!(wakes, [true; 4], "too many take nobody's wake-up");
        assert_eq!(word.n_missing(), 0);
    }

    #[test]
    fn an_answer_that_is_counted_late_is_not_one_of_the_next_round() {
        for last in [0, u32::MAX] {
            let early = LaneWord(u64::from(last) << 32 | 2);
            let mut word = early.begin(1);
            assert_ne!(word.round(), early.round());
            assert!(!count(&mut word, early.round()));
            assert!(!count(&mut word, early.round()));
            assert_eq!(word.n_missing(), 1);
            let round = word.round();
            assert!(count(&mut word, round));
        }
    }
}
