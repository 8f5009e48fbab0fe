//! The parts that have no result yet, by their number.

use std::collections::BTreeMap;
use std::sync::Arc;

use rustc_hash::FxHashMap;

use crate::client::requests::request::Request;
use crate::client::shared::{Claims, SubmittedParts};

/// A part without a result.
pub struct Unresolved {
    /// Its request.
    pub request: Arc<Request>,
    /// Payload bytes charged for it alone.
    pub weight_bytes: u64,
    /// Its share in what is charged once for several tasks, given back when this is dropped.
    _claims: Claims,
}

impl Unresolved {
    /// Which of its request's parts has this number.
    pub fn index(&self, seq: u64) -> usize {
        (seq - self.request.base) as usize
    }
}

/// The parts of a coalescing request: one entry, however many they are.
struct Together {
    request: Arc<Request>,
    weight_bytes: u64,
    claims: Claims,
    n_left: u64,
}

/// Consecutive numbers whose parts are stored side by side, so that a number costs no search of its own.
const PAGE: u64 = 256;

/// The parts of one run of numbers.
struct Page {
    parts: Box<[Option<Unresolved>]>,
    n_left: u64,
}

impl Page {
    fn new() -> Self {
        Self {
            parts: (0..PAGE).map(|_| None).collect(),
            n_left: 0,
        }
    }
}

/// Parts by number.
#[derive(Default)]
struct Pages {
    pages: FxHashMap<u64, Page>,
    /// An empty one, for the next use.
    spare: Option<Page>,
}

impl Pages {
    fn insert(&mut self, seq: u64, part: Unresolved) {
        let spare = &mut self.spare;
        let page = self
            .pages
            .entry(seq / PAGE)
            .or_insert_with(|| spare.take().unwrap_or_else(Page::new));
        let before = page.parts[(seq % PAGE) as usize].replace(part);
        page.n_left += u64::from(before.is_none());
    }

    fn get(&self, seq: u64) -> Option<&Unresolved> {
        self.pages.get(&(seq / PAGE))?.parts[(seq % PAGE) as usize].as_ref()
    }

    fn remove(&mut self, seq: u64) -> Option<Unresolved> {
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

/// See the module.
#[derive(Default)]
pub struct Table {
    single: Pages,
    /// By the number of the first part.
    together: BTreeMap<u64, Together>,
}

impl Table {
    /// Adds submitted parts.
    pub fn insert(&mut self, parts: SubmittedParts) {
        let SubmittedParts {
            seq,
            len,
            weight_bytes,
            claims,
            request,
        } = parts;
        if request.is_coalescing() {
            let n_left = len as u64;
            self.together.insert(
                seq,
                Together {
                    request,
                    weight_bytes,
                    claims,
                    n_left,
                },
            );
            return;
        }
        for seq in seq..seq + len as u64 {
            let request = Arc::clone(&request);
            self.single.insert(
                seq,
                Unresolved {
                    request,
                    weight_bytes,
                    _claims: claims.clone(),
                },
            );
        }
    }

    fn together_with(&self, seq: u64) -> Option<(u64, &Together)> {
        let (first, entry) = self.together.range(..=seq).next_back()?;
        (seq - first < entry.request.len as u64).then_some((*first, entry))
    }

    /// Whether a part has no result.
    pub fn contains(&self, seq: u64) -> bool {
        self.single.get(seq).is_some()
            || self.together_with(seq).is_some_and(|(first, entry)| {
                let index = (seq - first) as usize;
                entry.request.status(index).is_none()
            })
    }

    /// The request and part of a number.
    pub fn find(&self, seq: u64) -> Option<(Arc<Request>, usize)> {
        if let Some(entry) = self.single.get(seq) {
            return Some((Arc::clone(&entry.request), entry.index(seq)));
        }
        let (first, entry) = self.together_with(seq)?;
        Some((Arc::clone(&entry.request), (seq - first) as usize))
    }

    /// Removes a part that gets its result separately.
    pub fn remove(&mut self, seq: u64) -> Option<Unresolved> {
        if let Some(entry) = self.single.remove(seq) {
            return Some(entry);
        }
        let first = self.together_with(seq)?.0;
        let entry = self.together.get_mut(&first)?;
        let found = Unresolved {
            request: Arc::clone(&entry.request),
            weight_bytes: entry.weight_bytes,
            _claims: entry.claims.clone(),
        };
        entry.n_left -= 1;
        if entry.n_left == 0 {
            self.together.remove(&first);
        }
        Some(found)
    }

    /// Removes a coalescing request that gets all its results; returns the request, and the payload bytes of each part.
    pub fn remove_together(&mut self, first: u64) -> Option<(Arc<Request>, u64)> {
        let entry = self.together.remove(&first)?;
        Some((entry.request, entry.weight_bytes))
    }

    /// Numbers of all parts, ascending.
    pub fn seqs(&self) -> Vec<u64> {
        let together = self.together.iter().flat_map(|(first, entry)| {
            let open = (0..entry.request.len).filter(|i| entry.request.status(*i).is_none());
            open.map(move |index| first + index as u64)
        });
        let mut seqs: Vec<u64> = self.single.seqs().chain(together).collect();
        seqs.sort_unstable();
        seqs
    }

    /// Removes everything.
    pub fn drain(&mut self) -> Vec<(u64, Unresolved)> {
        let seqs = self.seqs();
        seqs.into_iter()
            .filter_map(|seq| Some((seq, self.remove(seq)?)))
            .collect()
    }
}
