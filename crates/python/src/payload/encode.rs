//! From values and their buffers to payloads to send.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use broadleaf_proto::layout::{COMPOUND, Delivery, ValueHead};
use broadleaf_proto::limits::{
    INLINE_BUFFER_BYTES, MAX_INLINE_PAYLOAD_BYTES, MAX_PAYLOAD_SEGMENTS,
};
use broadleaf_proto::task::{LeaseGuard, SegmentRef};
use broadleaf_proto::{SegmentId, control};
use broadleaf_shm::{
    AllocationSegment, Lease, MessageSlab, SLAB_BUFFER_BYTES, ShmError, await_memory,
    slab_range_bytes,
};
use pyo3::exceptions::PyValueError;
use pyo3::intern;
use pyo3::prelude::*;
use smallvec::SmallVec;

use super::again::{Counted, MIN_BYTES};
use super::captured::Captured;
use super::upload::{LargeBuffers, Upload};
use super::{DataPlane, lock, shm_error};
use crate::buffer::with_bytes;
use crate::errors::PayloadTooLarge;
use crate::memory::allocations;

/// How long to wait for memory that is being returned to the system before a payload is refused.
const RETURN_TIME: Duration = Duration::from_millis(500);

/// A payload ready to be written, with what must be announced before it.
#[derive(Default)]
pub struct Encoded {
    /// The payload's inline bytes.
    pub bytes: Vec<u8>,
    /// The segments it names.
    pub segments: SmallVec<[SegmentRef; 0]>,
    /// Bytes that are sent before it.
    pub uploads: Vec<Arc<Upload>>,
    /// Segments the peer has not seen.
    pub announce: Vec<(SegmentId, u64, OwnedFd)>,
    /// The slab that its small buffers fill.
    pub(super) slab: MessageSlab,
    /// Keeps forwarded segments until the payload is queued: they are released after it, not before.
    pub held: Vec<LeaseGuard>,
    /// Memory that counts once for all payloads that name it.
    pub counted: SmallVec<[Arc<Counted>; 0]>,
    /// Bytes of `segments` covered by `counted`.
    pub(super) counted_bytes: u64,
}

impl Encoded {
    /// Bytes that count only for this payload.
    pub fn own_weight_bytes(&self) -> u64 {
        let sizes = self.segments.iter().map(|s| s.len_bytes);
        self.bytes.len() as u64 + sizes.sum::<u64>() - self.counted_bytes
    }
}

/// How buffers are sent.
#[derive(Clone, Copy, Default)]
pub struct Way {
    /// What their readers may do with them.
    pub delivery: Delivery,
    /// Buffers sent before from the same address, unchanged and still in use, are named again.
    pub again: bool,
}

/// Buffers in the order of a payload's table.
#[derive(Default)]
pub(super) struct Table {
    /// Delivery and length of each.
    pub entries: Vec<u8>,
    pub n: usize,
    /// Those that are not in a segment.
    pub inline: Vec<u8>,
}

impl Table {
    pub fn push(&mut self, data: &[u8], range: Option<SegmentRef>, delivery: Delivery) {
        self.entries.push(match range {
            Some(_) => delivery.in_segment(),
            None => delivery.inline(),
        });
        self.entries
            .extend_from_slice(&(data.len() as u64).to_le_bytes());
        self.n += 1;
        if range.is_none() {
            self.inline.extend_from_slice(data);
        }
    }

    fn push_range(&mut self, range: SegmentRef, delivery: Delivery) {
        self.entries.push(delivery.in_segment());
        self.entries
            .extend_from_slice(&range.len_bytes.to_le_bytes());
        self.n += 1;
    }
}

impl DataPlane {
    /// Whether a value's encoding of this length is a buffer of its own, which lies in a segment where it is read.
    pub fn is_apart(&self, len_bytes: usize) -> bool {
        match self.large {
            LargeBuffers::Segment => len_bytes > self.inline_limit_bytes,
            LargeBuffers::Upload => len_bytes > INLINE_BUFFER_BYTES,
            LargeBuffers::Inline => false,
        }
    }

    /// Whether the peer maps segments of this host.
    pub fn on_this_host(&self) -> bool {
        self.large == LargeBuffers::Segment
    }

    /// Encodes a value and its out-of-band buffers. Each large buffer is copied once into a segment, unless it arrived
    /// or was allocated in one and was not written to since: then that segment is named again.
    pub fn encode_compound(
        &self,
        value: &[u8],
        buffers: &[Bound<'_, PyAny>],
        way: Way,
        captured: Option<&Captured<'_>>,
    ) -> PyResult<Encoded> {
        let mut out = Encoded::default();
        let encoded = self.encode_into(value, buffers, way, captured, &mut out);
        if encoded.is_err() {
            self.give_back(&mut out);
        }
        encoded.map(|()| out)
    }

    /// The exception for a payload with this many bytes inline.
    pub(super) fn too_large(&self, n_bytes: usize) -> PyErr {
        let why = match self.large {
            LargeBuffers::Inline => "shared memory is off (option `shared_memory`)",
            LargeBuffers::Segment => {
                "there is no room for them in shared memory (option `pool_max_bytes`, or `ulimit -n`)"
            }
            LargeBuffers::Upload => "the controller is on another host",
        };
        PayloadTooLarge::new_err((n_bytes, MAX_INLINE_PAYLOAD_BYTES, why))
    }

    /// Releases what an unsent payload refers to.
    pub fn give_back(&self, encoded: &mut Encoded) {
        let unsent: Vec<SegmentId> = encoded.announce.drain(..).map(|(id, ..)| id).collect();
        let mut pool = lock(&self.pool);
        for id in &unsent {
            pool.unmark_announced(*id);
        }
        drop(pool);
        let released = encoded.segments.drain(..).map(|s| s.segment).collect();
        self.on_release(&control::SegmentRelease {
            released,
            retired: Vec::new(),
        });
        lock(&self.exported).forget_retired(&unsent);
        encoded.uploads.clear();
        encoded.held.clear();
        encoded.counted.clear();
    }

    fn encode_into(
        &self,
        value: &[u8],
        buffers: &[Bound<'_, PyAny>],
        way: Way,
        captured: Option<&Captured<'_>>,
        out: &mut Encoded,
    ) -> PyResult<()> {
        let mut head = ValueHead::default();
        let mut table = Table::default();
        if let Some(captured) = captured {
            head.n_captured = captured.begin(&mut table);
            captured.name_again(out)?;
        }
        let lengths = buffers
            .iter()
            .map(|buffer| with_raw(buffer, |data| Ok(data.len())))
            .collect::<PyResult<SmallVec<[usize; 8]>>>()?;
        let mut in_pack = self.choose_packed(&lengths, way.delivery);
        if lengths.len() > 1 && in_pack.is_empty() {
            let in_slabs = lengths.iter().filter(|len| **len > self.inline_limit_bytes);
            out.slab.expected_bytes = in_slabs.map(|len| slab_range_bytes(*len as u64)).sum();
        }
        let pack = if in_pack.is_empty() {
            None
        } else {
            self.pack(buffers, &in_pack, &mut head, out)?
        };
        if pack.is_none() {
            in_pack.clear();
            head.packed.clear();
        }
        for (index, buffer) in buffers.iter().enumerate() {
            if in_pack.binary_search(&index).is_ok() {
                continue;
            }
            with_raw(buffer, |data| {
                let range = if self.uploads(data.len(), table.inline.len()) {
                    Some(self.upload_buffer(buffer, data.len(), out))
                } else {
                    self.range_for(data, way, self.inline_limit_bytes, out)?
                };
                let inline_bytes = table.inline.len() + data.len();
                // Checked before it is copied, which would take seconds.
                if range.is_none() && inline_bytes > MAX_INLINE_PAYLOAD_BYTES {
                    return Err(self.too_large(inline_bytes));
                }
                table.push(data, range, way.delivery);
                out.segments.extend(range);
                PyResult::Ok(())
            })?;
        }
        if let Some(range) = pack {
            table.push_range(range, way.delivery);
            out.segments.push(range);
        }
        let out_of_band = match self.large {
            _ if !self.is_apart(value.len()) => None,
            LargeBuffers::Segment => self.copy_in(value, out)?,
            LargeBuffers::Upload if self.uploads(value.len(), table.inline.len()) => {
                Some(self.upload_bytes(value.to_vec(), out))
            }
            // The node puts it into a segment.
            LargeBuffers::Upload | LargeBuffers::Inline => None,
        };
        if out_of_band.is_some() || self.is_apart(value.len()) {
            head.is_out_of_band = true;
            table.push(value, out_of_band, Delivery::Readonly);
            out.segments.extend(out_of_band);
        }
        let mut encoded_head = Vec::new();
        head.encode(&mut encoded_head);
        let value = if head.is_out_of_band { &[] } else { value };
        let n_bytes = table.entries.len() + encoded_head.len() + value.len() + table.inline.len();
        if n_bytes + 16 > MAX_INLINE_PAYLOAD_BYTES {
            return Err(self.too_large(n_bytes));
        }
        if out.segments.len() > MAX_PAYLOAD_SEGMENTS {
            return Err(PyValueError::new_err(format!(
                "{} arrays are too many to share with one call, which accepts at most {MAX_PAYLOAD_SEGMENTS}: share one array and use parts of it",
                out.segments.len()
            )));
        }
        let mut bytes = Vec::with_capacity(n_bytes + 16);
        bytes.push(COMPOUND);
        bytes.extend_from_slice(&(table.n as u32).to_le_bytes());
        bytes.append(&mut table.entries);
        bytes.extend_from_slice(&((encoded_head.len() + value.len()) as u32).to_le_bytes());
        bytes.append(&mut encoded_head);
        bytes.extend_from_slice(value);
        bytes.append(&mut table.inline);
        out.bytes = bytes;
        Ok(())
    }

    /// Finds or makes a segment range for a buffer; `None` if the buffer is sent inline.
    pub(super) fn range_for(
        &self,
        data: &[u8],
        way: Way,
        limit_bytes: usize,
        out: &mut Encoded,
    ) -> PyResult<Option<SegmentRef>> {
        let window = way.delivery == Delivery::Shared && self.on_this_host() && !data.is_empty();
        if data.len() <= limit_bytes && !window {
            return Ok(None);
        }
        if let Some((memory, offset)) = allocations::find(data.as_ptr() as usize, data.len()) {
            let opened = if window {
                memory.open_window()
            } else {
                memory.publish()
            };
            let (segment, copied) = opened.map_err(shm_error)?;
            if copied {
                self.count_copy(memory.len());
            }
            return self.lend(&segment, offset, data.len(), out).map(Some);
        }
        if window {
            let mut segment = AllocationSegment::new(data.len() as u64).map_err(shm_error)?;
            segment.write(data).map_err(shm_error)?;
            self.count_copy(data.len());
            return self.lend(&Arc::new(segment), 0, data.len(), out).map(Some);
        }
        if let Some((range, lease)) = self.send_on(data) {
            out.held.push(lease);
            return Ok(Some(range));
        }
        if way.again && data.len() >= MIN_BYTES {
            let (range, counted) = if let Some(found) = self.find_again(data) {
                found
            } else {
                let Some(range) = self.copy_in(data, out)? else {
                    return Ok(None);
                };
                (range, self.remember(data, range))
            };
            out.counted_bytes += range.len_bytes;
            out.counted.push(counted);
            return Ok(Some(range));
        }
        self.copy_in(data, out)
    }

    pub(super) fn count_copy(&self, len_bytes: usize) {
        use std::sync::atomic::Ordering;
        self.window_copies.0.fetch_add(1, Ordering::Relaxed);
        let bytes = &self.window_copies.1;
        bytes.fetch_add(len_bytes as u64, Ordering::Relaxed);
    }

    /// Exports a part of a segment that does not belong to the pool.
    fn lend(
        &self,
        segment: &Arc<AllocationSegment>,
        offset: usize,
        len_bytes: usize,
        out: &mut Encoded,
    ) -> PyResult<SegmentRef> {
        let fresh = || lock(&self.pool).fresh_id();
        let (id, is_new) = lock(&self.exported).lend(segment, fresh);
        if is_new {
            let segment = segment.segment();
            let fd = segment.fd().try_clone_to_owned()?;
            out.announce.push((id, segment.len(), fd));
        }
        Ok(SegmentRef {
            segment: id,
            offset_bytes: offset as u64,
            len_bytes: len_bytes as u64,
        })
    }

    /// Names the segment in which these bytes were received, if they are unchanged.
    fn send_on(&self, data: &[u8]) -> Option<(SegmentRef, LeaseGuard)> {
        let (range, lease) = self.received.find(data.as_ptr() as usize, data.len())?;
        // For our own segment the peer will release one more reference.
        let counted = !self.owns(range.segment)
            || lock(&self.pool).add_reference(range.segment, 1).is_ok()
            || lock(&self.exported).add_reference(range.segment);
        counted.then_some((range, lease))
    }

    fn copy_in(&self, data: &[u8], out: &mut Encoded) -> PyResult<Option<SegmentRef>> {
        self.fill_shared(data.len() as u64, out, |lease| {
            lease.fill(data).map_err(FillError::Shm)
        })
    }

    pub(super) fn fill_segment(
        &self,
        len_bytes: u64,
        out: &mut Encoded,
        fill: impl Fn(&mut [u8]) -> PyResult<()>,
    ) -> PyResult<Option<SegmentRef>> {
        self.fill_shared(len_bytes, out, |lease| {
            fill(lease.as_mut_slice().map_err(FillError::Shm)?).map_err(FillError::Python)
        })
    }

    /// Fills memory that the peer can map; `None` if descriptors are short, or if the pool is full and the buffer
    /// small: then the bytes should be sent inline.
    fn fill_shared(
        &self,
        len_bytes: u64,
        out: &mut Encoded,
        fill: impl Fn(&mut Lease) -> Result<(), FillError>,
    ) -> PyResult<Option<SegmentRef>> {
        let mut filled = self.try_fill(len_bytes, &mut out.slab, &fill);
        if let Err(FillError::Shm(error)) = &filled {
            let gave_up = match error {
                ShmError::OutOfMemory { .. } | ShmError::DevShmFull { .. } => {
                    self.give_up_kept();
                    self.give_up_warm();
                    // This includes memory that others are about to release.
                    await_memory(len_bytes, RETURN_TIME)
                }
                ShmError::OverCap { .. } | ShmError::TooManySegments { .. } => self.give_up_kept(),
                _ => false,
            };
            if gave_up {
                filled = self.try_fill(len_bytes, &mut out.slab, &fill);
            }
        }
        let lease = match filled {
            Ok(lease) => lease,
            Err(FillError::Python(error)) => return Err(error),
            Err(FillError::Shm(ShmError::DescriptorsShort | ShmError::TooManySegments { .. })) => {
                return Ok(None);
            }
            // The pool may be full of slabs of which little is used.
            Err(FillError::Shm(ShmError::OverCap { .. })) if len_bytes < SLAB_BUFFER_BYTES => {
                return Ok(None);
            }
            Err(FillError::Shm(error)) => return Err(shm_error(error)),
        };
        let mut pool = lock(&self.pool);
        let range = pool.publish(lease);
        if pool.is_new(range.segment) {
            let segment = pool.segment(range.segment).expect("invariant: just filled");
            let Ok(fd) = segment.fd().try_clone_to_owned() else {
                drop(pool.release(range.segment));
                out.slab.on_given_back();
                return Ok(None);
            };
            out.announce.push((range.segment, segment.len(), fd));
            pool.mark_announced(range.segment);
        }
        Ok(Some(range))
    }

    fn try_fill(
        &self,
        len_bytes: u64,
        slab: &mut MessageSlab,
        fill: impl Fn(&mut Lease) -> Result<(), FillError>,
    ) -> Result<Lease, FillError> {
        let allocated = lock(&self.pool).allocate_shared(len_bytes, slab);
        let mut lease = allocated.map_err(FillError::Shm)?;
        // Filled outside the lock: a copy of a gigabyte must not hold up the thread that handles releases.
        match fill(&mut lease) {
            Ok(()) => Ok(lease),
            Err(error) => {
                lock(&self.pool).cancel(lease);
                slab.on_given_back();
                Err(error)
            }
        }
    }
}

/// Why memory was not filled.
enum FillError {
    Shm(ShmError),
    Python(PyErr),
}

/// Calls `read` with the bytes of a pickle's buffer.
pub(super) fn with_raw<R>(
    buffer: &Bound<'_, PyAny>,
    read: impl FnOnce(&[u8]) -> PyResult<R>,
) -> PyResult<R> {
    let raw = buffer.call_method0(intern!(buffer.py(), "raw"))?;
    with_bytes(&raw, read)?
}
