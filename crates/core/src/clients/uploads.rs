//! Arguments that a client on another host sends ahead of the record that names them: where each goes, and what a
//! record gets.
//!
//! A pure machine over any kind of memory `M`. The parts of one upload come in order; those of several may alternate.
//! What cannot be stored is still read to its end, so that only the record that names it is refused.

use std::collections::BTreeMap;

use broadleaf_proto::ids::SegmentId;
use broadleaf_proto::limits::MAX_OPEN_UPLOADS;
use broadleaf_proto::task::SegmentRef;
use broadleaf_proto::{DecodeError, UploadChunk};

#[derive(Debug)]
struct Upload<M> {
    /// Where it goes, or why it goes nowhere.
    memory: Result<M, String>,
    len_bytes: u64,
    have_bytes: u64,
}

/// Why a record does not get an upload that it names.
#[derive(Debug, PartialEq, Eq)]
pub struct Missing<M> {
    /// The reason.
    pub reason: String,
    /// Memory to give back.
    pub memory: Option<M>,
}

/// The uploads of one client that no record has named yet.
#[derive(Debug)]
pub struct Uploads<M> {
    open: BTreeMap<SegmentId, Upload<M>>,
}

impl<M> Default for Uploads<M> {
    fn default() -> Self {
        Self {
            open: BTreeMap::new(),
        }
    }
}

impl<M> Uploads<M> {
    /// A part arrived. Returns the memory of its upload and the offset at which to write it, or nothing if the upload
    /// is not stored. The first part takes memory for all of them with `allocate`.
    ///
    /// # Errors
    /// [`DecodeError`] if no honest client would have sent it.
    pub fn on_chunk(
        &mut self,
        chunk: &UploadChunk,
        allocate: impl FnOnce(u64) -> Result<M, String>,
    ) -> Result<Option<(&mut M, u64)>, DecodeError> {
        if !self.open.contains_key(&chunk.upload) && self.open.len() >= MAX_OPEN_UPLOADS {
            return Err(DecodeError::TooLong {
                claimed: self.open.len() as u64 + 1,
                limit: MAX_OPEN_UPLOADS as u64,
            });
        }
        let upload = self.open.entry(chunk.upload).or_insert_with(|| Upload {
            memory: allocate(chunk.len_bytes),
            len_bytes: chunk.len_bytes,
            have_bytes: 0,
        });
        let offset_bytes = upload.have_bytes;
        let have_bytes = offset_bytes.saturating_add(chunk.bytes.len() as u64);
        if chunk.len_bytes != upload.len_bytes || have_bytes > upload.len_bytes {
            return Err(DecodeError::Malformed);
        }
        upload.have_bytes = have_bytes;
        let memory = upload.memory.as_mut().ok();
        Ok(memory.map(|memory| (memory, offset_bytes)))
    }

    /// A part could not be written. Returns the memory to give back.
    pub fn on_failed(&mut self, upload: SegmentId, reason: String) -> Option<M> {
        let upload = self.open.get_mut(&upload)?;
        std::mem::replace(&mut upload.memory, Err(reason)).ok()
    }

    /// A record names an upload: its memory, which belongs to the record from now on.
    ///
    /// # Errors
    /// [`Missing`] if it is not complete, was not stored, or has another length.
    pub fn take(&mut self, named: &SegmentRef) -> Result<M, Missing<M>> {
        let Some(upload) = self.open.remove(&named.segment) else {
            return Err(Missing {
                reason: "its data was never sent".to_owned(),
                memory: None,
            });
        };
        let is_whole = upload.have_bytes == upload.len_bytes;
        let is_named = (named.offset_bytes, named.len_bytes) == (0, upload.len_bytes);
        match upload.memory {
            Ok(memory) if is_whole && is_named => Ok(memory),
            Ok(memory) => Err(Missing {
                reason: "not all of its data was sent".to_owned(),
                memory: Some(memory),
            }),
            Err(reason) => Err(Missing {
                reason,
                memory: None,
            }),
        }
    }

    /// The client will not name an upload. Returns the memory to give back.
    pub fn on_dropped(&mut self, upload: SegmentId) -> Option<M> {
        self.open.remove(&upload)?.memory.ok()
    }

    /// The client is gone: all memory, to give back.
    pub fn into_memory(self) -> impl Iterator<Item = M> {
        self.open
            .into_values()
            .filter_map(|upload| upload.memory.ok())
    }

    /// Whether a record has named every upload.
    pub fn is_empty(&self) -> bool {
        self.open.is_empty()
    }
}
