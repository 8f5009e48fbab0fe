//! Memory in which arrays are allocated: who sees whose writes, when bytes are copied, and what is
//! reused.
#![expect(clippy::unwrap_used, reason = "a test may fail")]

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use broadleaf_shm::{
    AllocationSegment, Segment, SharedAllocation, on_connected, on_disconnected, trim_allocations,
};

const LEN: u64 = 300_000;

/// Free segments belong to the whole process, so tests that look at them take turns.
fn alone() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    // The only connection ends, which closes the warm segments, and another begins.
    on_disconnected();
    on_connected(10);
    turn
}

#[allow(unsafe_code)]
fn write(memory: &SharedAllocation, at: usize, byte: u8) {
    assert!(at < memory.len());
    // SAFETY: inside the memory, which no other thread uses.
    unsafe { memory.as_mut_ptr().add(at).write(byte) };
}

#[allow(unsafe_code)]
fn read(memory: &SharedAllocation, at: usize) -> u8 {
    assert!(at < memory.len());
    // SAFETY: inside the memory, which no other thread uses.
    unsafe { memory.as_mut_ptr().add(at).read() }
}

/// The segment as seen by a process that was sent its descriptor.
fn received(created: &AllocationSegment) -> Segment {
    let segment = created.segment();
    let fd = segment.fd().try_clone_to_owned().unwrap();
    Segment::from_fd(fd, segment.len()).unwrap()
}

#[test]
fn the_first_publication_copies_nothing_and_parts_the_two_sides() {
    let _turn = alone();
    let memory = SharedAllocation::new(LEN, true).unwrap();
    write(&memory, 7, 1);
    let address = memory.as_mut_ptr();
    let (sent, copied) = memory.publish().unwrap();
    assert!(!copied);
    let mut view = received(&sent).map_private(0, LEN).unwrap();
    assert_eq!((view[7], view[8]), (1, 0));
    write(&memory, 8, 2);
    view.as_mut_slice().unwrap()[9] = 3;
    assert_eq!((view[8], read(&memory, 8), read(&memory, 9)), (0, 2, 0));
    assert_eq!(memory.as_mut_ptr(), address);
}

#[test]
fn publishing_again_copies_only_what_was_written_to() {
    let _turn = alone();
    let memory = SharedAllocation::new(LEN, true).unwrap();
    let (first, _) = memory.publish().unwrap();
    let (again, copied) = memory.publish().unwrap();
    assert!(!copied && Arc::ptr_eq(&first, &again));
    write(&memory, LEN as usize - 1, 5);
    let (second, copied) = memory.publish().unwrap();
    assert!(copied && !Arc::ptr_eq(&first, &second));
    let end = LEN as usize - 1;
    assert_eq!(received(&first).map_private(0, LEN).unwrap()[end], 0);
    assert_eq!(received(&second).map_private(0, LEN).unwrap()[end], 5);
    assert!(
        !memory.publish().unwrap().1,
        "moved to the new segment, and not written to since"
    );
}

#[test]
fn a_window_is_seen_by_all_until_it_is_published() {
    let _turn = alone();
    let memory = SharedAllocation::new(LEN, true).unwrap();
    let (window, copied) = memory.open_window().unwrap();
    assert!(!copied);
    let other = received(&window).map_shared(0, LEN).unwrap();
    write(&memory, 0, 1);
    assert_eq!(other[0], 1);
    assert!(!other.is_private() && other.is_writable());
    assert!(!other.is_untouched(0, 1), "others may write at any time");
    let (published, copied) = memory.publish().unwrap();
    assert!(copied);
    write(&memory, 0, 2);
    assert_eq!(other[0], 2, "still a window");
    assert_eq!(received(&published).map_private(0, LEN).unwrap()[0], 1);
}

#[test]
fn what_was_published_becomes_a_window_by_a_copy() {
    let _turn = alone();
    let memory = SharedAllocation::new(LEN, true).unwrap();
    let (published, _) = memory.publish().unwrap();
    write(&memory, 3, 9);
    let (window, copied) = memory.open_window().unwrap();
    assert!(copied);
    let other = received(&window).map_shared(0, LEN).unwrap();
    assert_eq!(other[3], 9);
    write(&memory, 4, 8);
    assert_eq!(other[4], 8);
    assert_eq!(received(&published).map_private(0, LEN).unwrap()[3], 0);
}

#[test]
fn a_segment_is_used_again_once_its_last_holder_lets_go() {
    let _turn = alone();
    let memory = SharedAllocation::new(LEN, true).unwrap();
    write(&memory, 0, 77);
    let (sent, _) = memory.publish().unwrap();
    drop(memory);
    let fresh = SharedAllocation::new(LEN, false).unwrap();
    assert_eq!(read(&fresh, 0), 0, "still held: a segment of its own");
    drop(sent);
    let warm = SharedAllocation::new(LEN, false).unwrap();
    assert_eq!(read(&warm, 0), 77, "any content");
    drop(warm);
    let zeroed = SharedAllocation::new(LEN, true).unwrap();
    assert_eq!(read(&zeroed, 0), 0);
}

#[test]
fn idle_segments_are_closed() {
    let _turn = alone();
    let memory = SharedAllocation::new(LEN, true).unwrap();
    write(&memory, 0, 77);
    drop(memory);
    for _ in 0..11 {
        trim_allocations();
    }
    assert_eq!(read(&SharedAllocation::new(LEN, false).unwrap(), 0), 0);
}

#[test]
fn a_private_view_takes_the_bytes_of_another_segment_in_place() {
    let _turn = alone();
    let page = 4096;
    let make = |byte: u8| {
        let mut created = AllocationSegment::new(page).unwrap();
        created.write(&vec![byte; page as usize]).unwrap();
        Arc::new(created)
    };
    let (old, new) = (make(1), make(2));
    let mut view = received(&old).map_private(0, page).unwrap();
    view.as_mut_slice().unwrap()[5] = 9;
    let address = view.as_mut_ptr();
    let source = received(&new);
    assert!(view.replace(&source, 0, page - 1).is_err());
    view.replace(&source, 0, page).unwrap();
    assert_eq!((view[0], view[5], view.as_mut_ptr()), (2, 2, address));
    view.as_mut_slice().unwrap()[0] = 3;
    assert_eq!(source.map_private(0, page).unwrap()[0], 2);
    let shown = received(&old).map_readonly(0, page).unwrap();
    assert!(
        shown.replace(&source, 0, page).is_err(),
        "only a private view"
    );
}

#[test]
fn bytes_are_copied_to_new_segments_and_to_warm_ones() {
    let _turn = alone();
    for byte in 1..5 {
        let mut created = AllocationSegment::new(LEN).unwrap();
        created.write(&vec![byte; LEN as usize - 1]).unwrap();
        let view = received(&created).map_readonly(0, LEN - 1).unwrap();
        assert!(view.iter().all(|b| *b == byte));
        assert!(created.write(&vec![0; LEN as usize + 4096]).is_err());
    }
}

#[test]
fn sizes_that_cannot_be_are_refused() {
    assert!(SharedAllocation::new(0, false).is_err());
    assert!(SharedAllocation::new(u64::MAX - 5, false).is_err());
}

/// Number of address ranges of this process that show a segment.
fn mappings() -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    maps.matches("memfd:broadleaf").count()
}

#[test]
fn large_memory_is_shown_anew_without_a_trace_of_what_was_mapped_before() {
    let _turn = alone();
    let before = mappings();
    // Not a multiple of what the kernel moves at a time.
    let len = (9 << 20) + 4096;
    let memory = SharedAllocation::new(len, true).unwrap();
    let (first, last) = (0, len as usize - 1);
    for round in 1..4 {
        write(&memory, first, round);
        write(&memory, last, round + 1);
        let (sent, copied) = memory.publish().unwrap();
        assert_eq!(copied, round > 1);
        let view = received(&sent).map_readonly(0, len).unwrap();
        assert_eq!((view[first], view[last]), (round, round + 1));
        write(&memory, last, 99);
        assert_eq!((view[last], read(&memory, first)), (round + 1, round));
    }
    drop(memory);
    for _ in 0..11 {
        trim_allocations();
    }
    let deadline = Instant::now() + Duration::from_secs(20);
    while mappings() != before {
        assert!(Instant::now() < deadline, "what was replaced stays mapped");
        std::thread::yield_now();
    }
}
