//! The parts that have no result yet, by their number.

use std::collections::BTreeMap;

/// The parts of one request in one record.
#[derive(Clone, Debug)]
pub struct Submitted<R, C> {
    /// Number of the first part.
    pub seq: u64,
    /// Number of parts: one per target of the record.
    pub len: usize,
    /// Their results arrive together.
    pub coalescing: bool,
    /// Payload bytes charged for each.
    pub weight_bytes: u64,
    /// The share of each in bytes that are charged once for several tasks: it is given back when it is dropped.
    pub claims: C,
    /// The request that they belong to.
    pub request: R,
}

/// A part without a result.
#[derive(Debug)]
pub struct Unresolved<R, C> {
    /// Its request.
    pub request: R,
    /// Payload bytes charged for it alone.
    pub weight_bytes: u64,
    /// Its share in what is charged once for several tasks.
    pub claims: C,
}

/// A coalescing request that ends, and how many of its parts had no result.
pub type Ended<R, C> = (Unresolved<R, C>, u64);

/// A record ends a coalescing request and stands for another number of parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mismatch;

/// The parts of a coalescing request: one entry, however many they are.
#[derive(Debug)]
struct Together<R, C> {
    request: R,
    weight_bytes: u64,
    claims: C,
    len: u64,
    n_left: u64,
    /// The parts that have a result of their own, one bit each; empty while none has.
    ended: Vec<u64>,
}

impl<R, C> Together<R, C> {
    fn is_open(&self, index: u64) -> bool {
        let word = self.ended.get((index / 64) as usize);
        index < self.len && word.is_none_or(|word| word & (1 << (index % 64)) == 0)
    }

    fn end(&mut self, index: u64) {
        self.ended.resize(self.len.div_ceil(64) as usize, 0);
        self.ended[(index / 64) as usize] |= 1 << (index % 64);
        self.n_left -= 1;
    }
}

/// Consecutive numbers whose parts are stored side by side, so that a number costs no search of its own.
const PAGE: u64 = 256;

/// The parts of one run of numbers.
#[derive(Debug)]
struct Page<R, C> {
    parts: Box<[Option<Unresolved<R, C>>]>,
    n_left: u64,
}

impl<R, C> Page<R, C> {
    fn new() -> Self {
        Self {
            parts: (0..PAGE).map(|_| None).collect(),
            n_left: 0,
        }
    }
}

/// Parts by number.
#[derive(Debug)]
struct Pages<R, C> {
    pages: BTreeMap<u64, Page<R, C>>,
    /// An empty one, for the next use.
    spare: Option<Page<R, C>>,
}

impl<R, C> Pages<R, C> {
    #[inline]
    fn insert(&mut self, seq: u64, part: Unresolved<R, C>) {
        let spare = &mut self.spare;
        let page = self
            .pages
            .entry(seq / PAGE)
            .or_insert_with(|| spare.take().unwrap_or_else(Page::new));
        let before = page.parts[(seq % PAGE) as usize].replace(part);
        page.n_left += u64::from(before.is_none());
    }

    #[inline]
    fn get(&self, seq: u64) -> Option<&Unresolved<R, C>> {
        self.pages.get(&(seq / PAGE))?.parts[(seq % PAGE) as usize].as_ref()
    }

    #[inline]
    fn remove(&mut self, seq: u64) -> Option<Unresolved<R, C>> {
        let page = self.pages.get_mut(&(seq / PAGE))?;
        let part = page.parts[(seq % PAGE) as usize].take()?;
        page.n_left -= 1;
        if page.n_left == 0 {
            self.spare = self.pages.remove(&(seq / PAGE));
        }
        Some(part)
    }

    fn seqs(&self) -> impl Iterator<Item = u64> {
        self.pages.iter().flat_map(|(number, page)| {
            let parts = (number * PAGE..).zip(page.parts.iter());
            parts.filter_map(|(seq, part)| part.is_some().then_some(seq))
        })
    }
}

/// The parts that have no result yet. `R` is a request, `C` what its parts have a share in.
///
/// A part leaves the table when its result arrives, or the link is lost: exactly once. Whoever gives up waiting for it
/// does not change that, because its task may still run and holds what was charged for it.
#[derive(Debug)]
pub struct Table<R, C> {
    single: Pages<R, C>,
    /// By the number of the first part.
    together: BTreeMap<u64, Together<R, C>>,
}

impl<R, C> Default for Table<R, C> {
    fn default() -> Self {
        Self {
            single: Pages {
                pages: BTreeMap::new(),
                spare: None,
            },
            together: BTreeMap::new(),
        }
    }
}

impl<R: Clone, C: Clone> Table<R, C> {
    /// Adds submitted parts.
    #[inline]
    pub fn insert(&mut self, parts: Submitted<R, C>) {
        let Submitted {
            seq: first,
            len,
            coalescing,
            weight_bytes,
            claims,
            request,
        } = parts;
        let len = len as u64;
        if coalescing {
            let together = Together {
                request,
                weight_bytes,
                claims,
                len,
                n_left: len,
                ended: Vec::new(),
            };
            self.together.insert(first, together);
            return;
        }
        for seq in first..first + len {
            let part = Unresolved {
                request: request.clone(),
                weight_bytes,
                claims: claims.clone(),
            };
            self.single.insert(seq, part);
        }
    }

    fn together_with(&self, seq: u64) -> Option<(u64, &Together<R, C>)> {
        let (first, entry) = self.together.range(..=seq).next_back()?;
        (seq - first < entry.len).then_some((*first, entry))
    }

    /// Whether a part has no result.
    pub fn contains(&self, seq: u64) -> bool {
        self.find(seq).is_some()
    }

    /// The request of a part that has no result.
    #[inline]
    pub fn find(&self, seq: u64) -> Option<R> {
        if let Some(entry) = self.single.get(seq) {
            return Some(entry.request.clone());
        }
        let (first, entry) = self.together_with(seq)?;
        (entry.is_open(seq - first)).then(|| entry.request.clone())
    }

    /// Removes a part that gets its result separately. `None` if it has one already.
    #[inline]
    pub fn remove(&mut self, seq: u64) -> Option<Unresolved<R, C>> {
        self.single
            .remove(seq)
            .or_else(|| self.remove_from_together(seq))
    }

    #[cold]
    fn remove_from_together(&mut self, seq: u64) -> Option<Unresolved<R, C>> {
        let first = self.together_with(seq)?.0;
        let entry = self.together.get_mut(&first)?;
        if !entry.is_open(seq - first) {
            return None;
        }
        let found = Unresolved {
            request: entry.request.clone(),
            weight_bytes: entry.weight_bytes,
            claims: entry.claims.clone(),
        };
        entry.end(seq - first);
        if entry.n_left == 0 {
            self.together.remove(&first);
        }
        Some(found)
    }

    /// Removes a coalescing request whose `len` parts get their results together; returns it, and how many of the parts
    /// had none.
    ///
    /// # Errors
    /// [`Mismatch`] if it has another number of parts; it stays.
    pub fn remove_together(
        &mut self,
        first: u64,
        len: usize,
    ) -> Result<Option<Ended<R, C>>, Mismatch> {
        let Some(entry) = self.together.get(&first) else {
            return Ok(None);
        };
        if entry.len != len as u64 {
            return Err(Mismatch);
        }
        Ok(self.together.remove(&first).map(|entry| {
            let parts = Unresolved {
                request: entry.request,
                weight_bytes: entry.weight_bytes,
                claims: entry.claims,
            };
            (parts, entry.n_left)
        }))
    }

    /// Numbers of all parts, ascending.
    pub fn seqs(&self) -> Vec<u64> {
        let together = self.together.iter().flat_map(|(first, entry)| {
            let open = (0..entry.len).filter(|index| entry.is_open(*index));
            open.map(move |index| first + index)
        });
        let mut seqs: Vec<u64> = self.single.seqs().chain(together).collect();
        seqs.sort_unstable();
        seqs
    }

    /// Removes from the end of a list of numbers those that have a result, up to the first that has none; returns whether
    /// the list is empty. It looks at each number once, however often it is called.
    pub fn drop_resolved(&self, seqs: &mut Vec<u64>) -> bool {
        while seqs.pop_if(|seq| !self.contains(*seq)).is_some() {}
        seqs.is_empty()
    }

    /// Whether every part has a result.
    pub fn is_empty(&self) -> bool {
        self.single.pages.is_empty() && self.together.is_empty()
    }

    /// Removes everything, ascending.
    pub fn drain(&mut self) -> Vec<(u64, Unresolved<R, C>)> {
        let seqs = self.seqs();
        let drained = seqs
            .into_iter()
            .filter_map(|seq| Some((seq, self.remove(seq)?)));
        drained.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(seq: u64, len: usize, coalescing: bool) -> Submitted<char, ()> {
        Submitted {
            seq,
            len,
            coalescing,
            weight_bytes: 3,
            claims: (),
            request: 'r',
        }
    }

    #[test]
    fn a_part_is_there_until_it_has_a_result() {
        for coalescing in [false, true] {
            let mut table = Table::default();
            table.insert(parts(250, 100, coalescing));
            assert!(!table.contains(249) && table.contains(250));
            assert!(table.contains(349) && !table.contains(350));
            assert_eq!(table.remove(300).map(|p| p.weight_bytes), Some(3));
            assert!(table.remove(300).is_none(), "a result that comes twice");
            assert!(!table.contains(300) && table.find(300).is_none());
            assert_eq!(table.find(301), Some('r'));
            assert_eq!(table.seqs().len(), 99);
            let mut waited_for = vec![299, 300];
            assert!(!table.drop_resolved(&mut waited_for));
            assert_eq!(waited_for, [299]);
            assert_eq!(table.drain().len(), 99);
            assert!(table.is_empty());
        }
    }

    #[test]
    fn parts_that_end_together_are_counted_once() {
        let mut table = Table::default();
        table.insert(parts(5, 10, true));
        table.remove(7);
        assert_eq!(table.remove_together(5, 9).err(), Some(Mismatch));
        assert!(
            table.contains(5),
            "nobody waits for ever for what was ended wrongly"
        );
        assert!(table.remove_together(6, 10).unwrap().is_none());
        let (_, n) = table.remove_together(5, 10).unwrap().unwrap();
        assert_eq!(n, 9);
        assert!(table.is_empty());
        assert!(table.remove(5).is_none());
    }
}
