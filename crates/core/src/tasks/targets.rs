//! Sets of engines as a client named them: ranges, never written out. A set of a few bytes may name 65,536 engines.

use broadleaf_proto::control::TargetSet;

/// Maximum number of engine slots, and of targets of one request.
pub(crate) const MAX_ENGINES: u32 = 65_536;

/// Half-open ranges of engines, in target order.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Targets(Vec<(u32, u32)>);

impl Targets {
    /// The targets of a set that could exist; `None` for all. If a set names one that cannot exist,
    /// or too many, only that target is returned.
    pub fn of(targets: &TargetSet) -> Option<Self> {
        let TargetSet::Ranges(ranges) = targets else {
            return None;
        };
        let mut n = 0_u64;
        let mut own = Self::default();
        for (first, end) in ranges {
            n += u64::from(end.0.saturating_sub(first.0));
            if end.0 > MAX_ENGINES || n > u64::from(MAX_ENGINES) {
                return Some(Self(vec![(MAX_ENGINES, MAX_ENGINES + 1)]));
            }
            own.push(first.0, end.0);
        }
        own.0.shrink_to_fit();
        Some(own)
    }

    /// Engines in ascending order.
    pub fn of_sorted(engines: impl IntoIterator<Item = u32>) -> Self {
        let mut own = Self::default();
        for engine in engines {
            own.push(engine, engine + 1);
        }
        own
    }

    fn push(&mut self, first: u32, end: u32) {
        match self.0.last_mut() {
            _ if first >= end => {}
            Some(last) if last.1 == first => last.1 = end,
            _ => self.0.push((first, end)),
        }
    }

    /// The number of engines.
    pub fn len(&self) -> usize {
        self.0
            .iter()
            .map(|(first, end)| (end - first) as usize)
            .sum()
    }

    /// Memory that they take, in bytes.
    pub fn held_bytes(&self) -> usize {
        self.0.len() * size_of::<(u32, u32)>()
    }

    /// Engines in target order.
    pub fn iter(&self) -> impl Iterator<Item = u32> {
        self.0.iter().flat_map(|(first, end)| *first..*end)
    }

    pub fn contains(&self, engine: u32) -> bool {
        self.0
            .iter()
            .any(|(first, end)| (*first..*end).contains(&engine))
    }

    /// The same engines, each once and in ascending order.
    pub fn sorted(&self) -> Self {
        let mut ranges = self.0.clone();
        ranges.sort_unstable();
        let mut own = Self::default();
        for (first, end) in ranges {
            let covered = own.0.last().map_or(0, |last| last.1);
            own.push(first.max(covered), end);
        }
        own
    }

    /// As [`Self::contains`], for sorted targets.
    pub fn sorted_contains(&self, engine: u32) -> bool {
        let after = self.0.partition_point(|(first, _)| *first <= engine);
        after > 0 && engine < self.0[after - 1].1
    }
}

#[cfg(test)]
mod tests {
    use broadleaf_proto::ids::EngineId;

    use super::*;

    fn targets(ranges: &[(u32, u32)]) -> Option<Targets> {
        let ranges = ranges.iter().map(|(a, b)| (EngineId(*a), EngineId(*b)));
        Targets::of(&TargetSet::Ranges(ranges.collect()))
    }

    #[test]
    fn targets_keep_their_order_and_count_as_often_as_they_are_named() {
        let named = targets(&[(5, 7), (7, 8), (1, 3), (5, 6), (9, 2)]).unwrap_or_default();
        assert_eq!(named.iter().collect::<Vec<_>>(), [5, 6, 7, 1, 2, 5]);
        assert_eq!((named.len(), named.held_bytes()), (6, 24));
        let sorted = named.sorted();
        assert_eq!(sorted.iter().collect::<Vec<_>>(), [1, 2, 5, 6, 7]);
        for engine in 0..10 {
            assert_eq!(named.contains(engine), sorted.sorted_contains(engine));
        }
        assert_eq!(Targets::of(&TargetSet::All), None);
    }

    #[test]
    fn what_cannot_exist_takes_no_memory() {
        for ranges in [
            &[(0, MAX_ENGINES + 1)][..],
            &[(0, u32::MAX), (0, u32::MAX)],
            &[(0, MAX_ENGINES), (0, 1)],
        ] {
            let named = targets(ranges).unwrap_or_default();
            assert_eq!(named.iter().collect::<Vec<_>>(), [MAX_ENGINES]);
        }
        let all = targets(&[(0, MAX_ENGINES)]).unwrap_or_default();
        assert_eq!((all.len(), all.held_bytes()), (MAX_ENGINES as usize, 8));
    }
}
