//! Randomness from a seed: splitmix64.

/// A generator.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// The same seed gives the same numbers.
    pub fn new(seed: u64) -> Self {
        Self(seed ^ 0x6a09_e667_f3bc_c909)
    }
    /// Any number.
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
    /// A number below `bound`; 0 for a bound of 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound.max(1)
    }
    /// True in `percent` of 100 calls.
    pub fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }
    /// A time spread over orders of magnitude up to `max_ns`, so that both short and long ones occur.
    pub fn time(&mut self, max_ns: u64) -> u64 {
        let shift = self.below(16);
        self.below(max_ns >> shift)
    }
}
