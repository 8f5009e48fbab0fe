//! Arguments and results between Python objects and wire payloads, on the client and on the engine.
//!
//! [`broadleaf_proto::layout`] describes the bytes.

use std::collections::hash_map::Entry;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use broadleaf_proto::layout::{COMPOUND, Compound, Delivery};
use broadleaf_proto::limits::MAX_INLINE_PAYLOAD_BYTES;
use broadleaf_proto::task::{LeaseGuard, Payload, SegmentRef};
use broadleaf_proto::{DecodeError, SegmentId, control};
use broadleaf_shm::{
    BornSegment, Pool, PoolConfig, Segment, ShmError, on_connected, on_disconnected, trim_born,
};
use pyo3::exceptions::{PyMemoryError, PyValueError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyBytes};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use crate::born;
use crate::buffer::{Buffer, with_bytes};
use crate::lent::Lent;
use crate::received::ReceivedTable;

/// Locks, going on with the value of a thread that panicked: every update here is complete at once.
pub fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A payload ready to be written, with what must be announced before it.
#[derive(Default)]
pub struct Encoded {
    /// The payload's inline bytes.
    pub bytes: Vec<u8>,
    /// The segments it names.
    pub segments: SmallVec<[SegmentRef; 0]>,
    /// Segments the peer has not seen.
    pub announce: Vec<(SegmentId, u64, OwnedFd)>,
    /// Keeps segments that are sent on until the payload is queued: they are given back behind it, not before.
    pub held: Vec<LeaseGuard>,
}

/// Segments of others, and what this process holds of segments.
#[derive(Default)]
struct Borrowed {
    by_id: FxHashMap<SegmentId, Arc<Segment>>,
    /// References that received payloads have, by segment, also to segments of its own.
    held: FxHashMap<SegmentId, u64>,
    /// References to give back.
    released: Vec<SegmentId>,
    /// Nothing is given back any more: a segment goes with its last reference.
    closed: bool,
}

/// References to segments that this process holds and gives back together.
struct Hold {
    segments: SmallVec<[SegmentId; 2]>,
    borrowed: Arc<Mutex<Borrowed>>,
}

impl Drop for Hold {
    fn drop(&mut self) {
        let mut borrowed = lock(&self.borrowed);
        for id in &self.segments {
            if let Entry::Occupied(mut held) = borrowed.held.entry(*id) {
                *held.get_mut() -= 1;
                if *held.get() == 0 {
                    held.remove();
                    if borrowed.closed {
                        borrowed.by_id.remove(id);
                    }
                }
            }
        }
        borrowed.released.extend(&self.segments);
    }
}

/// The shared-memory side of one connection: what this process lent, and what it borrowed.
pub struct DataPlane {
    pool: Mutex<Pool>,
    /// High half of the ids of this process's own segments.
    token: u32,
    received: Arc<ReceivedTable>,
    lent: Mutex<Lent>,
    /// Copies into segments that are not the pool's, and their bytes.
    window_copies: (AtomicU64, AtomicU64),
    borrowed: Arc<Mutex<Borrowed>>,
    /// Buffers above this size go into segments; `usize::MAX` where the peer is on another host.
    inline_limit_bytes: usize,
    epoch: Instant,
    trimmed_at_s: AtomicU64,
}

impl Drop for DataPlane {
    fn drop(&mut self) {
        self.on_closed();
    }
}

impl DataPlane {
    /// `token` makes this process's segment ids unique on the host.
    pub fn new(token: u32, inline_limit_bytes: usize, pool_max_bytes: Option<u64>) -> Self {
        let mut config = PoolConfig::default();
        if let Some(max) = pool_max_bytes {
            config.max_bytes = max;
        }
        on_connected();
        Self {
            pool: Mutex::new(Pool::new(token, config)),
            token,
            received: Arc::default(),
            lent: Mutex::default(),
            window_copies: Default::default(),
            borrowed: Arc::default(),
            inline_limit_bytes,
            epoch: Instant::now(),
            trimmed_at_s: AtomicU64::new(0),
        }
    }

    /// Encodes a value and its out-of-band buffers. Each large buffer is copied once, into a segment, unless it
    /// came in one, or was born in one, and was not written to since: then that segment is named again.
    pub fn encode_compound(
        &self,
        value: &[u8],
        buffers: &[Bound<'_, PyAny>],
        delivery: Delivery,
    ) -> PyResult<Encoded> {
        let mut out = Encoded::default();
        let encoded = self.encode_into(value, buffers, delivery, &mut out);
        if encoded.is_err() {
            self.give_back(&mut out);
        }
        encoded.map(|()| out)
    }

    /// Gives up what a payload that will not be sent refers to.
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
        lock(&self.lent).forget_retired(&unsent);
        encoded.held.clear();
    }

    fn encode_into(
        &self,
        value: &[u8],
        buffers: &[Bound<'_, PyAny>],
        delivery: Delivery,
        out: &mut Encoded,
    ) -> PyResult<()> {
        let mut bytes = vec![COMPOUND];
        bytes.extend_from_slice(&(buffers.len() as u32).to_le_bytes());
        let mut inline = Vec::new();
        for buffer in buffers {
            let raw = buffer.call_method0(intern!(buffer.py(), "raw"))?;
            with_bytes(&raw, |data| {
                let place = self.place(data, delivery, out)?;
                bytes.push(match place {
                    Some(_) => delivery.in_segment(),
                    None => delivery.inline(),
                });
                bytes.extend_from_slice(&(data.len() as u64).to_le_bytes());
                match place {
                    Some(place) => out.segments.push(place),
                    None => inline.extend_from_slice(data),
                }
                PyResult::Ok(())
            })??;
        }
        bytes.extend_from_slice(&(value.len() as u32).to_le_bytes());
        bytes.extend_from_slice(value);
        bytes.append(&mut inline);
        if bytes.len() > MAX_INLINE_PAYLOAD_BYTES {
            return Err(PyValueError::new_err(format!(
                "{} bytes are too many for one message of at most {MAX_INLINE_PAYLOAD_BYTES}: send large data as \
                 arrays or other buffers to a cluster on this host, where they go through shared memory, or in parts",
                bytes.len()
            )));
        }
        out.bytes = bytes;
        Ok(())
    }

    /// Finds or makes the place of a buffer in a segment; `None` for one that rides inline.
    fn place(
        &self,
        data: &[u8],
        delivery: Delivery,
        out: &mut Encoded,
    ) -> PyResult<Option<SegmentRef>> {
        let on_this_host = self.inline_limit_bytes != usize::MAX;
        let window = delivery == Delivery::Shared && on_this_host && !data.is_empty();
        if data.len() <= self.inline_limit_bytes && !window {
            return Ok(None);
        }
        if let Some((memory, offset)) = born::find(data.as_ptr() as usize, data.len()) {
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
            let mut segment = BornSegment::new(data.len() as u64).map_err(shm_error)?;
            segment.write(data).map_err(shm_error)?;
            self.count_copy(data.len());
            return self.lend(&Arc::new(segment), 0, data.len(), out).map(Some);
        }
        if let Some((place, lease)) = self.send_on(data) {
            out.held.push(lease);
            return Ok(Some(place));
        }
        self.copy_in(data, &mut out.announce).map(Some)
    }

    fn count_copy(&self, len_bytes: usize) {
        self.window_copies.0.fetch_add(1, Ordering::Relaxed);
        let bytes = &self.window_copies.1;
        bytes.fetch_add(len_bytes as u64, Ordering::Relaxed);
    }

    /// Lends a part of a segment that is not the pool's.
    fn lend(
        &self,
        segment: &Arc<BornSegment>,
        offset: usize,
        len_bytes: usize,
        out: &mut Encoded,
    ) -> PyResult<SegmentRef> {
        let fresh = || lock(&self.pool).fresh_id();
        let (id, is_new) = lock(&self.lent).lend(segment, fresh);
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

    /// Names the segment in which these bytes were received, if they are still its bytes.
    fn send_on(&self, data: &[u8]) -> Option<(SegmentRef, LeaseGuard)> {
        let (place, lease) = self.received.find(data.as_ptr() as usize, data.len())?;
        // For a segment of our own the peer will give back one reference more.
        let counted = !self.owns(place.segment)
            || lock(&self.pool).add_reference(place.segment, 1).is_ok()
            || lock(&self.lent).add_reference(place.segment);
        counted.then_some((place, lease))
    }

    fn owns(&self, id: SegmentId) -> bool {
        id.0 >> 32 == u64::from(self.token)
    }

    fn copy_in(
        &self,
        data: &[u8],
        announce: &mut Vec<(SegmentId, u64, OwnedFd)>,
    ) -> PyResult<SegmentRef> {
        // Filled outside the lock: a copy of a gigabyte must not hold up the thread that takes releases.
        let mut lease = lock(&self.pool)
            .allocate(data.len() as u64)
            .map_err(shm_error)?;
        let filled = lease.fill(data);
        let mut pool = lock(&self.pool);
        if let Err(error) = filled {
            pool.cancel(lease);
            return Err(shm_error(error));
        }
        let place = pool.publish(lease);
        if pool.is_new(place.segment) {
            let segment = pool.segment(place.segment).expect("invariant: just filled");
            announce.push((
                place.segment,
                segment.len(),
                segment.fd().try_clone_to_owned()?,
            ));
            pool.mark_announced(place.segment);
        }
        Ok(place)
    }

    /// Splits a payload into a value and its buffers, mapping what lies in segments.
    pub fn decode_compound<'py, 'a>(
        &self,
        py: Python<'py>,
        payload: &'a Payload,
    ) -> PyResult<(&'a [u8], Vec<Bound<'py, PyAny>>)> {
        let malformed = |_| PyValueError::new_err("malformed payload");
        let compound = Compound::decode(&payload.bytes).map_err(malformed)?;
        let mut buffers = Vec::with_capacity(compound.buffers.len());
        let mut segments = payload.segments.iter();
        let mut inline = compound.inline;
        for (place, len) in &compound.buffers {
            let (is_inline, delivery) = Delivery::of(*place).map_err(malformed)?;
            if is_inline {
                let bytes = inline
                    .split_off(..*len as usize)
                    .expect("invariant: decoding checked the lengths");
                if delivery == Delivery::Shared && !bytes.is_empty() {
                    return Err(PyMemoryError::new_err(format!(
                        "the host had no memory for a shared array of {} bytes",
                        bytes.len()
                    )));
                }
                if delivery == Delivery::Readonly {
                    buffers.push(PyBytes::new(py, bytes).into_any());
                } else {
                    buffers.push(PyByteArray::new(py, bytes).into_any());
                }
            } else {
                let place = segments
                    .next()
                    .ok_or_else(|| malformed(DecodeError::Truncated))?;
                let lease = payload.lease.clone();
                let lease = lease.ok_or_else(|| malformed(DecodeError::Truncated))?;
                buffers.push(Bound::new(py, self.map(*place, delivery, lease)?)?.into_any());
            }
        }
        Ok((compound.value, buffers))
    }

    fn map(&self, place: SegmentRef, delivery: Delivery, lease: LeaseGuard) -> PyResult<Buffer> {
        let map = |segment: &Segment| {
            let (offset_bytes, len_bytes) = (place.offset_bytes, place.len_bytes);
            let mapping = match delivery {
                Delivery::Private => segment.map_private(offset_bytes, len_bytes),
                Delivery::Readonly => segment.map_readonly(offset_bytes, len_bytes),
                Delivery::Shared => segment.map_shared(offset_bytes, len_bytes),
            };
            mapping.map(|mapping| (mapping, segment.len()))
        };
        let mapped = if self.owns(place.segment) {
            let lent = lock(&self.lent).segment(place.segment);
            match lent {
                Some(lent) => Some(map(lent.segment())),
                None => lock(&self.pool).segment(place.segment).map(map),
            }
        } else {
            let segment = lock(&self.borrowed).by_id.get(&place.segment).cloned();
            segment.as_deref().map(map)
        };
        let (mapping, segment_bytes) = mapped
            .ok_or_else(|| PyValueError::new_err("payload names an unknown segment"))?
            .map_err(shm_error)?;
        let received = self.received.enter(mapping, place, segment_bytes, lease);
        Ok(Buffer::new(received, Arc::clone(&self.received)))
    }

    /// Marks a received payload's segments as held here until its last clone, or the last array on it, is gone.
    pub fn adopt(&self, payload: &mut Payload) {
        if !payload.segments.is_empty() {
            let segments: SmallVec<_> = payload.segments.iter().map(|s| s.segment).collect();
            let mut borrowed = lock(&self.borrowed);
            for id in &segments {
                *borrowed.held.entry(*id).or_default() += 1;
            }
            drop(borrowed);
            payload.lease = Some(LeaseGuard(Arc::new(Hold {
                segments,
                borrowed: Arc::clone(&self.borrowed),
            })));
        }
    }

    /// Learns of segments that payloads to come will name.
    pub fn on_announce(
        &self,
        announce: control::SegmentAnnounce,
        fds: impl IntoIterator<Item = OwnedFd>,
    ) {
        let mut borrowed = lock(&self.borrowed);
        for ((id, len), fd) in announce.segments.into_iter().zip(fds) {
            // A descriptor that is no sealed segment is left out; a payload naming it fails by itself.
            if let Ok(segment) = Segment::from_fd(fd, len) {
                borrowed.by_id.insert(id, Arc::new(segment));
            }
        }
    }

    /// References came back (`released`), or the owner of borrowed segments closed them (`retired`).
    pub fn on_release(&self, release: &control::SegmentRelease) {
        for id in &release.released {
            // What is not the pool's was lent. A peer that gives back what it never had is wrong, but harmless.
            let pooled = lock(&self.pool).release(*id).is_ok();
            if !pooled {
                lock(&self.lent).release(*id);
            }
        }
        let mut borrowed = lock(&self.borrowed);
        for id in &release.retired {
            borrowed.by_id.remove(id);
        }
    }

    /// References to give back to the peer now, if any.
    pub fn take_releases(&self) -> Option<control::SegmentRelease> {
        let released = std::mem::take(&mut lock(&self.borrowed).released);
        let mut retired = self.trim();
        retired.append(&mut lock(&self.lent).take_retired());
        (!released.is_empty() || !retired.is_empty())
            .then_some(control::SegmentRelease { released, retired })
    }

    /// The connection is closed: frees all segments but those of payloads that are here and may still be decoded.
    /// May be called again.
    pub fn on_closed(&self) {
        let mut borrowed = lock(&self.borrowed);
        if std::mem::replace(&mut borrowed.closed, true) {
            return;
        }
        let held = borrowed.held.clone();
        borrowed.by_id.retain(|id, _| held.contains_key(id));
        drop(borrowed);
        lock(&self.pool).retain(|id| held.contains_key(id));
        lock(&self.lent).retain(|id| held.contains_key(id));
        // What was lent is free by now.
        on_disconnected();
    }

    /// Retires segments that were not used for a while; looks at most once a period.
    fn trim(&self) -> Vec<SegmentId> {
        let now_s = self.epoch.elapsed().as_secs();
        if self.trimmed_at_s.swap(now_s, Ordering::Relaxed) == now_s {
            Vec::new()
        } else {
            trim_born();
            lock(&self.pool).trim()
        }
    }

    /// Counters of the pool.
    pub fn counters(&self) -> broadleaf_shm::PoolCounters {
        let mut counters = lock(&self.pool).counters();
        counters.copies += self.window_copies.0.load(Ordering::Relaxed);
        counters.copied_bytes += self.window_copies.1.load(Ordering::Relaxed);
        counters
    }

    /// What was received in segments and is mapped.
    pub fn received(&self) -> &ReceivedTable {
        &self.received
    }

    /// Shows received bytes in the place of others, without a copy; see [`ReceivedTable::replace`].
    pub fn replace(&self, destination: usize, source: usize, len_bytes: usize) -> bool {
        let borrowed = |id| lock(&self.borrowed).by_id.get(&id).cloned();
        self.received
            .replace((destination, source, len_bytes), borrowed)
    }
}

#[expect(clippy::needless_pass_by_value, reason = "used with map_err")]
fn shm_error(error: ShmError) -> PyErr {
    PyMemoryError::new_err(error.to_string())
}
