//! Memory that was touched in advance causes no page faults. This is a test binary of its own,
//! because other tests would use up the heap.

#![allow(clippy::unwrap_used)]

use std::hint::black_box;

/// Page faults of this thread so far.
fn faults() -> u64 {
    let stat = std::fs::read_to_string("/proc/thread-self/stat").unwrap();
    let (_, fields) = stat.rsplit_once(')').unwrap();
    fields.split_whitespace().nth(7).unwrap().parse().unwrap()
}

/// Number of page faults while this many bytes are allocated in blocks and written.
fn faults_of(bytes: usize) -> u64 {
    const BLOCK_BYTES: usize = 50_000;
    let before = faults();
    let blocks: Vec<_> = (0..bytes / BLOCK_BYTES)
        .map(|_| black_box(vec![1_u8; BLOCK_BYTES]))
        .collect();
    let after = faults();
    drop(blocks);
    after - before
}

#[test]
fn what_is_allocated_first_faults_no_page() {
    const BYTES: usize = 2 << 20;
    let untouched = std::thread::spawn(|| faults_of(BYTES)).join().unwrap();
    let touched = std::thread::spawn(|| {
        broadleaf_shm::touch_heap(BYTES);
        faults_of(BYTES / 2)
    });
    let touched = touched.join().unwrap();
    assert!(
        untouched > 400 && touched < 10,
        "{untouched} and {touched} page faults"
    );
}
