//! Buffers that share segments.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;

use broadleaf_proto::{SegmentId, SegmentRef};
use broadleaf_shm::{MessageSlab, Pool, PoolConfig, SLAB_BUFFER_BYTES, ShmError, slab_range_bytes};

const KIB: usize = 1024;
const MIB: u64 = 1024 * 1024;

fn pool(max_bytes: u64) -> Pool {
    let config = PoolConfig {
        max_bytes,
        max_warm_bytes: max_bytes,
        idle_trims: 1,
        ..PoolConfig::default()
    };
    Pool::new(1, config)
}

/// Copies bytes in and announces their segment.
fn send(pool: &mut Pool, bytes: &[u8]) -> SegmentRef {
    let range = pool.copy_in(bytes).unwrap();
    pool.mark_announced(range.segment);
    pool.share_rest(range.segment);
    range
}

fn bytes_of(pool: &Pool, range: &SegmentRef) -> Vec<u8> {
    let segment = pool.segment(range.segment).unwrap();
    let view = segment
        .map_private(range.offset_bytes, range.len_bytes)
        .unwrap();
    view.to_vec()
}

fn byte_of(index: usize) -> u8 {
    (index % 251) as u8
}

#[test]
fn two_thousand_buffers_take_few_segments() {
    let mut pool = pool(4 << 30);
    let lengths = [64 * KIB + 1, 100_000, 160_000];
    let ranges: Vec<_> = (0..2000)
        .map(|index| send(&mut pool, &vec![byte_of(index); lengths[index % 3]]))
        .collect();
    let segments: BTreeSet<SegmentId> = ranges.iter().map(|range| range.segment).collect();
    assert!(segments.len() <= 48, "{} segments", segments.len());
    assert_eq!(pool.counters().segments, segments.len() as u64);
    for (index, range) in ranges.iter().enumerate() {
        assert_eq!(range.offset_bytes % 4096, 0, "ranges share no page");
        assert_eq!(range.len_bytes, lengths[index % 3] as u64);
        assert!(bytes_of(&pool, range).iter().all(|b| *b == byte_of(index)));
    }
    let payload: u64 = ranges.iter().map(|range| range.len_bytes).sum();
    assert!(pool.counters().bytes < payload * 5 / 4, "too much is lost");
}

#[test]
fn a_slab_is_used_again_when_all_of_its_ranges_are_free_and_not_before() {
    let mut pool = pool(64 << 20);
    let ranges: Vec<_> = (0..4)
        .map(|byte| send(&mut pool, &vec![byte; 60_000]))
        .collect();
    let [first, .., kept] = &ranges[..] else {
        unreachable!()
    };
    assert_eq!(first.segment, kept.segment);
    for range in &ranges[..3] {
        assert!(!pool.release(range.segment).unwrap());
    }
    for byte in 10..40 {
        let range = send(&mut pool, &vec![byte; 60_000]);
        pool.release(range.segment).unwrap();
    }
    assert!(bytes_of(&pool, kept).iter().all(|b| *b == 3));
    let created = pool.counters().created;
    assert!(pool.release(kept.segment).unwrap() || pool.counters().segments > 1);
    for byte in 50..90 {
        let range = send(&mut pool, &vec![byte; 60_000]);
        assert!(bytes_of(&pool, &range).iter().all(|b| *b == byte));
        pool.release(range.segment).unwrap();
    }
    assert_eq!(pool.counters().created, created, "free slabs lie idle");
}

#[test]
fn a_lone_buffer_lies_where_the_last_one_did() {
    let mut pool = pool(64 << 20);
    let ranges: BTreeSet<_> = (0..20)
        .map(|byte| {
            let range = send(&mut pool, &vec![byte; 160_000]);
            pool.release(range.segment).unwrap();
            (range.segment, range.offset_bytes)
        })
        .collect();
    assert_eq!(ranges.len(), 1, "memory that is in the caches is left");
}

#[test]
fn nobody_shares_a_segment_that_the_peer_has_not_been_told_of() {
    let mut pool = pool(64 << 20);
    let first = pool.copy_in(&vec![1; 100_000]).unwrap();
    pool.mark_announced(first.segment);
    // Marked as announced, but the message has not left.
    let second = pool.copy_in(&vec![2; 100_000]).unwrap();
    assert_ne!(first.segment, second.segment);
    pool.share_rest(first.segment);
    let third = pool.copy_in(&vec![3; 100_000]).unwrap();
    assert_eq!(first.segment, third.segment);
    // It was never sent.
    pool.unmark_announced(second.segment);
    assert!(pool.release(second.segment).unwrap());
}

#[test]
fn the_buffers_of_one_message_share_slabs_before_it_is_sent() {
    for len_bytes in [17_000_u64, 100_000, 400_000, 800_000, 1_000_000] {
        let n = 250_000_000 / len_bytes;
        let mut pool = pool(4 << 30);
        let mut message = MessageSlab::default();
        message.expected_bytes = n * slab_range_bytes(len_bytes);
        let ranges: Vec<_> = (0..n as usize)
            .map(|index| {
                let mut lease = pool.allocate_shared(len_bytes, &mut message).unwrap();
                lease
                    .fill(&vec![byte_of(index); len_bytes as usize])
                    .unwrap();
                let range = pool.publish(lease);
                // Another thread's message never gets a part of it.
                if index == 1 {
                    let other = pool.copy_in(&[1; 100]).unwrap();
                    assert_ne!(other.segment, range.segment);
                    pool.release(other.segment).unwrap();
                }
                range
            })
            .collect();
        let taken = pool.counters().bytes;
        let allowed = n * len_bytes * 5 / 4 + (16 << 20);
        assert!(taken <= allowed, "{taken} bytes for {n} x {len_bytes}");
        for (index, range) in ranges.iter().enumerate().step_by(97) {
            assert!(bytes_of(&pool, range).iter().all(|b| *b == byte_of(index)));
        }
    }
}

#[test]
fn a_range_that_is_being_filled_keeps_its_slab() {
    let mut pool = pool(64 << 20);
    let first = send(&mut pool, &vec![1; 100_000]);
    let mut lease = pool
        .allocate_shared(100_000, &mut MessageSlab::default())
        .unwrap();
    assert_eq!(lease.id(), first.segment);
    assert!(!pool.release(first.segment).unwrap());
    assert!(matches!(
        lease.fill(&[2; 5]),
        Err(ShmError::SizeMismatch { .. })
    ));
    lease.fill(&vec![2; 100_000]).unwrap();
    let other = pool
        .allocate_shared(100_000, &mut MessageSlab::default())
        .unwrap();
    pool.cancel(other);
    let range = pool.publish(lease);
    assert_ne!(range.offset_bytes, 0);
    assert!(bytes_of(&pool, &range).iter().all(|b| *b == 2));
    assert!(pool.release(range.segment).unwrap(), "the last reference");
    let lease = pool
        .allocate_shared(100_000, &mut MessageSlab::default())
        .unwrap();
    pool.cancel(lease);
    assert_eq!(pool.counters().bytes, pool.counters().warm_bytes);
}

#[test]
fn ranges_are_filled_at_the_same_time() {
    let mut pool = pool(64 << 20);
    send(&mut pool, &vec![0; 300_000]);
    let leases: Vec<_> = (0..6)
        .map(|_| {
            pool.allocate_shared(100_000, &mut MessageSlab::default())
                .unwrap()
        })
        .collect();
    let fillers = leases.into_iter().zip(1..).map(|(mut lease, byte)| {
        std::thread::spawn(move || {
            lease.fill(&vec![byte; 100_000]).unwrap();
            lease
        })
    });
    let fillers: Vec<_> = fillers.collect();
    for (filler, byte) in fillers.into_iter().zip(1..) {
        let range = pool.publish(filler.join().unwrap());
        assert!(bytes_of(&pool, &range).iter().all(|b| *b == byte));
    }
    assert_eq!(pool.counters().segments, 1);
}

#[test]
fn large_buffers_have_segments_of_their_own_and_a_full_pool_has_no_room_to_share() {
    let mut pool = pool(MIB + 600 * KIB as u64);
    let large = send(&mut pool, &vec![1; SLAB_BUFFER_BYTES as usize]);
    let small = send(&mut pool, &vec![2; 500_000]);
    assert_eq!((large.offset_bytes, small.offset_bytes), (0, 0));
    assert_ne!(large.segment, small.segment);
    // A slab for it would have taken a mebibyte.
    assert_eq!(pool.segment(small.segment).unwrap().len(), 512 * KIB as u64);
    assert!(pool.read(&large).is_ok());
}

#[test]
fn freed_ranges_of_a_slab_are_not_named_again() {
    let mut pool = pool(64 << 20);
    let first = send(&mut pool, &vec![1; 100_000]);
    send(&mut pool, &vec![2; 100_000]);
    pool.release(first.segment).unwrap();
    assert!(pool.read(&first).is_err());
}

#[test]
fn idle_slabs_are_given_back() {
    let mut pool = pool(64 << 20);
    let ranges: Vec<_> = (0..50)
        .map(|byte| send(&mut pool, &vec![byte; 160_000]))
        .collect();
    let segments: BTreeSet<SegmentId> = ranges.iter().map(|range| range.segment).collect();
    for range in &ranges {
        pool.release(range.segment).unwrap();
    }
    let gone: BTreeSet<SegmentId> = (0..3).flat_map(|_| pool.trim()).collect();
    assert_eq!(gone, segments);
    assert_eq!(pool.counters().bytes, 0);
}
