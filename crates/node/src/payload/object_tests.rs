//! Chunks that arrive in order, out of order, twice, spoilt, or not at all.
#![allow(clippy::unwrap_used)] // a test fails by panicking

use broadleaf_shm::{Pool, PoolConfig};

use super::object::{Accepts, Object, Rejection};

const CHUNK: usize = 1024 * 1024;
const N_CHUNKS: usize = 40;

#[test]
fn memory_is_taken_as_bytes_come() {
    let mut pool = Pool::new(1, PoolConfig::default());
    let len_bytes = (N_CHUNKS * CHUNK) as u64;
    let lease = pool.allocate(len_bytes).unwrap();
    let mut object = Object::empty(ObjectId(5), lease, len_bytes, CHUNK as u32, None);
    object.begin().unwrap();
    let has_bytes = |object: &Object| {
        let (fd, _) = object.segment().unwrap();
        usize::try_from(rustix::fs::fstat(fd).unwrap().st_blocks).unwrap() * 512
    };
    assert_eq!(has_bytes(&object), 0);
    for i in 0..N_CHUNKS {
        let bytes = vec![i as u8; CHUNK];
        let chunk = Chunk {
            object: ObjectId(5),
            pull: 0,
            checksum: crc32c::crc32c(&bytes),
            offset_bytes: (i * CHUNK) as u64,
            bytes: bytes.into(),
        };
        object.accept(&chunk, Accepts::Next).unwrap();
        assert!(has_bytes(&object) >= (i + 1) * CHUNK);
        assert!(i > 0 || has_bytes(&object) < N_CHUNKS * CHUNK);
    }
    let mut lease = object.into_lease().unwrap();
    let all = lease.as_mut_slice().unwrap();
    let right = |i: usize| {
        all[i * CHUNK..(i + 1) * CHUNK]
            .iter()
            .all(|b| *b == i as u8)
    };
    assert!((0..N_CHUNKS).all(right));
    pool.cancel(lease);
    assert!(
        pool.counters().warm_bytes >= len_bytes,
        "it may be used again"
    );
}
