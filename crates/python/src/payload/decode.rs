//! From received payloads to values and their buffers.

use broadleaf_proto::layout::{Compound, Delivery, ValueHead, pack_offsets};
use broadleaf_proto::task::{LeaseGuard, Payload, SegmentRef};
use broadleaf_proto::{DecodeError, compact, layout};
use pyo3::exceptions::{PyMemoryError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyBytes, PyMemoryView, PySlice};
use std::sync::Arc;

use super::{DataPlane, lock, shm_error};
use crate::buffer::{Buffer, with_bytes};

/// The encoding of a value.
pub enum Value<'py, 'a> {
    /// It was inline: a compact encoding or a pickle; empty for a call without arguments.
    Inline(&'a [u8]),
    /// The same, as a buffer.
    Apart(Bound<'py, PyAny>),
}

impl<'py> Value<'py, '_> {
    /// The pickle, as an object with a buffer.
    pub fn into_pickle(self, py: Python<'py>) -> Bound<'py, PyAny> {
        match self {
            Self::Inline(bytes) => PyBytes::new(py, bytes).into_any(),
            Self::Apart(buffer) => buffer,
        }
    }

    /// Applies `read` to the compact encoding, if it is one.
    pub fn read_plain<R>(&self, read: impl FnOnce(&[u8]) -> PyResult<R>) -> PyResult<Option<R>> {
        let read = |bytes: &[u8]| match bytes.split_first() {
            Some((&layout::PLAIN, rest)) => read(rest).map(Some),
            _ => Ok(None),
        };
        match self {
            Self::Inline(bytes) => read(bytes),
            Self::Apart(buffer) => with_bytes(buffer, read)?,
        }
    }
}

/// A payload of a value and buffers, taken apart.
pub struct Decoded<'py, 'a> {
    /// The value.
    pub value: Value<'py, 'a>,
    /// Buffers that the call's function captured.
    pub captured: Vec<Bound<'py, PyAny>>,
    /// The value's own buffers.
    pub buffers: Vec<Bound<'py, PyAny>>,
}

fn malformed(_: DecodeError) -> PyErr {
    PyValueError::new_err("malformed payload")
}

/// Text, bytes and encodings up to this size are copied out of their segment, which takes a third to a half of the time
/// of mapping it and copying from there. The copies of larger text would take new memory each time.
const MAX_READ_BYTES: u64 = 320 * 1024;

/// Which of a payload's buffers their readers only copy.
struct OnlyRead {
    /// The value's own.
    own: bool,
    /// The encoding of the value, which is the last buffer.
    value: bool,
    n_captured: usize,
}

impl OnlyRead {
    fn of(head: &ValueHead, value: &[u8]) -> Self {
        // An encoding that is a buffer is not there yet, and what was packed is not text.
        let is_whole = !head.is_out_of_band && head.packed.is_empty();
        let has_texts = || match value.split_first() {
            Some((&layout::PLAIN, rest)) => !compact::has_arrays(rest),
            _ => false,
        };
        Self {
            own: is_whole && has_texts(),
            value: head.is_out_of_band,
            n_captured: head.n_captured,
        }
    }

    fn includes(&self, index: usize, n_buffers: usize) -> bool {
        (self.own && index >= self.n_captured) || (self.value && index + 1 == n_buffers)
    }
}

/// Evaluates `$body` with the segment of a range; `None` if there is no such segment.
macro_rules! in_segment {
    ($self:expr, $range:expr, $segment:ident => $body:expr) => {
        if $self.owns($range.segment) {
            let exported = lock(&$self.exported).segment($range.segment);
            if let Some(exported) = exported {
                let $segment = exported.segment();
                Some($body)
            } else {
                let pool = lock(&$self.pool);
                pool.segment($range.segment).map(|$segment| $body)
            }
        } else {
            let announced = lock(&$self.borrowed).by_id.get(&$range.segment).cloned();
            announced.map(|$segment| $body)
        }
    };
}

fn unknown_segment() -> PyErr {
    PyValueError::new_err("the payload names an unknown segment")
}

impl DataPlane {
    /// Splits a payload into a value and its buffers, mapping those in segments.
    pub fn decode_compound<'py, 'a>(
        &self,
        py: Python<'py>,
        payload: &'a Payload,
    ) -> PyResult<Decoded<'py, 'a>> {
        let compound = Compound::decode(&payload.bytes).map_err(malformed)?;
        let (head, value) = ValueHead::decode(compound.value).map_err(malformed)?;
        let only_read = OnlyRead::of(&head, value);
        let mut buffers = self.buffers(py, &compound, payload, &only_read)?;
        let truncated = || malformed(DecodeError::Truncated);
        let value = if head.is_out_of_band {
            Value::Apart(buffers.pop().ok_or_else(truncated)?)
        } else {
            Value::Inline(value)
        };
        if !head.packed.is_empty() {
            let pack = buffers.pop().ok_or_else(truncated)?;
            buffers = unpack(&pack, &head.packed, buffers)?;
        }
        if head.n_captured > buffers.len() {
            return Err(truncated());
        }
        let own = buffers.split_off(head.n_captured);
        Ok(Decoded {
            value,
            captured: buffers,
            buffers: own,
        })
    }

    fn buffers<'py>(
        &self,
        py: Python<'py>,
        compound: &Compound<'_>,
        payload: &Payload,
        only_read: &OnlyRead,
    ) -> PyResult<Vec<Bound<'py, PyAny>>> {
        let n_buffers = compound.buffers.len();
        let mut buffers = Vec::with_capacity(n_buffers);
        let mut segments = payload.segments.iter();
        let mut inline = compound.inline;
        for (index, (byte, len)) in compound.buffers.iter().enumerate() {
            let (is_inline, delivery) = Delivery::of(*byte).map_err(malformed)?;
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
                let range = segments
                    .next()
                    .ok_or_else(|| malformed(DecodeError::Truncated))?;
                if range.len_bytes <= MAX_READ_BYTES && only_read.includes(index, n_buffers) {
                    buffers.push(self.read(py, *range)?);
                    continue;
                }
                let lease = payload.lease.clone();
                let lease = lease.ok_or_else(|| malformed(DecodeError::Truncated))?;
                buffers.push(self.received_bytes(py, *range, delivery, lease)?);
            }
        }
        Ok(buffers)
    }

    /// A copy of a range of a segment.
    fn read<'py>(&self, py: Python<'py>, range: SegmentRef) -> PyResult<Bound<'py, PyAny>> {
        let bytes = PyBytes::new_with(py, range.len_bytes as usize, |bytes| {
            let read = in_segment!(self, range, segment => segment.read(range.offset_bytes, bytes));
            read.ok_or_else(unknown_segment)?.map_err(shm_error)
        })?;
        Ok(bytes.into_any())
    }

    /// An object that exposes a range of a segment.
    fn received_bytes<'py>(
        &self,
        py: Python<'py>,
        range: SegmentRef,
        delivery: Delivery,
        lease: LeaseGuard,
    ) -> PyResult<Bound<'py, PyAny>> {
        let (offset_bytes, len_bytes) = (range.offset_bytes, range.len_bytes);
        let mapped = in_segment!(self, range, segment => {
            let mapping = match delivery {
                Delivery::Private => segment.map_private(offset_bytes, len_bytes),
                Delivery::Readonly => segment.map_readonly(offset_bytes, len_bytes),
                Delivery::Shared => segment.map_shared(offset_bytes, len_bytes),
            };
            mapping.map(|mapping| (mapping, segment.len()))
        });
        let (mapping, segment_bytes) = mapped.ok_or_else(unknown_segment)?.map_err(shm_error)?;
        let received = self.received.enter(mapping, range, segment_bytes, lease);
        let buffer = Buffer::new(received, Arc::clone(&self.received));
        Ok(Bound::new(py, buffer)?.into_any())
    }
}

/// The buffers of a pack, put back among the separate ones.
fn unpack<'py>(
    pack: &Bound<'py, PyAny>,
    packed: &[(u32, u64)],
    others: Vec<Bound<'py, PyAny>>,
) -> PyResult<Vec<Bound<'py, PyAny>>> {
    let py = pack.py();
    let view = PyMemoryView::from(pack)?;
    let lengths = packed.iter().map(|(_, len)| *len);
    let (offsets, end) = pack_offsets(lengths).map_err(malformed)?;
    if end > view.len()? as u64 {
        return Err(malformed(DecodeError::Truncated));
    }
    let mut others = others.into_iter();
    let mut all = Vec::with_capacity(packed.len() + others.len());
    for ((index, len), start) in packed.iter().zip(offsets) {
        while all.len() < *index as usize {
            let other = others.next();
            all.push(other.ok_or_else(|| malformed(DecodeError::Truncated))?);
        }
        let range = PySlice::new(py, start as isize, (start + len) as isize, 1);
        all.push(view.get_item(range)?);
    }
    all.extend(others);
    Ok(all)
}
