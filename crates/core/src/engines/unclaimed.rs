//! The offers of an engine that were never started, when its link is gone.

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Unclaimed {
    /// Sorted.
    listed: Vec<u32>,
    /// The first offer that had not reached its board, and how many those are.
    on_the_way: (u32, u32),
}

impl Unclaimed {
    pub fn new(mut listed: Vec<u32>, on_the_way: (u32, u32)) -> Self {
        listed.sort_unstable();
        Self { listed, on_the_way }
    }

    pub fn contains(&self, offer: u32) -> bool {
        let (first, n) = self.on_the_way;
        offer.wrapping_sub(first) < n || self.listed.binary_search(&offer).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offers_on_the_way_are_counted_over_the_end_of_their_numbers() {
        let unclaimed = Unclaimed {
            listed: vec![7],
            on_the_way: (u32::MAX, 3),
        };
        let found = [u32::MAX - 1, u32::MAX, 0, 1, 2, 7].map(|offer| unclaimed.contains(offer));
        assert_eq!(found, [false, true, true, true, false, true]);
        assert!(!Unclaimed::default().contains(0));
    }
}
