//! An object on this host: complete, or as far as it has arrived.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use broadleaf_net::seal::ObjectKey;
use broadleaf_net::{Link, LinkError};
use broadleaf_proto::{Block, Chunk, FrameKind, ObjectId, SealedHead};
use broadleaf_shm::{Lease, Mapping, ShmError};

/// Where an object's bytes are.
#[derive(Debug)]
enum Memory {
    /// A range of another segment, complete; and where MPI finds it, if it may be sent by MPI.
    Exported(Mapping, Option<(OwnedFd, u64)>),
    /// A segment of this host's pool.
    Own(Lease),
}

/// How a receiving host checks that a chunk is correct.
#[derive(Debug)]
pub enum Proof {
    /// CRC-32C of each chunk: from its origin, or computed when it is first sent.
    Sums(Vec<Option<u32>>),
    /// A key of the object's own, which also encrypts it.
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
    /// Later chunks, which are in memory but still sealed.
    sealed: VecDeque<SealedHead>,
    /// Chunks after the first that is missing, by offset, with their heads if they are sealed. Only an object that
    /// comes over several connections has any.
    ahead: BTreeMap<u64, Option<SealedHead>>,
    proof: Proof,
}

/// Which chunks are accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accepts {
    /// The next one: chunks of one connection keep their order.
    Next,
    /// Any that has not arrived: those of several connections overtake each other.
    Missing,
}

/// Why a chunk was rejected.
#[derive(Debug, PartialEq, Eq)]
pub enum Rejection {
    /// It is not one that is accepted, or does not have its length.
    OutOfPlace,
    /// Its bytes do not match its checksum.
    Corrupt,
    /// There is no memory.
    NoMemory(String),
}

impl Object {
    /// An object that is complete on this host.
    pub fn exported(
        id: ObjectId,
        bytes: Mapping,
        memory: Option<(OwnedFd, u64)>,
        chunk_bytes: u32,
        key: Option<ObjectKey>,
    ) -> Self {
        let len_bytes = bytes.len() as u64;
        let memory = Memory::Exported(bytes, memory);
        let mut object = Self::new(id, memory, len_bytes, chunk_bytes, key);
        object.have_bytes = len_bytes;
        object
    }

    /// An object that is to be received into a segment.
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
            sealed: VecDeque::new(),
            ahead: BTreeMap::new(),
            proof: match key {
                Some(key) => Proof::Key(Box::new(key)),
                None => Proof::Sums(vec![None; usize::try_from(n_chunks).unwrap_or(0)]),
            },
        }
    }

    /// Bytes that have arrived and are checked.
    pub fn have_bytes(&self) -> u64 {
        self.have_bytes
    }

    /// Bytes that have arrived without a gap; the last of them may still be sealed and unchecked.
    pub fn arrived_bytes(&self) -> u64 {
        let sealed_bytes = self.sealed.len() as u64 * u64::from(self.chunk_bytes);
        (self.have_bytes + sealed_bytes).min(self.len_bytes)
    }

    /// Whether every byte has arrived.
    pub fn has_arrived(&self) -> bool {
        self.arrived_bytes() == self.len_bytes
    }

    /// Whether all of it has arrived and is checked.
    pub fn is_complete(&self) -> bool {
        self.have_bytes == self.len_bytes
    }

    /// Makes its segment, unless there is clearly no memory for it. Its pages are allocated as its bytes arrive:
    /// allocating them takes up to half as long as the network does, and would delay everything else that arrives.
    pub fn begin(&mut self) -> Result<(), ShmError> {
        self.reserve_to(0)
    }

    /// Allocates its memory up to a byte, for MPI to write.
    pub fn reserve_to(&mut self, end_bytes: u64) -> Result<(), ShmError> {
        match &mut self.memory {
            Memory::Exported(..) => Ok(()),
            Memory::Own(lease) => lease.as_mut_slice_to(end_bytes as usize).map(drop),
        }
    }

    /// The complete chunk that begins at an offset, if it has arrived.
    fn chunk_at(&self, offset_bytes: u64) -> Option<Range<usize>> {
        let size = u64::from(self.chunk_bytes);
        let end = offset_bytes.saturating_add(size).min(self.len_bytes);
        if !offset_bytes.is_multiple_of(size)
            || end > self.arrived_bytes()
            || offset_bytes >= self.len_bytes
        {
            return None;
        }
        Some(usize::try_from(offset_bytes).ok()?..usize::try_from(end).ok()?)
    }

    /// Sends the complete chunk that begins at an offset, if it has arrived; returns its size.
    /// Chunks that are still sealed are passed on as they came.
    ///
    /// # Errors
    /// The link is unusable.
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
            Memory::Exported(mapping, _) => mapping.get(range),
            Memory::Own(lease) => {
                let begun = lease.as_mut_slice_to(range.end).ok();
                begun.and_then(|bytes| bytes.get(range))
            }
        };
        let Some(bytes) = bytes else { return Ok(0) };
        if let Some(behind_bytes) = offset_bytes.checked_sub(self.have_bytes) {
            let head = self
                .sealed
                .get((behind_bytes / u64::from(self.chunk_bytes)) as usize);
            let Some(head) = head else { return Ok(0) };
            link.pass_block(&SealedHead { pull, ..*head }, bytes)?;
            return Ok(len_bytes);
        }
        match &mut self.proof {
            Proof::Key(key) => {
                let mut head = SealedHead {
                    object: self.id,
                    offset_bytes,
                    pull,
                    nonce: [0; 12],
                    tag: [0; 16],
                };
                link.send_block(len_bytes, |sealed| {
                    // A copy is sealed, because the owner of shared memory may write to it in the
                    // meantime.
                    sealed.copy_from_slice(bytes);
                    key.seal(&mut head, sealed).map_err(std::io::Error::other)?;
                    Ok(head)
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

    /// Whether chunks have arrived after one that is missing.
    pub fn has_gap(&self) -> bool {
        !self.ahead.is_empty()
    }

    /// Forgets chunks after the first that is missing: they are going to be requested again.
    pub fn forget_ahead(&mut self) {
        self.ahead.clear();
    }

    /// Whether a chunk after the first that is missing is missing too. Each is entered once, so `ahead` never has more
    /// entries than the object has chunks.
    fn is_missing(&self, offset_bytes: u64) -> bool {
        offset_bytes > self.arrived_bytes()
            && offset_bytes.is_multiple_of(u64::from(self.chunk_bytes))
            && !self.ahead.contains_key(&offset_bytes)
    }

    /// The memory for a chunk.
    fn target(
        &mut self,
        offset_bytes: u64,
        len_bytes: usize,
        accepts: Accepts,
    ) -> Result<&mut [u8], Rejection> {
        let size = u64::from(self.chunk_bytes);
        let end = (offset_bytes.saturating_add(size)).min(self.len_bytes);
        let is_accepted = offset_bytes == self.arrived_bytes()
            || accepts == Accepts::Missing && self.is_missing(offset_bytes);
        let fits =
            is_accepted && offset_bytes < self.len_bytes && len_bytes as u64 == end - offset_bytes;
        let Memory::Own(lease) = &mut self.memory else {
            return Err(Rejection::OutOfPlace);
        };
        if !fits {
            return Err(Rejection::OutOfPlace);
        }
        let begun = lease
            .as_mut_slice_to(end as usize)
            .map_err(|error| Rejection::NoMemory(error.to_string()))?;
        Ok(&mut begun[offset_bytes as usize..])
    }

    /// Accepts a chunk.
    ///
    /// # Errors
    /// Why it is rejected; nothing that anyone could read has changed then.
    pub fn accept(&mut self, chunk: &Chunk, accepts: Accepts) -> Result<(), Rejection> {
        let target = self.target(chunk.offset_bytes, chunk.bytes.len(), accepts)?;
        target.copy_from_slice(&chunk.bytes);
        // The copy is checked, so that exactly what was checked is published.
        let is_right = crc32c::crc32c(target) == chunk.checksum;
        let index = (chunk.offset_bytes / u64::from(self.chunk_bytes)) as usize;
        match &mut self.proof {
            Proof::Sums(sums) if is_right => sums[index] = Some(chunk.checksum),
            _ => return Err(Rejection::Corrupt),
        }
        if chunk.offset_bytes == self.have_bytes {
            self.have_bytes += chunk.bytes.len() as u64;
            self.close_gap();
        } else {
            self.ahead.insert(chunk.offset_bytes, None);
        }
        Ok(())
    }

    /// Takes the chunks that no longer have a missing one before them.
    fn close_gap(&mut self) {
        let size = u64::from(self.chunk_bytes);
        while let Some(next) = self.ahead.first_entry()
            && *next.key() == (self.have_bytes + self.sealed.len() as u64 * size)
        {
            match next.remove() {
                Some(head) => self.sealed.push_back(head),
                None => self.have_bytes = (self.have_bytes + size).min(self.len_bytes),
            }
        }
    }

    /// The memory for a sealed chunk. Nobody reads that memory before the chunk is opened.
    ///
    /// # Errors
    /// Why it is rejected.
    pub fn sealed_target(
        &mut self,
        block: &Block,
        accepts: Accepts,
    ) -> Result<&mut [u8], Rejection> {
        self.target(block.head.offset_bytes, block.len_bytes as usize, accepts)
    }

    /// A sealed chunk has been received into its memory.
    ///
    /// # Errors
    /// As [`Object::sealed_target`].
    pub fn on_sealed(&mut self, block: &Block, accepts: Accepts) -> Result<(), Rejection> {
        self.sealed_target(block, accepts)?;
        if block.head.offset_bytes == self.arrived_bytes() {
            self.sealed.push_back(block.head);
            self.close_gap();
        } else {
            self.ahead.insert(block.head.offset_bytes, Some(block.head));
        }
        Ok(())
    }

    /// The start of the first chunk that is still sealed, if there is one, and the number of bytes
    /// from there to the end of what has arrived.
    pub fn sealed(&self) -> Option<(u64, u64)> {
        let first = self.sealed.front()?;
        Some((
            first.offset_bytes,
            self.arrived_bytes() - first.offset_bytes,
        ))
    }

    /// Decrypts the first chunk that is still sealed, in its memory.
    ///
    /// # Errors
    /// [`Rejection::Corrupt`] if it is not what was sealed: it and everything after it are
    /// forgotten; [`Rejection::NoMemory`] if its memory cannot be written.
    pub fn open_next(&mut self) -> Result<(), Rejection> {
        let end = self.sealed.front().map_or(0, |head| {
            (head.offset_bytes + u64::from(self.chunk_bytes)).min(self.len_bytes)
        });
        let (Memory::Own(lease), Proof::Key(key), Some(head)) =
            (&mut self.memory, &self.proof, self.sealed.pop_front())
        else {
            return Err(Rejection::OutOfPlace);
        };
        let range = head.offset_bytes as usize..end as usize;
        let begun = lease
            .as_mut_slice_to(range.end)
            .map_err(|error| Rejection::NoMemory(error.to_string()))?;
        if key.open(&head, &mut begun[range]).is_err() {
            self.sealed.clear();
            self.ahead.clear();
            return Err(Rejection::Corrupt);
        }
        self.have_bytes = end;
        Ok(())
    }

    /// The segment that it was received into, if it is from this host's pool.
    pub fn lease(&self) -> Option<&Lease> {
        match &self.memory {
            Memory::Own(lease) => Some(lease),
            Memory::Exported(..) => None,
        }
    }

    /// The segment that holds it, and the offset there, for MPI.
    pub fn segment(&self) -> Option<(BorrowedFd<'_>, u64)> {
        match &self.memory {
            Memory::Own(lease) => Some((lease.segment()?.fd(), 0)),
            Memory::Exported(_, memory) => memory.as_ref().map(|(fd, at)| (fd.as_fd(), *at)),
        }
    }

    /// Its length.
    pub fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    /// The size of the chunks it travels in.
    pub fn chunk_bytes(&self) -> u32 {
        self.chunk_bytes
    }

    /// MPI has written everything up to this byte; returns false if that is impossible: only
    /// complete chunks after those that have arrived are accepted.
    pub fn on_moved(&mut self, end_bytes: u64) -> bool {
        let is_whole = end_bytes == self.len_bytes
            || end_bytes < self.len_bytes && end_bytes.is_multiple_of(u64::from(self.chunk_bytes));
        let is_next = self.sealed.is_empty() && end_bytes > self.have_bytes;
        if is_whole && is_next {
            self.have_bytes = end_bytes;
        }
        is_whole && is_next
    }

    /// Gives up the object, and returns its segment if that is from this host's pool.
    pub fn into_lease(self) -> Option<Lease> {
        match self.memory {
            Memory::Own(lease) => Some(lease),
            Memory::Exported(..) => None,
        }
    }
}
