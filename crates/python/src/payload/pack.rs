//! Many buffers of one payload, packed into one.

use broadleaf_proto::layout::{Delivery, ValueHead, pack_offsets};
use broadleaf_proto::limits::{FAR_INLINE_TOTAL_BYTES, MAX_LARGE_BUFFERS};
use broadleaf_proto::task::SegmentRef;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use super::DataPlane;
use super::encode::{Encoded, with_raw};
use super::upload::LargeBuffers;

/// If a payload has too many large buffers, those up to this size are packed; if that is not enough, all are.
const PACKED_BUFFER_BYTES: usize = 1024 * 1024;

impl DataPlane {
    /// Which buffers of these lengths are packed into one: if there are more than a payload can name, or so many small
    /// ones that together they are better not sent inline.
    pub(super) fn choose_packed(&self, lengths: &[usize], delivery: Delivery) -> Vec<usize> {
        if lengths.len() < 2 || delivery == Delivery::Shared {
            return Vec::new();
        }
        let count_above = |limit: usize| lengths.iter().filter(|len| **len > limit).count();
        let is_small = |len: &&usize| **len <= self.inline_limit_bytes;
        let small_bytes: usize = lengths.iter().filter(is_small).sum();
        let limit_bytes = if count_above(self.inline_limit_bytes) > MAX_LARGE_BUFFERS {
            if count_above(PACKED_BUFFER_BYTES) > MAX_LARGE_BUFFERS {
                usize::MAX
            } else {
                PACKED_BUFFER_BYTES
            }
        } else if self.packs_small(small_bytes) {
            self.inline_limit_bytes
        } else {
            return Vec::new();
        };
        let lengths = lengths.iter().enumerate();
        let packed = lengths.filter(|(_, len)| **len <= limit_bytes && **len > 0);
        packed.map(|(index, _)| index).collect()
    }

    fn packs_small(&self, small_bytes: usize) -> bool {
        match self.large {
            LargeBuffers::Segment => small_bytes > self.inline_limit_bytes,
            LargeBuffers::Upload => small_bytes > FAR_INLINE_TOTAL_BYTES,
            LargeBuffers::Inline => false,
        }
    }

    /// Copies these buffers into one segment or upload; `None` if there is no descriptor or no room for a segment: then
    /// they stay separate.
    pub(super) fn pack(
        &self,
        buffers: &[Bound<'_, PyAny>],
        in_pack: &[usize],
        head: &mut ValueHead,
        out: &mut Encoded,
    ) -> PyResult<Option<SegmentRef>> {
        let too_long = |_| PyValueError::new_err("the buffers are too long to send");
        for index in in_pack {
            let len_bytes = with_raw(&buffers[*index], |data| Ok(data.len()))?;
            head.packed.push((*index as u32, len_bytes as u64));
        }
        let lengths = head.packed.iter().map(|(_, len)| *len);
        let (offsets, len_bytes) = pack_offsets(lengths).map_err(too_long)?;
        let fill = |pack: &mut [u8]| {
            for (index, start) in in_pack.iter().zip(&offsets) {
                with_raw(&buffers[*index], |data| {
                    let start = *start as usize;
                    let range = pack.get_mut(start..start + data.len());
                    let range = range.ok_or_else(|| {
                        PyValueError::new_err("a buffer changed its length while it was sent")
                    })?;
                    range.copy_from_slice(data);
                    PyResult::Ok(())
                })?;
            }
            Ok(())
        };
        let range = if self.large == LargeBuffers::Upload {
            let mut pack = vec![0; len_bytes as usize];
            fill(&mut pack)?;
            Some(self.upload_bytes(pack, out))
        } else {
            self.fill_segment(len_bytes, out, fill)?
        };
        for (index, _) in &mut head.packed {
            *index += head.n_captured as u32;
        }
        if range.is_some() {
            self.count_copy(len_bytes as usize);
        }
        Ok(range)
    }
}
