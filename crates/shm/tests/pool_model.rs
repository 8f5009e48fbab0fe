//! The pool against a model that remembers every buffer as a plain vector.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;

use broadleaf_proto::{SegmentId, SegmentRef};
use broadleaf_shm::{Pool, PoolConfig, ShmError};
use proptest::prelude::*;

const KIB: u64 = 1024;
const CAP_BYTES: u64 = 1024 * KIB;
const CAP_SEGMENTS: usize = 9;
const WARM_BYTES: u64 = 256 * KIB;

#[derive(Clone, Debug)]
enum Step {
    CopyIn { len_bytes: u64, byte: u8 },
    AddReference { pick: usize, n: u64 },
    Release { pick: usize },
    Announce { pick: usize },
    LeaseAndCancel { len_bytes: u64, fill: bool },
    Trim,
}

fn step() -> impl Strategy<Value = Step> {
    let len_bytes = prop_oneof![
        1..300 * KIB,
        Just(64 * KIB),
        Just(96 * KIB),
        Just(2000 * KIB)
    ];
    prop_oneof![
        5 => (len_bytes.clone(), any::<u8>()).prop_map(|(len_bytes, byte)| Step::CopyIn { len_bytes, byte }),
        1 => (any::<usize>(), 1..4u64).prop_map(|(pick, n)| Step::AddReference { pick, n }),
        5 => any::<usize>().prop_map(|pick| Step::Release { pick }),
        1 => any::<usize>().prop_map(|pick| Step::Announce { pick }),
        1 => (len_bytes, any::<bool>()).prop_map(|(len_bytes, fill)| Step::LeaseAndCancel { len_bytes, fill }),
        1 => Just(Step::Trim),
    ]
}

struct Buffer {
    range: SegmentRef,
    references: u64,
    byte: u8,
    segment_bytes: u64,
}

/// The smallest size of all that holds the buffer, found by search.
fn size_of_segment(len_bytes: u64) -> u64 {
    let sizes = (0..).flat_map(|i| [64, 80, 96, 112].map(|kib| (kib * KIB) << i));
    sizes.into_iter().find(|size| *size >= len_bytes).unwrap()
}

/// Fills a segment of its own.
fn copy_in(pool: &mut Pool, len_bytes: u64, byte: u8) -> Result<SegmentRef, ShmError> {
    let mut lease = pool.allocate(len_bytes)?;
    lease.fill(&vec![byte; len_bytes as usize])?;
    Ok(pool.publish(lease))
}

fn check_buffers(pool: &Pool, live: &[Buffer]) {
    let ids: BTreeSet<SegmentId> = live.iter().map(|b| b.range.segment).collect();
    assert_eq!(ids.len(), live.len(), "two buffers in one segment");
    for buffer in live {
        let segment = pool.segment(buffer.range.segment).unwrap();
        let view = segment.map_readonly(0, buffer.range.len_bytes).unwrap();
        assert!(
            view.iter().all(|b| *b == buffer.byte),
            "a buffer in use was overwritten"
        );
    }
    let counters = pool.counters();
    let used_bytes: u64 = live.iter().map(|b| b.segment_bytes).sum();
    assert_eq!(counters.bytes - counters.warm_bytes, used_bytes);
    assert!(counters.bytes <= CAP_BYTES && counters.segments <= CAP_SEGMENTS as u64);
}

fn run(steps: Vec<Step>) {
    let config = PoolConfig {
        max_bytes: CAP_BYTES,
        max_segments: CAP_SEGMENTS,
        max_warm_bytes: WARM_BYTES,
        idle_trims: 2,
        open: false,
    };
    let mut pool = Pool::new(7, config);
    let mut live: Vec<Buffer> = Vec::new();
    let mut announced = BTreeSet::new();
    let mut copies = (0, 0);
    for step in steps {
        let n_live = live.len();
        let used_bytes: u64 = live.iter().map(|b| b.segment_bytes).sum();
        let too_large = |len_bytes| size_of_segment(len_bytes) + used_bytes > CAP_BYTES;
        match step {
            Step::CopyIn { len_bytes, byte } => match copy_in(&mut pool, len_bytes, byte) {
                Ok(range) => {
                    assert!(!too_large(len_bytes) && n_live < CAP_SEGMENTS);
                    assert_eq!((range.offset_bytes, range.len_bytes), (0, len_bytes));
                    assert_eq!(range.segment.0 >> 32, 7);
                    let segment_bytes = pool.segment(range.segment).unwrap().len();
                    assert!(segment_bytes >= len_bytes);
                    assert!(segment_bytes <= size_of_segment(len_bytes) * 5 / 4);
                    assert_eq!(
                        pool.is_new(range.segment),
                        !announced.contains(&range.segment)
                    );
                    copies = (copies.0 + 1, copies.1 + len_bytes);
                    live.push(Buffer {
                        range,
                        references: 1,
                        byte,
                        segment_bytes,
                    });
                }
                Err(ShmError::OverCap {
                    used_bytes: used,
                    cap_bytes,
                    requested_bytes,
                }) => {
                    assert!(too_large(len_bytes));
                    let expected = (used_bytes, CAP_BYTES, size_of_segment(len_bytes));
                    assert_eq!((used, cap_bytes, requested_bytes), expected);
                }
                Err(ShmError::TooManySegments { cap }) => {
                    assert_eq!((cap, n_live), (CAP_SEGMENTS, cap));
                }
                Err(other) => panic!("{other}"),
            },
            Step::AddReference { pick, n } if n_live > 0 => {
                let buffer = &mut live[pick % n_live];
                pool.add_reference(buffer.range.segment, n).unwrap();
                buffer.references += n;
            }
            Step::Release { pick } if n_live > 0 => {
                let buffer = &mut live[pick % n_live];
                let id = buffer.range.segment;
                buffer.references -= 1;
                assert_eq!(pool.release(id).unwrap(), buffer.references == 0);
                if buffer.references == 0 {
                    live.swap_remove(pick % n_live);
                    assert!(matches!(pool.release(id), Err(ShmError::NotReferenced(_))));
                    assert!(pool.add_reference(id, 1).is_err());
                }
            }
            Step::Announce { pick } if n_live > 0 => {
                let id = live[pick % n_live].range.segment;
                pool.mark_announced(id);
                announced.insert(id);
            }
            Step::LeaseAndCancel { len_bytes, fill } => {
                if let Ok(mut lease) = pool.allocate(len_bytes) {
                    assert!(pool.segment(lease.id()).is_none());
                    if fill {
                        lease.as_mut_slice().unwrap().fill(0xEE);
                    }
                    pool.cancel(lease);
                }
            }
            Step::Trim => {
                for id in pool.trim() {
                    assert!(announced.remove(&id), "told of a segment nobody knows");
                    assert!(pool.segment(id).is_none());
                }
                assert!(pool.counters().warm_bytes <= WARM_BYTES);
            }
            _ => {}
        }
        check_buffers(&pool, &live);
    }
    finish(pool, &live, announced.len(), copies);
}

fn finish(mut pool: Pool, live: &[Buffer], n_announced: usize, copies: (u64, u64)) {
    let counters = pool.counters();
    assert_eq!((counters.copies, counters.copied_bytes), copies);
    for buffer in live {
        for left in (0..buffer.references).rev() {
            assert_eq!(pool.release(buffer.range.segment).unwrap(), left == 0);
        }
    }
    let told: usize = (0..4).map(|_| pool.trim().len()).sum();
    assert!(told <= n_announced);
    assert_eq!(pool.counters().bytes, 0, "idle segments stay");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn the_pool_does_what_the_model_does(steps in prop::collection::vec(step(), 1..80)) {
        run(steps);
    }
}
