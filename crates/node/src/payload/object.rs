//! An object as this host has it: whole, or as far as it has come.

use std::ops::Range;

use broadleaf_net::seal::{ObjectKey, SealError};
use broadleaf_net::{Link, LinkError};
use broadleaf_proto::{Chunk, FrameKind, ObjectId, SealedHead};
use broadleaf_shm::{Lease, Mapping, ShmError, copy_past_caches};

/// Where an object's bytes are.
#[derive(Debug)]
enum Memory {
    /// Another segment's range, all there.
    Lent(Mapping),
    /// A segment of this host's pool.
    Own(Lease),
}

/// What tells the host that gets a chunk that it is the right one.
#[derive(Debug)]
pub enum Proof {
    /// CRC-32C of each chunk: as its origin said, or made when it is first sent.
    Sums(Vec<Option<u32>>),
    /// A key of the object's own, which also hides it.
    Key(Box<ObjectKey>),
}

/// See the module.
#[derive(Debug)]
pub struct Object {
    id: ObjectId,
    memory: Memory,
    len_bytes: u64,
    chunk_bytes: u32,
    have_bytes: u64,
    proof: Proof,
}

/// Why a chunk was not taken.
#[derive(Debug, PartialEq, Eq)]
pub enum Rejection {
    /// It is not the one that comes next, or not of its length.
    OutOfPlace,
    /// Its bytes are not what its sum says.
    Corrupt,
    /// There is no memory.
    NoMemory(String),
}

impl Object {
    /// One that is all here.
    pub fn lent(id: ObjectId, bytes: Mapping, chunk_bytes: u32, key: Option<ObjectKey>) -> Self {
        let len_bytes = bytes.len() as u64;
        let mut object = Self::new(id, Memory::Lent(bytes), len_bytes, chunk_bytes, key);
        object.have_bytes = len_bytes;
        object
    }

    /// One that is to come into a segment.
    pub fn empty(
        id: ObjectId,
        lease: Lease,
        len_bytes: u64,
        chunk_bytes: u32,
        key: Option<ObjectKey>,
    ) -> Self {
        Self::new(id, Memory::Own(lease), len_bytes, chunk_bytes, key)
    }

    fn new(
        id: ObjectId,
        memory: Memory,
        len_bytes: u64,
        chunk_bytes: u32,
        key: Option<ObjectKey>,
    ) -> Self {
        let n_chunks = len_bytes.div_ceil(u64::from(chunk_bytes.max(1)));
        Self {
            id,
            memory,
            len_bytes,
            chunk_bytes,
            have_bytes: 0,
            proof: match key {
                Some(key) => Proof::Key(Box::new(key)),
                None => Proof::Sums(vec![None; usize::try_from(n_chunks).unwrap_or(0)]),
            },
        }
    }

    /// Bytes that are here and checked.
    pub fn have_bytes(&self) -> u64 {
        self.have_bytes
    }

    /// Whether that is all.
    pub fn is_complete(&self) -> bool {
        self.have_bytes == self.len_bytes
    }

    /// Takes the memory for it, so that a lack of it is known before a byte moves.
    pub fn reserve(&mut self) -> Result<(), ShmError> {
        match &mut self.memory {
            Memory::Lent(_) => Ok(()),
            Memory::Own(lease) => lease.as_mut_slice().map(drop),
        }
    }

    /// Where the whole chunk that begins at an offset lies, if it is here.
    fn chunk_at(&self, offset_bytes: u64) -> Option<Range<usize>> {
        let size = u64::from(self.chunk_bytes);
        let end = (offset_bytes + size).min(self.len_bytes);
        if !offset_bytes.is_multiple_of(size)
            || end > self.have_bytes
            || offset_bytes >= self.len_bytes
        {
            return None;
        }
        Some(usize::try_from(offset_bytes).ok()?..usize::try_from(end).ok()?)
    }

    /// Queues the whole chunk that begins at an offset, if it is here; how many bytes that is.
    ///
    /// # Errors
    /// When the link is of no more use.
    pub fn send_chunk(
        &mut self,
        link: &mut Link,
        pull: u32,
        offset_bytes: u64,
    ) -> Result<usize, LinkError> {
        let Some(range) = self.chunk_at(offset_bytes) else {
            return Ok(0);
        };
        let len_bytes = range.len();
        let bytes = match &mut self.memory {
            Memory::Lent(mapping) => mapping.get(range),
            Memory::Own(lease) => lease.as_mut_slice().ok().and_then(|all| all.get(range)),
        };
        let Some(bytes) = bytes else { return Ok(0) };
        match &mut self.proof {
            Proof::Key(key) => {
                let mut head = SealedHead {
                    object: self.id,
                    offset_bytes,
                    pull,
                    nonce: [0; 12],
                    tag: [0; 16],
                };
                link.send_block(SealedHead::BYTES + len_bytes, |block| {
                    let (front, body) = block.split_at_mut(SealedHead::BYTES);
                    // A copy is sealed: the owner of shared memory may write to it meanwhile.
                    body.copy_from_slice(bytes);
                    key.seal(&mut head, body).map_err(std::io::Error::other)?;
                    front.copy_from_slice(&head.encode());
                    Ok(())
                })?;
            }
            Proof::Sums(sums) => {
                let sum = sums.get_mut((offset_bytes / u64::from(self.chunk_bytes)) as usize);
                let Some(sum) = sum else { return Ok(0) };
                let sum = *sum.get_or_insert_with(|| crc32c::crc32c(bytes));
                let mut head = Vec::with_capacity(Chunk::HEAD_BYTES);
                Chunk::encode_head(self.id, pull, sum, offset_bytes, &mut head);
                link.send_parts(FrameKind::Chunk, &head, bytes)?;
            }
        }
        Ok(len_bytes)
    }

    /// Where a chunk belongs that comes next.
    fn place(&mut self, offset_bytes: u64, len_bytes: usize) -> Result<&mut [u8], Rejection> {
        let size = u64::from(self.chunk_bytes);
        let end = (offset_bytes.saturating_add(size)).min(self.len_bytes);
        let fits = offset_bytes == self.have_bytes
            && offset_bytes < self.len_bytes
            && len_bytes as u64 == end - offset_bytes;
        let Memory::Own(lease) = &mut self.memory else {
            return Err(Rejection::OutOfPlace);
        };
        if !fits {
            return Err(Rejection::OutOfPlace);
        }
        let whole = lease
            .as_mut_slice()
            .map_err(|error| Rejection::NoMemory(error.to_string()))?;
        Ok(&mut whole[offset_bytes as usize..end as usize])
    }

    /// Takes the chunk that comes next.
    ///
    /// # Errors
    /// Why it is refused; nothing has changed then that anyone could read.
    pub fn accept(&mut self, chunk: &Chunk) -> Result<(), Rejection> {
        let target = self.place(chunk.offset_bytes, chunk.bytes.len())?;
        target.copy_from_slice(&chunk.bytes);
        // Of the copy: what is published is what was checked.
        let is_right = crc32c::crc32c(target) == chunk.checksum;
        let index = (chunk.offset_bytes / u64::from(self.chunk_bytes)) as usize;
        match &mut self.proof {
            Proof::Sums(sums) if is_right => sums[index] = Some(chunk.checksum),
            _ => return Err(Rejection::Corrupt),
        }
        self.have_bytes += chunk.bytes.len() as u64;
        Ok(())
    }

    /// Whether a sealed chunk is the one that comes next.
    pub fn is_next(&self, head: &SealedHead) -> bool {
        head.offset_bytes == self.have_bytes
    }

    /// Takes the sealed chunk that comes next, and decrypts it where it lies.
    ///
    /// # Errors
    /// Why it is refused; nothing has changed then that anyone could read.
    pub fn accept_sealed(&mut self, head: &SealedHead, sealed: &mut [u8]) -> Result<(), Rejection> {
        self.place(head.offset_bytes, sealed.len())?;
        match &self.proof {
            Proof::Key(key) => key
                .open(head, sealed)
                .map_err(|_: SealError| Rejection::Corrupt)?,
            Proof::Sums(_) => return Err(Rejection::Corrupt),
        }
        let target = self.place(head.offset_bytes, sealed.len())?;
        // The engines come back when the caches are long full of others' bytes.
        copy_past_caches(target, sealed);
        self.have_bytes += sealed.len() as u64;
        Ok(())
    }

    /// The segment it came into, if it is of this host's pool.
    pub fn lease(&self) -> Option<&Lease> {
        match &self.memory {
            Memory::Own(lease) => Some(lease),
            Memory::Lent(_) => None,
        }
    }

    /// Gives that segment back.
    pub fn into_lease(self) -> Option<Lease> {
        match self.memory {
            Memory::Own(lease) => Some(lease),
            Memory::Lent(_) => None,
        }
    }
}
