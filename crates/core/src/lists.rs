//! Sets and lists of small numbers in which each is found, added and removed at once, however many there are.

const NONE: u32 = u32::MAX;

/// A set, one bit for each number up to the largest.
#[derive(Clone, Debug, Default)]
pub(crate) struct NumberSet {
    /// Those below 64, which lie here because most sets have no others.
    low: u64,
    rest: Vec<u64>,
}

impl NumberSet {
    pub fn contains(&self, number: u32) -> bool {
        let word = match number / 64 {
            0 => self.low,
            index => self.rest.get(index as usize - 1).copied().unwrap_or(0),
        };
        word >> (number % 64) & 1 == 1
    }

    /// Adds a number; true if it was not there.
    pub fn insert(&mut self, number: u32) -> bool {
        let word = match (number / 64) as usize {
            0 => &mut self.low,
            n_rest => {
                if n_rest > self.rest.len() {
                    self.rest.resize(n_rest, 0);
                }
                &mut self.rest[n_rest - 1]
            }
        };
        let bit = 1 << (number % 64);
        let is_new = *word & bit == 0;
        *word |= bit;
        is_new
    }

    pub fn remove(&mut self, number: u32) {
        let word = match (number / 64) as usize {
            0 => Some(&mut self.low),
            n_rest => self.rest.get_mut(n_rest - 1),
        };
        if let Some(word) = word {
            *word &= !(1 << (number % 64));
        }
    }

    pub fn clear(&mut self) {
        self.low = 0;
        self.rest.clear();
    }

    /// In ascending order.
    pub fn iter(&self) -> impl Iterator<Item = u32> {
        let words = (0..).zip(std::iter::once(&self.low).chain(&self.rest));
        words.flat_map(|(index, word): (u32, &u64)| {
            let bits = (0..64).filter(|bit| *word >> *bit & 1 == 1);
            bits.map(move |bit| index * 64 + bit)
        })
    }
}

/// Engines by a small number: those with the same number are in one list, in the order in which they came.
#[derive(Clone, Debug, Default)]
pub(crate) struct ByNumber {
    /// First and last of each list.
    lists: Vec<(u32, u32)>,
    /// A bit for each list that is not empty.
    occupied: Vec<u64>,
    /// Previous and next of each engine.
    links: Vec<(u32, u32)>,
    pub len: usize,
}

impl ByNumber {
    pub fn insert(&mut self, number: u32, id: u32) {
        self.insert_before(number, id, |_| false);
    }

    /// Adds an engine before the last ones of its list that `is_later` names.
    pub fn insert_before(&mut self, number: u32, id: u32, is_later: impl Fn(u32) -> bool) {
        let (list, at) = (number as usize, id as usize);
        if list >= self.lists.len() {
            self.lists.resize(list + 1, (NONE, NONE));
            self.occupied.resize(list / 64 + 1, 0);
        }
        if at >= self.links.len() {
            self.links.resize(at + 1, (NONE, NONE));
        }
        let (mut before, mut next) = (self.lists[list].1, NONE);
        while before != NONE && is_later(before) {
            next = before;
            before = self.links[before as usize].0;
        }
        self.links[at] = (before, next);
        if before == NONE {
            self.lists[list].0 = id;
        } else {
            self.links[before as usize].1 = id;
        }
        if next == NONE {
            self.lists[list].1 = id;
        } else {
            self.links[next as usize].0 = id;
        }
        self.occupied[list / 64] |= 1 << (list % 64);
        self.len += 1;
    }

    pub fn remove(&mut self, number: u32, id: u32) {
        let list = number as usize;
        let (previous, next) = self.links[id as usize];
        if previous == NONE {
            self.lists[list].0 = next;
        } else {
            self.links[previous as usize].1 = next;
        }
        if next == NONE {
            self.lists[list].1 = previous;
        } else {
            self.links[next as usize].0 = previous;
        }
        if self.lists[list].0 == NONE {
            self.occupied[list / 64] &= !(1 << (list % 64));
        }
        self.len -= 1;
    }

    /// The lowest number that an engine has.
    pub fn lowest(&self) -> Option<u32> {
        let mut words = self.occupied.iter().enumerate();
        let (index, word) = words.find(|(_, word)| **word != 0)?;
        Some((index * 64) as u32 + word.trailing_zeros())
    }

    /// The engine that came last of those with this number.
    pub fn last(&self, number: u32) -> Option<u32> {
        let list = self.lists.get(number as usize)?;
        Some(list.1).filter(|id| *id != NONE)
    }

    /// The engine after this one in its list.
    pub fn after(&self, id: u32) -> Option<u32> {
        Some(self.links[id as usize].1).filter(|id| *id != NONE)
    }

    /// The engine that came first of those with this number.
    pub fn first(&self, number: u32) -> Option<u32> {
        self.lists
            .get(number as usize)
            .map(|list| list.0)
            .filter(|id| *id != NONE)
    }

    /// The highest number below this one that an engine has.
    pub fn highest_below(&self, number: u32) -> Option<u32> {
        let end = number as usize;
        let whole = (end / 64).min(self.occupied.len());
        let cut = self.occupied.get(end / 64);
        let cut = cut.map_or(0, |word| word & ((1 << (end % 64)) - 1));
        if cut != 0 {
            return Some(number / 64 * 64 + cut.ilog2());
        }
        let index = self.occupied[..whole].iter().rposition(|word| *word != 0)?;
        Some((index * 64) as u32 + self.occupied[index].ilog2())
    }

    /// Those with the lowest numbers first, each list from its front.
    pub fn ascending(&self) -> impl Iterator<Item = u32> + '_ {
        let numbers =
            (self.occupied.iter().enumerate()).flat_map(|(index, word)| bits(index, *word));
        numbers.flat_map(|number| self.list(number))
    }

    /// Those with the highest numbers first, each list from its front.
    pub fn descending(&self) -> impl Iterator<Item = u32> + '_ {
        let words = self.occupied.iter().enumerate().rev();
        let numbers = words.flat_map(|(index, word)| {
            let mut numbers: smallvec::SmallVec<[u32; 8]> = bits(index, *word).collect();
            numbers.reverse();
            numbers
        });
        numbers.flat_map(|number| self.list(number))
    }

    fn list(&self, number: u32) -> impl Iterator<Item = u32> + '_ {
        std::iter::successors(self.first(number), |id| self.after(*id))
    }
}

/// The numbers whose bits are set in a word.
fn bits(index: usize, word: u64) -> impl Iterator<Item = u32> {
    let next = |word: &u64| Some(*word & (*word - 1)).filter(|word| *word != 0);
    let words = std::iter::successors(Some(word).filter(|word| *word != 0), next);
    words.map(move |word| (index * 64) as u32 + word.trailing_zeros())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_have_numbers_on_both_sides_of_a_word() {
        let mut set = NumberSet::default();
        for number in [200, 63, 64, 0] {
            assert!(!set.contains(number));
            set.remove(number);
            assert!(set.insert(number) && !set.insert(number));
        }
        assert_eq!(set.iter().collect::<Vec<_>>(), [0, 63, 64, 200]);
        set.remove(63);
        set.remove(200);
        assert_eq!(
            [0, 63, 64, 128, 200].map(|n| set.contains(n)),
            [true, false, true, false, false]
        );
        set.clear();
        assert_eq!(set.iter().count(), 0);
    }

    #[test]
    fn lists_keep_their_order_and_their_numbers() {
        let mut by = ByNumber::default();
        for (number, id) in [(3, 0), (70, 1), (3, 2), (0, 3), (3, 4)] {
            by.insert(number, id);
        }
        assert_eq!(by.ascending().collect::<Vec<_>>(), [3, 0, 2, 4, 1]);
        assert_eq!(by.descending().collect::<Vec<_>>(), [1, 0, 2, 4, 3]);
        assert_eq!(by.lowest(), Some(0));
        let below = [0, 1, 3, 4, 70, 71, 500].map(|number| by.highest_below(number));
        let expected = [None, Some(0), Some(0), Some(3), Some(3), Some(70), Some(70)];
        assert_eq!(below, expected);
        assert_eq!(
            (by.last(3), by.last(4), by.after(2)),
            (Some(4), None, Some(4))
        );
        by.insert_before(3, 5, |id| id > 2);
        assert_eq!(by.list(3).collect::<Vec<_>>(), [0, 2, 5, 4]);
        by.remove(3, 5);
        by.insert_before(3, 5, |_| true);
        assert_eq!(by.list(3).collect::<Vec<_>>(), [5, 0, 2, 4]);
        by.remove(3, 5);
        by.remove(3, 2);
        by.remove(0, 3);
        assert_eq!(by.lowest(), Some(3));
        assert_eq!(by.ascending().collect::<Vec<_>>(), [0, 4, 1]);
        by.remove(3, 0);
        by.remove(3, 4);
        by.remove(70, 1);
        assert_eq!((by.ascending().count(), by.lowest(), by.len), (0, None, 0));
    }
}
