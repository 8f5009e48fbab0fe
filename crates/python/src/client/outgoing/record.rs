//! Submit records, written directly without building one first.

use broadleaf_proto::limits::{DEPENDENCY_BYTES, MAX_DEPENDENCIES, MAX_INLINE_PAYLOAD_BYTES};
use broadleaf_proto::task::SegmentRef;
use broadleaf_proto::{FunctionId, OptionsId};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::payload::Encoded;

/// The tasks that a task must run after, and those whose engine it must run on.
pub type Dependencies<'a> = (&'a [u64], &'a [u64]);

/// The fields of a record besides its payload.
pub struct Head<'a> {
    /// The task's number, or the first of its targets'.
    pub seq: u64,
    /// What to call.
    pub function: FunctionId,
    /// How to run it.
    pub options: OptionsId,
    /// How many tasks it is nested in.
    pub depth: u16,
    /// What it depends on.
    pub dependencies: Dependencies<'a>,
}

impl Head<'_> {
    /// Writes the record: all fields of fixed size with one copy instead of one per field.
    #[inline]
    fn write(&self, out: &mut Vec<u8>, bytes: &[u8], segments: &[SegmentRef]) {
        const HEAD_BYTES: usize = 26;
        let (after, follow) = self.dependencies;
        let mut fixed = [0; HEAD_BYTES + 6];
        fixed[..8].copy_from_slice(&self.seq.to_le_bytes());
        fixed[8..12].copy_from_slice(&self.function.0.to_le_bytes());
        fixed[12..16].copy_from_slice(&self.options.0.to_le_bytes());
        fixed[16..18].copy_from_slice(&self.depth.to_le_bytes());
        fixed[18..22].copy_from_slice(&(after.len() as u32).to_le_bytes());
        fixed[22..26].copy_from_slice(&(follow.len() as u32).to_le_bytes());
        fixed[26..30].copy_from_slice(&(bytes.len() as u32).to_le_bytes());
        fixed[30..].copy_from_slice(&(segments.len() as u16).to_le_bytes());
        if after.is_empty() && follow.is_empty() {
            out.extend_from_slice(&fixed);
        } else {
            out.extend_from_slice(&fixed[..HEAD_BYTES]);
            for seq in after.iter().chain(follow) {
                out.extend_from_slice(&seq.to_le_bytes());
            }
            out.extend_from_slice(&fixed[HEAD_BYTES..]);
        }
        for s in segments {
            out.extend_from_slice(&s.segment.0.to_le_bytes());
            out.extend_from_slice(&s.offset_bytes.to_le_bytes());
            out.extend_from_slice(&s.len_bytes.to_le_bytes());
        }
        out.extend_from_slice(bytes);
    }
}

/// Bytes and segments of a payload; `plain` if it is not encoded.
pub fn parts_of<'a>(encoded: Option<&'a Encoded>, plain: &'a [u8]) -> (&'a [u8], &'a [SegmentRef]) {
    encoded.map_or((plain, &[]), |e| (&e.bytes, &e.segments))
}

/// `ValueError` for more dependencies than a record may name.
pub fn check_dependencies((after, follow): Dependencies<'_>) -> PyResult<()> {
    let n = after.len() + follow.len();
    if n <= MAX_DEPENDENCIES {
        return Ok(());
    }
    Err(PyValueError::new_err(format!(
        "a task can depend on at most {MAX_DEPENDENCIES} tasks, not on {n}: submit intermediate tasks that each wait for some of them"
    )))
}

/// The charge for a task's dependencies among the client's unresolved bytes.
pub fn dependency_weight((after, follow): Dependencies<'_>) -> u64 {
    DEPENDENCY_BYTES * (after.len() + follow.len()) as u64
}

fn dependency_bytes((after, follow): Dependencies<'_>) -> usize {
    8 * (after.len() + follow.len())
}

/// `ValueError` for a payload that fits into a message, but not together with its dependencies.
pub fn check_together(dependencies: Dependencies<'_>, bytes: &[u8]) -> PyResult<()> {
    if bytes.len() + dependency_bytes(dependencies) <= MAX_INLINE_PAYLOAD_BYTES {
        return Ok(());
    }
    Err(PyValueError::new_err(format!(
        "the arguments of {} bytes and the dependencies of the task are too long for one message",
        bytes.len()
    )))
}

/// Records that wait to be sent together, as bodies of frames.
#[derive(Default)]
pub struct Records {
    /// Bodies without room for the next record.
    full: Vec<Vec<u8>>,
    last: Vec<u8>,
}

impl Records {
    /// Appends a record.
    #[inline]
    pub fn push(&mut self, head: &Head<'_>, bytes: &[u8], segments: &[SegmentRef]) {
        let record_bytes = bytes.len() + dependency_bytes(head.dependencies);
        if self.last.len() + record_bytes > MAX_INLINE_PAYLOAD_BYTES {
            self.begin_next();
        }
        head.write(&mut self.last, bytes, segments);
    }

    /// With the next record the body could exceed a frame.
    #[cold]
    fn begin_next(&mut self) {
        if !self.last.is_empty() {
            self.full.push(std::mem::take(&mut self.last));
        }
    }

    /// Whether this many bytes are waiting.
    pub fn hold(&self, n_bytes: usize) -> bool {
        self.last.len() >= n_bytes || !self.full.is_empty()
    }

    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.last.is_empty()
    }

    /// Removes all bodies.
    pub fn take(&mut self) -> impl Iterator<Item = Vec<u8>> + use<> {
        let capacity = self.last.capacity().min(MAX_KEPT_BYTES);
        let last = std::mem::replace(&mut self.last, Vec::with_capacity(capacity));
        std::mem::take(&mut self.full).into_iter().chain([last])
    }
}

/// Memory kept for future records.
const MAX_KEPT_BYTES: usize = 512 * 1024;
