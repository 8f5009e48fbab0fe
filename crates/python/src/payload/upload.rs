//! Large buffers for a controller on another host: they are sent ahead of their record, in parts.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use broadleaf_proto::limits::FAR_INLINE_TOTAL_BYTES;
use broadleaf_proto::task::SegmentRef;
use broadleaf_proto::{SegmentId, UploadChunk};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use super::DataPlane;
use super::encode::{Encoded, with_raw};

/// The high half of the numbers of uploads; the client has no segments of that number.
const UPLOADS: u64 = (u32::MAX as u64 - 1) << 32;

/// How buffers that are not sent inline reach the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LargeBuffers {
    /// In shared memory.
    Segment,
    /// Ahead of their record.
    Upload,
    /// Not at all: every buffer is sent inline.
    Inline,
}

enum Content {
    Buffer(Py<PyAny>),
    Bytes(Vec<u8>),
}

/// Bytes to send before the record that names them.
pub struct Upload {
    /// The name.
    pub id: SegmentId,
    /// Their number.
    pub len_bytes: usize,
    content: Content,
}

impl Upload {
    /// Calls `read` with a part of the bytes.
    pub fn with_part<R>(
        &self,
        py: Python<'_>,
        start: usize,
        read: impl FnOnce(&[u8]) -> R,
    ) -> PyResult<R> {
        let end = self.len_bytes.min(start + UploadChunk::MAX_BYTES);
        let part_of = |bytes: &[u8]| {
            let part = bytes
                .get(start..end)
                .filter(|_| bytes.len() == self.len_bytes);
            let part = part.ok_or_else(|| {
                PyValueError::new_err("a buffer changed its length while it was sent")
            })?;
            Ok(read(part))
        };
        match &self.content {
            Content::Buffer(buffer) => with_raw(buffer.bind(py), part_of),
            Content::Bytes(bytes) => part_of(bytes),
        }
    }
}

impl DataPlane {
    /// Whether a buffer is sent ahead, if the ones before it take `inline_bytes` of the record.
    pub(super) fn uploads(&self, len_bytes: usize, inline_bytes: usize) -> bool {
        let is_large = len_bytes > self.inline_limit_bytes
            || inline_bytes + len_bytes > FAR_INLINE_TOTAL_BYTES;
        self.large == LargeBuffers::Upload && is_large && len_bytes > 0
    }

    /// Sends a pickle's buffer ahead.
    pub(super) fn upload_buffer(
        &self,
        buffer: &Bound<'_, PyAny>,
        len_bytes: usize,
        out: &mut Encoded,
    ) -> SegmentRef {
        self.upload(Content::Buffer(buffer.clone().unbind()), len_bytes, out)
    }

    /// Sends bytes ahead.
    pub(super) fn upload_bytes(&self, bytes: Vec<u8>, out: &mut Encoded) -> SegmentRef {
        let len_bytes = bytes.len();
        self.upload(Content::Bytes(bytes), len_bytes, out)
    }

    fn upload(&self, content: Content, len_bytes: usize, out: &mut Encoded) -> SegmentRef {
        let number = self.last_upload.fetch_add(1, Ordering::Relaxed) & u64::from(u32::MAX);
        let id = SegmentId(UPLOADS | number);
        out.uploads.push(Arc::new(Upload {
            id,
            len_bytes,
            content,
        }));
        SegmentRef {
            segment: id,
            offset_bytes: 0,
            len_bytes: len_bytes as u64,
        }
    }
}
