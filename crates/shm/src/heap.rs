//! Heap memory that is touched before it is needed, and given back when it is no more.

use std::hint::black_box;

/// Gives free memory of the heap back to the system, from between what is in use, too. It costs a fault for each page
/// that is used again.
pub fn give_back_heap() {
    #[cfg(target_env = "gnu")]
    // SAFETY: takes no pointers, and locks the heaps itself.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Touches so many bytes of this thread's heap and gives them back to it, so that what is allocated first faults no page.
///
/// The C library keeps what is given back at the top of a heap, up to a bound. Large blocks are mapped apart, until one
/// was given back: the first of the two rounds raises the bound, too.
pub fn touch_heap(bytes: usize) {
    for _ in 0..2 {
        drop(black_box(vec![1_u8; bytes]));
    }
}
