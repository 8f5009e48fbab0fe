//! Heap memory that is touched before it is needed, and released when it is no longer needed.

use std::hint::black_box;

/// Returns free heap memory to the system, including gaps between used blocks. Each page that is used again costs a
/// fault.
pub fn give_back_heap() {
    #[cfg(target_env = "gnu")]
    // SAFETY: takes no pointers, and locks the heaps itself.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Touches this many bytes of this thread's heap and frees them, so that the first allocations cause no page faults.
///
/// The C library keeps what is freed at the top of a heap, up to a limit. Large blocks are mapped separately until one
/// has been freed: the first of the two rounds also raises the limit.
pub fn touch_heap(bytes: usize) {
    for _ in 0..2 {
        drop(black_box(vec![1_u8; bytes]));
    }
}
