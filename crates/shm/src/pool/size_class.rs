//! Size classes of segments, so that a freed one fits the next buffer of similar size.

/// Smallest segment.
pub(crate) const MIN_SEGMENT_BYTES: u64 = 64 * 1024;
/// Above this a segment is as large as its first buffer, rounded to a page.
pub(crate) const MAX_CLASS_BYTES: u64 = 64 * 1024 * 1024;

/// Size of the segment for a buffer of `len_bytes`: a power of two, or one, two or three quarters more, so that at most a
/// fifth is not used; whole pages above [`MAX_CLASS_BYTES`]. `None` when that overflows.
pub(crate) fn segment_bytes(len_bytes: u64, page_bytes: u64) -> Option<u64> {
    if len_bytes > MAX_CLASS_BYTES {
        return len_bytes.checked_next_multiple_of(page_bytes);
    }
    let needed_bytes = len_bytes.max(MIN_SEGMENT_BYTES);
    let quarter = (needed_bytes.next_power_of_two() / 2 / 4).max(MIN_SEGMENT_BYTES / 4);
    needed_bytes
        .checked_next_multiple_of(quarter)?
        .checked_next_multiple_of(page_bytes)
}

/// Largest warm segment to use for one of `segment_bytes`: a little waste is better than a cold segment.
pub(crate) fn largest_fit_bytes(segment_bytes: u64) -> u64 {
    segment_bytes.saturating_add(segment_bytes / 4)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_are_powers_and_their_quarters() {
        let class = |n| segment_bytes(n, 4096);
        assert_eq!(class(1), Some(65_536));
        assert_eq!(class(65_536), Some(65_536));
        assert_eq!(class(65_537), Some(81_920));
        assert_eq!(class(81_921), Some(98_304));
        assert_eq!(class(98_305), Some(114_688));
        assert_eq!(class(4_000_000), Some(4 << 20));
        assert_eq!(class((32 << 20) + 1), Some(40 << 20));
        assert_eq!(class((3 << 20) - 1), Some(3 << 20));
        assert_eq!(class(MAX_CLASS_BYTES), Some(MAX_CLASS_BYTES));
        assert_eq!(class(MAX_CLASS_BYTES + 1), Some(MAX_CLASS_BYTES + 4096));
        assert_eq!(class(u64::MAX), None);
    }
}
