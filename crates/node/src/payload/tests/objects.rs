//! Chunks that arrive in order, out of order, twice, spoilt, or not at all.
#![allow(clippy::unwrap_used)] // a test fails by panicking

use broadleaf_net::Link;
use broadleaf_net::seal::ObjectKey;
use broadleaf_proto::{Block, Chunk, ObjectId, PayloadSecret, SealedHead};
use broadleaf_shm::{Pool, PoolConfig};

use crate::payload::object::{Accepts, Object, Rejection};

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

const LEN: u64 = 5 * 16_384 + 100;
const SMALL: u32 = 16_384;

fn bytes_at(offset: u64) -> Vec<u8> {
    let end = (offset + u64::from(SMALL)).min(LEN);
    (offset..end).map(|i| (i * 31 % 251) as u8).collect()
}

fn chunk(index: u64) -> Chunk {
    let offset_bytes = index * u64::from(SMALL);
    let bytes = bytes_at(offset_bytes);
    Chunk {
        object: ObjectId(5),
        pull: 0,
        checksum: crc32c::crc32c(&bytes),
        offset_bytes,
        bytes: bytes.into(),
    }
}

fn key() -> ObjectKey {
    ObjectKey::new(&PayloadSecret([7; 32]), ObjectId(5)).unwrap()
}

/// An object of six chunks, the last of them short.
fn object(pool: &mut Pool, key: Option<ObjectKey>) -> Object {
    let lease = pool.allocate(LEN).unwrap();
    let mut object = Object::empty(ObjectId(5), lease, LEN, SMALL, key);
    object.begin().unwrap();
    object
}

fn all(object: Object) -> Vec<u8> {
    let mut lease = object.into_lease().unwrap();
    lease.as_mut_slice().unwrap().to_vec()
}

fn expected() -> Vec<u8> {
    (0..6)
        .flat_map(|i| bytes_at(i * u64::from(SMALL)))
        .collect()
}

#[test]
fn chunks_may_overtake_each_other() {
    let mut pool = Pool::new(1, PoolConfig::default());
    let mut object = object(&mut pool, None);
    let (mut near, _far) = Link::pair().unwrap();
    for (index, arrived) in [(3, 0), (5, 0), (0, 1), (2, 1), (1, 4)] {
        object.accept(&chunk(index), Accepts::Missing).unwrap();
        assert_eq!(object.have_bytes(), arrived * u64::from(SMALL));
        assert_eq!(object.arrived_bytes(), object.have_bytes());
        assert!(object.has_gap());
        // Others get only what has no gap before it.
        let offset = arrived * u64::from(SMALL);
        assert_eq!(object.send_chunk(&mut near, 1, offset).unwrap(), 0);
    }
    object.accept(&chunk(4), Accepts::Missing).unwrap();
    assert!(object.is_complete() && !object.has_gap());
    assert!(all(object) == expected());
}

#[test]
fn a_chunk_that_is_not_missing_is_refused() {
    let mut pool = Pool::new(1, PoolConfig::default());
    let mut object = object(&mut pool, None);
    for index in [0, 3] {
        object.accept(&chunk(index), Accepts::Missing).unwrap();
    }
    let out_of_place = Err(Rejection::OutOfPlace);
    let mut misplaced = chunk(2);
    misplaced.offset_bytes += 1;
    let mut cut = chunk(2);
    cut.bytes.truncate(100);
    for wrong in [
        &chunk(0),
        &chunk(3),
        &chunk(6),
        &chunk(1 << 40),
        &misplaced,
        &cut,
    ] {
        assert_eq!(object.accept(wrong, Accepts::Missing), out_of_place);
    }
    assert_eq!(object.accept(&chunk(2), Accepts::Next), out_of_place);
    for index in [1, 2, 4, 5] {
        object.accept(&chunk(index), Accepts::Missing).unwrap();
    }
    assert!(all(object) == expected());
}

#[test]
fn a_spoilt_chunk_may_come_again_and_so_may_what_was_forgotten() {
    let mut pool = Pool::new(1, PoolConfig::default());
    let mut object = object(&mut pool, None);
    object.accept(&chunk(0), Accepts::Missing).unwrap();
    object.accept(&chunk(4), Accepts::Missing).unwrap();
    let mut spoilt = chunk(2);
    spoilt.checksum ^= 1;
    let corrupt = Err(Rejection::Corrupt);
    assert_eq!(object.accept(&spoilt, Accepts::Missing), corrupt);
    object.forget_ahead();
    assert!(!object.has_gap());
    assert_eq!(object.arrived_bytes(), u64::from(SMALL));
    for index in 1..6 {
        object.accept(&chunk(index), Accepts::Next).unwrap();
    }
    assert!(all(object) == expected());
}

/// Seals a chunk and has the object receive it.
fn receive(object: &mut Object, index: u64, is_spoilt: bool) -> Result<(), Rejection> {
    let mut head = SealedHead {
        object: ObjectId(5),
        offset_bytes: index * u64::from(SMALL),
        pull: 0,
        nonce: [0; 12],
        tag: [0; 16],
    };
    let mut sealed = bytes_at(head.offset_bytes);
    key().seal(&mut head, &mut sealed).unwrap();
    sealed[5] ^= u8::from(is_spoilt);
    let len_bytes = sealed.len() as u32;
    let block = Block { head, len_bytes };
    let target = object.sealed_target(&block, Accepts::Missing)?;
    target[..sealed.len()].copy_from_slice(&sealed);
    object.on_sealed(&block, Accepts::Missing)
}

#[test]
fn sealed_chunks_may_overtake_each_other() {
    let mut pool = Pool::new(1, PoolConfig::default());
    let mut object = object(&mut pool, Some(key()));
    for (index, arrived) in [(2, 0), (5, 0), (0, 1)] {
        receive(&mut object, index, false).unwrap();
        assert_eq!(object.arrived_bytes(), arrived * u64::from(SMALL));
        assert!(object.has_gap());
    }
    object.open_next().unwrap();
    assert!(object.sealed().is_none(), "what is ahead is not opened");
    for index in [0, 2, 5] {
        let again = receive(&mut object, index, false);
        assert_eq!(again, Err(Rejection::OutOfPlace));
    }
    for index in [1, 4, 3] {
        receive(&mut object, index, false).unwrap();
    }
    assert!(object.has_arrived() && !object.has_gap());
    while object.sealed().is_some() {
        object.open_next().unwrap();
    }
    assert!(object.is_complete());
    assert!(all(object) == expected());
}

#[test]
fn a_spoilt_sealed_chunk_is_found_once_nothing_before_it_is_missing() {
    let mut pool = Pool::new(1, PoolConfig::default());
    let mut object = object(&mut pool, Some(key()));
    for (index, is_spoilt) in [(0, false), (2, true), (5, false), (1, false)] {
        receive(&mut object, index, is_spoilt).unwrap();
    }
    object.open_next().unwrap();
    object.open_next().unwrap();
    assert_eq!(object.open_next(), Err(Rejection::Corrupt));
    assert_eq!(object.arrived_bytes(), 2 * u64::from(SMALL));
    assert!(!object.has_gap(), "what came after it is forgotten");
    for index in [4, 3, 2, 5] {
        receive(&mut object, index, false).unwrap();
    }
    while object.sealed().is_some() {
        object.open_next().unwrap();
    }
    assert!(all(object) == expected());
}
