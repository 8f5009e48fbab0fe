//! The latest output of a process, in memory that another process still has after this one died.

use std::os::fd::OwnedFd;
use std::ptr::copy_nonoverlapping;
use std::sync::atomic::{Ordering, compiler_fence};

use crate::{Mapping, Segment, ShmError};

/// The total number of bytes written, little-endian; byte `n` is at `n` modulo the size of the rest.
const HEAD_BYTES: usize = size_of::<u64>();

/// The writer's view of such memory.
#[derive(Debug)]
pub struct RecentBytes {
    memory: Mapping,
    written_bytes: u64,
}

impl RecentBytes {
    /// Memory of `len_bytes`, all zero, behind a memfd of sealed size that nobody else writes.
    ///
    /// # Errors
    /// [`ShmError`] if it is not such a memfd, has no space after its header, or cannot be mapped.
    pub fn map(memfd: OwnedFd, len_bytes: u64) -> Result<Self, ShmError> {
        let segment = Segment::from_fd(memfd, len_bytes)?;
        segment.map_readonly(HEAD_BYTES as u64, 1)?;
        Ok(Self {
            memory: segment.map_shared(0, len_bytes)?,
            written_bytes: 0,
        })
    }

    /// Stores `bytes`, overwriting the oldest. Bytes that a process was storing as it died are lost.
    pub fn append(&mut self, bytes: &[u8]) {
        let room_bytes = self.memory.len() - HEAD_BYTES;
        let newest = &bytes[bytes.len().saturating_sub(room_bytes)..];
        let skipped = (bytes.len() - newest.len()) as u64;
        let start = ((self.written_bytes + skipped) % room_bytes as u64) as usize;
        let (first, second) = newest.split_at(newest.len().min(room_bytes - start));
        self.written_bytes += bytes.len() as u64;
        let head = self.written_bytes.to_le_bytes();
        let memory = self.memory.as_mut_ptr();
        // SAFETY: the view is writable, starts on a page and has `HEAD_BYTES + room_bytes`; `start` and the length of
        // either part lie in the room. Another process reads by system calls alone, and only this one writes.
        unsafe {
            let room = memory.add(HEAD_BYTES);
            copy_nonoverlapping(first.as_ptr(), room.add(start), first.len());
            copy_nonoverlapping(second.as_ptr(), room, second.len());
            // The number is written last: a process that dies in between has not stored these bytes.
            compiler_fence(Ordering::Release);
            copy_nonoverlapping(head.as_ptr(), memory, HEAD_BYTES);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::io::pread;

    #[test]
    fn the_newest_bytes_are_kept() {
        const ROOM: usize = 4096 - HEAD_BYTES;
        let segment = Segment::create_open(4096).unwrap();
        let memfd = segment.fd().try_clone_to_owned().unwrap();
        let mut recent = RecentBytes::map(memfd, 4096).unwrap();
        let mut all: Vec<u8> = Vec::new();
        for len in [0, 1, 7, 1000, 3000, 80, ROOM, ROOM + 1, 10_000, 3] {
            let bytes: Vec<u8> = (0..len).map(|at| (at * 7 + len) as u8).collect();
            recent.append(&bytes);
            all.extend(&bytes);
            let mut memory = vec![0; 4096];
            assert_eq!(pread(segment.fd(), &mut memory[..], 0), Ok(4096));
            let (head, room) = memory.split_at(HEAD_BYTES);
            assert_eq!(head, (all.len() as u64).to_le_bytes());
            let kept = all.len().min(ROOM);
            for at in all.len() - kept..all.len() {
                assert_eq!(room[at % ROOM], all[at], "byte {at} of {}", all.len());
            }
        }
    }

    #[test]
    fn memory_without_room_is_refused() {
        let segment = Segment::create_open(HEAD_BYTES as u64).unwrap();
        let memfd = segment.fd().try_clone_to_owned().unwrap();
        assert!(RecentBytes::map(memfd, HEAD_BYTES as u64).is_err());
    }
}
