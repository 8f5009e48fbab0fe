//! Heap memory that is touched before it is needed.

use std::hint::black_box;

/// Touches so many bytes of this thread's heap and gives them back to it, so that what is allocated first faults no page.
///
/// The C library keeps what is given back at the top of a heap, up to a bound. Large blocks are mapped apart, until one
/// was given back: the first of the two rounds raises the bound, too.
pub fn touch_heap(bytes: usize) {
    for _ in 0..2 {
        drop(black_box(vec![1_u8; bytes]));
    }
}
