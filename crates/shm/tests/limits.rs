//! Limits of the process, and what remains afterwards. This is one test, because both parts concern
//! the whole process.
#![allow(clippy::unwrap_used)]

use broadleaf_shm::{ClaimBoard, Pool, PoolConfig, Segment, ShmError};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

fn with_limit(resource: Resource, current: u64, body: impl FnOnce()) {
    let before = getrlimit(resource);
    let maximum = before.maximum;
    setrlimit(
        resource,
        Rlimit {
            current: Some(current),
            maximum,
        },
    )
    .unwrap();
    body();
    setrlimit(resource, before).unwrap();
}

fn open_files() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

fn segments_mapped() -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines()
        .filter(|line| line.contains("memfd:broadleaf"))
        .count()
}

fn use_everything() {
    let (node, fd) = ClaimBoard::create().unwrap();
    let engine = ClaimBoard::from_fd(fd).unwrap();
    node.offer(1);
    assert!(engine.claim(0, 1));
    let config = PoolConfig {
        max_bytes: 8 << 20,
        ..PoolConfig::default()
    };
    let mut pool = Pool::new(1, config);
    for round in 0..200usize {
        let Ok(range) = pool.copy_in(&vec![1; 60_000 * (1 + round % 9)]) else {
            continue;
        };
        let fd = pool
            .segment(range.segment)
            .unwrap()
            .fd()
            .try_clone_to_owned()
            .unwrap();
        let received = Segment::from_fd(fd, range.len_bytes).unwrap();
        assert_eq!(received.map_private(0, range.len_bytes).unwrap()[0], 1);
        assert!(received.map_private(1, range.len_bytes).is_err());
        assert_eq!(received.map_private(1, range.len_bytes - 1).unwrap()[0], 1);
        if round % 3 != 0 {
            pool.release(range.segment).unwrap();
        }
        pool.trim();
    }
    assert!(Segment::create(1 << 60, &[]).is_err());
}

#[test]
fn lack_of_memory_is_a_typed_error_and_nothing_is_left_behind() {
    let mut pool = Pool::new(1, PoolConfig::default());
    with_limit(Resource::Fsize, 1 << 20, || {
        let large = vec![0; 2 << 20];
        let refused = pool.copy_in(&large).unwrap_err();
        assert!(
            matches!(refused, ShmError::OutOfMemory { requested_bytes } if requested_bytes == 2 << 20)
        );
        assert!(matches!(
            Segment::create(2 << 20, &[]),
            Err(ShmError::OutOfMemory { .. })
        ));
        assert_eq!(
            pool.counters().bytes,
            0,
            "a refused segment occupies nothing"
        );
        assert!(pool.copy_in(&large[..1 << 20]).is_ok());
    });
    with_limit(Resource::As, 1 << 30, || {
        let refused = Segment::create(2 << 30, &[0; 1]);
        assert!(matches!(refused, Err(ShmError::OutOfMemory { .. })));
    });
    drop(pool);

    use_everything();
    let before = (open_files(), segments_mapped());
    (0..3).for_each(|_| use_everything());
    assert_eq!((open_files(), segments_mapped()), before);
    assert_eq!(before.1, 0);
    assert_eq!(Pool::new(1, PoolConfig::default()).counters().mappings, 0);
}
