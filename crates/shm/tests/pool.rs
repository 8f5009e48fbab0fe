//! The pool's rules, one by one.
#![allow(unsafe_code, clippy::unwrap_used)]

use broadleaf_proto::SegmentRef;
use broadleaf_shm::{Pool, PoolConfig, Segment, ShmError};

const MIB: usize = 1024 * 1024;

fn pool(max_bytes: u64) -> Pool {
    let config = PoolConfig {
        max_bytes,
        max_warm_bytes: max_bytes,
        ..PoolConfig::default()
    };
    Pool::new(1, config)
}

/// Copies bytes into a segment of their own.
fn copy_in(pool: &mut Pool, bytes: &[u8]) -> Result<SegmentRef, ShmError> {
    let mut lease = pool.allocate(bytes.len() as u64)?;
    lease.fill(bytes)?;
    Ok(pool.publish(lease))
}

#[test]
fn a_freed_segment_is_used_again() {
    let mut pool = pool(64 << 20);
    let sizes = [82_000, 90_000, 98_304, 85_000];
    for len in sizes.repeat(25) {
        let id = copy_in(&mut pool, &vec![1; len]).unwrap().segment;
        pool.mark_announced(id);
        assert!(!pool.is_new(id));
        assert!(pool.release(id).unwrap());
    }
    let counters = pool.counters();
    assert_eq!(
        (counters.created, counters.segments, counters.copies),
        (1, 1, 100)
    );
}

#[test]
fn large_buffers_of_about_one_size_share_segments() {
    let mut pool = pool(1 << 30);
    for len in [100 * MIB, 99 * MIB, 81 * MIB, 100 * MIB] {
        let lease = pool.allocate(len as u64).unwrap();
        // Only the bookkeeping matters here, so no memory is taken.
        pool.cancel(lease);
        assert_eq!(
            pool.counters().bytes,
            0,
            "a new segment that was never filled is forgotten"
        );
    }
    let mut fill = |len: usize| {
        let mut lease = pool.allocate(len as u64).unwrap();
        lease.as_mut_slice().unwrap()[len - 1] = 1;
        let id = pool.publish(lease).segment;
        pool.release(id).unwrap();
        pool.counters().created
    };
    let before = fill(100 * MIB);
    assert_eq!(fill(99 * MIB), before);
    assert_eq!(fill(81 * MIB), before);
    assert_eq!(fill(70 * MIB), before + 1, "too much waste");
}

#[test]
fn a_segment_in_use_is_never_given_out() {
    let mut pool = pool(64 << 20);
    let first = copy_in(&mut pool, &vec![1; 100_000]).unwrap();
    pool.add_reference(first.segment, 1).unwrap();
    let fd = pool
        .segment(first.segment)
        .unwrap()
        .fd()
        .try_clone_to_owned()
        .unwrap();
    let view = Segment::from_fd(fd, 100_000)
        .unwrap()
        .map_private(0, 100_000)
        .unwrap();
    assert!(!pool.release(first.segment).unwrap());
    for byte in 2..20 {
        let other = copy_in(&mut pool, &vec![byte; 100_000]).unwrap();
        assert_ne!(other.segment, first.segment);
        pool.release(other.segment).unwrap();
    }
    assert!(view.iter().all(|b| *b == 1));
    assert!(pool.release(first.segment).unwrap());
}

#[test]
fn idle_segments_give_way_to_another_size_and_are_told_once() {
    let mut pool = pool(1 << 20);
    let small = copy_in(&mut pool, &vec![1; 500_000]).unwrap().segment;
    pool.mark_announced(small);
    pool.release(small).unwrap();
    let large = copy_in(&mut pool, &vec![2; 1 << 20]).unwrap().segment;
    assert!(pool.segment(small).is_none());
    assert_eq!(pool.trim(), [small]);
    assert_eq!(pool.trim(), []);
    let refused = copy_in(&mut pool, &[3; 1]).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "shared memory pool is full: 65536 bytes asked for, 1048576 of at most 1048576 bytes in use"
    );
    pool.release(large).unwrap();
    assert!(copy_in(&mut pool, &[3; 1]).is_ok());
}

#[test]
fn a_buffer_of_another_length_than_the_lease_is_refused() {
    let mut pool = pool(1 << 20);
    assert!(matches!(pool.allocate(0), Err(ShmError::BadSize(0))));
    assert!(matches!(pool.allocate(u64::MAX), Err(ShmError::BadSize(_))));
    let mut lease = pool.allocate(10).unwrap();
    assert!(matches!(
        lease.fill(&[0; 11]),
        Err(ShmError::SizeMismatch { .. })
    ));
    lease.fill(&[4; 10]).unwrap();
    assert_eq!(lease.as_mut_slice().unwrap(), [4; 10]);
    pool.cancel(lease);
    assert_eq!(pool.counters().copies, 0);
}

#[test]
fn filling_needs_no_pool() {
    let mut pool = pool(64 << 20);
    let leases: Vec<_> = (0..4).map(|_| pool.allocate(MIB as u64).unwrap()).collect();
    let fillers = leases.into_iter().zip(0..).map(|(mut lease, byte)| {
        std::thread::spawn(move || {
            lease.fill(&vec![byte; MIB]).unwrap();
            lease
        })
    });
    let fillers: Vec<_> = fillers.collect();
    for (filler, byte) in fillers.into_iter().zip(0..) {
        let range = pool.publish(filler.join().unwrap());
        let view = pool
            .segment(range.segment)
            .unwrap()
            .map_readonly(0, MIB as u64)
            .unwrap();
        assert!(view.iter().all(|b| *b == byte));
    }
}

#[test]
fn a_forked_child_cannot_write_into_its_parents_segments() {
    let mut pool = pool(1 << 20);
    let id = copy_in(&mut pool, &[1; 100]).unwrap().segment;
    pool.release(id).unwrap();
    // SAFETY: the child queries its copy of the pool, which allocates nothing then, and exits.
    let child = unsafe { libc::fork() };
    assert!(child >= 0);
    if child == 0 {
        let refused = matches!(pool.allocate(100), Err(ShmError::Forked));
        // SAFETY: ends the process without running anything of the parent's.
        unsafe { libc::_exit(i32::from(!refused)) };
    }
    let mut status = 0;
    // SAFETY: waits for the child made above.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0, "the child was given a segment");
}

#[test]
fn a_pool_that_gets_nothing_back_keeps_only_what_is_wanted() {
    let mut pool = pool(64 << 20);
    let [used, kept, warm] =
        [1, 2, 3].map(|byte| copy_in(&mut pool, &vec![byte; 70_000]).unwrap().segment);
    pool.release(warm).unwrap();
    let lease = pool.allocate(200_000).unwrap();
    pool.retain(|id| *id == kept);
    assert!(pool.segment(kept).is_some());
    assert!(pool.segment(used).is_none() && pool.segment(warm).is_none());
    let counters = pool.counters();
    assert_eq!((counters.segments, counters.warm_bytes), (2, 0));
    pool.cancel(lease);
    pool.retain(|_| false);
    assert_eq!((pool.counters().segments, pool.counters().bytes), (0, 0));
}

#[test]
fn who_writes_in_order_takes_memory_as_far_as_it_has_come() {
    let mut pool = pool(1 << 30);
    let has_bytes = |lease: &broadleaf_shm::Lease| {
        let status = rustix::fs::fstat(lease.segment().unwrap().fd()).unwrap();
        usize::try_from(status.st_blocks).unwrap() * 512
    };
    let mut lease = pool.allocate(64 * MIB as u64).unwrap();
    assert!(lease.as_mut_slice_to(0).unwrap().is_empty());
    assert_eq!(has_bytes(&lease), 0);
    lease.as_mut_slice_to(MIB).unwrap().fill(1);
    let begun_bytes = has_bytes(&lease);
    assert!((MIB..32 * MIB).contains(&begun_bytes), "{begun_bytes}");
    // One that has not all its memory must not be used again: writing there could be fatal.
    pool.cancel(lease);
    assert_eq!(pool.counters().bytes, 0);
    let mut lease = pool.allocate(64 * MIB as u64).unwrap();
    lease.as_mut_slice_to(40 * MIB).unwrap()[MIB] = 1;
    let all = lease.as_mut_slice_to(64 * MIB).unwrap();
    assert_eq!((all[MIB], all[64 * MIB - 1]), (1, 0));
    assert!(has_bytes(&lease) >= 64 * MIB);
    pool.cancel(lease);
    assert_eq!(pool.counters().warm_bytes, pool.counters().bytes);
    assert!(pool.counters().bytes > 0);
}
