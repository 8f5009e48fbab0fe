//! An object as this host has it: whole, or as far as it has come.

use broadleaf_shm::{Lease, Mapping, ShmError};

/// Where an object's bytes are.
#[derive(Debug)]
enum Memory {
    /// Another segment's range, all there.
    Lent(Mapping),
    /// A segment of this host's pool.
    Own(Lease),
}

/// See the module.
#[derive(Debug)]
pub struct Object {
    memory: Memory,
    len_bytes: u64,
    chunk_bytes: u32,
    have_bytes: u64,
    /// Of each chunk: as its origin said, or made when it is first sent.
    sums: Vec<Option<u32>>,
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

fn n_chunks(len_bytes: u64, chunk_bytes: u32) -> usize {
    usize::try_from(len_bytes.div_ceil(u64::from(chunk_bytes.max(1)))).unwrap_or(0)
}

impl Object {
    /// One that is all here.
    pub fn lent(bytes: Mapping, chunk_bytes: u32) -> Self {
        let len_bytes = bytes.len() as u64;
        Self {
            memory: Memory::Lent(bytes),
            len_bytes,
            chunk_bytes,
            have_bytes: len_bytes,
            sums: vec![None; n_chunks(len_bytes, chunk_bytes)],
        }
    }

    /// One that is to come into a segment.
    pub fn empty(lease: Lease, len_bytes: u64, chunk_bytes: u32) -> Self {
        Self {
            memory: Memory::Own(lease),
            len_bytes,
            chunk_bytes,
            have_bytes: 0,
            sums: vec![None; n_chunks(len_bytes, chunk_bytes)],
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

    /// The whole chunk that begins at an offset, and its sum, if it is here.
    pub fn chunk(&mut self, offset_bytes: u64) -> Option<(&[u8], u32)> {
        let size = u64::from(self.chunk_bytes);
        let end = (offset_bytes + size).min(self.len_bytes);
        if !offset_bytes.is_multiple_of(size)
            || end > self.have_bytes
            || offset_bytes >= self.len_bytes
        {
            return None;
        }
        let range = usize::try_from(offset_bytes).ok()?..usize::try_from(end).ok()?;
        let index = (offset_bytes / size) as usize;
        let bytes = match &mut self.memory {
            Memory::Lent(mapping) => mapping.get(range)?,
            Memory::Own(lease) => lease.as_mut_slice().ok()?.get(range)?,
        };
        let sum = *self
            .sums
            .get_mut(index)?
            .get_or_insert_with(|| crc32c::crc32c(bytes));
        Some((bytes, sum))
    }

    /// Takes the chunk that comes next.
    ///
    /// # Errors
    /// Why it is refused; nothing has changed then that anyone could read.
    pub fn accept(
        &mut self,
        offset_bytes: u64,
        bytes: &[u8],
        checksum: u32,
    ) -> Result<(), Rejection> {
        let size = u64::from(self.chunk_bytes);
        let end = (offset_bytes.saturating_add(size)).min(self.len_bytes);
        let fits = offset_bytes == self.have_bytes
            && offset_bytes < self.len_bytes
            && bytes.len() as u64 == end - offset_bytes;
        let Memory::Own(lease) = &mut self.memory else {
            return Err(Rejection::OutOfPlace);
        };
        if !fits {
            return Err(Rejection::OutOfPlace);
        }
        let whole = lease
            .as_mut_slice()
            .map_err(|error| Rejection::NoMemory(error.to_string()))?;
        let target = &mut whole[offset_bytes as usize..end as usize];
        target.copy_from_slice(bytes);
        // Of the copy: what is published is what was checked.
        if crc32c::crc32c(target) != checksum {
            return Err(Rejection::Corrupt);
        }
        self.sums[(offset_bytes / size) as usize] = Some(checksum);
        self.have_bytes = end;
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
