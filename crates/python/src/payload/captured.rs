//! What a function captured, as values of its calls.

use broadleaf_proto::layout::Delivery;
use broadleaf_shm::ShmError;
use pyo3::prelude::*;

use super::encode::{Encoded, Table, Way, with_raw};
use super::{DataPlane, lock, shm_error};

/// A function's captured values, put into segments once for all calls of one submission; released when dropped.
pub struct Captured<'a> {
    data: &'a DataPlane,
    table: Table,
    /// Its references belong to the submission itself.
    encoded: Encoded,
}

impl Captured<'_> {
    /// Segments that must be announced before a call names them.
    pub fn encoded(&mut self) -> &mut Encoded {
        &mut self.encoded
    }

    /// Begins the table of a call with its buffers; returns their number.
    pub(super) fn begin(&self, table: &mut Table) -> usize {
        table.n = self.table.n;
        table.entries.extend_from_slice(&self.table.entries);
        table.inline.extend_from_slice(&self.table.inline);
        self.table.n
    }

    /// One more reference to a function's captured values, for one more call.
    pub(super) fn name_again(&self, out: &mut Encoded) -> PyResult<()> {
        let (data, captured) = (self.data, &self.encoded);
        for range in &captured.segments {
            let counted = !data.owns(range.segment)
                || lock(&data.pool).add_reference(range.segment, 1).is_ok()
                || lock(&data.exported).add_reference(range.segment);
            if !counted {
                return Err(shm_error(ShmError::NotReferenced(range.segment)));
            }
            out.segments.push(*range);
        }
        out.counted_bytes += captured.segments.iter().map(|s| s.len_bytes).sum::<u64>();
        out.held.extend(captured.held.iter().cloned());
        out.uploads.extend(captured.uploads.iter().cloned());
        Ok(())
    }
}

impl Drop for Captured<'_> {
    fn drop(&mut self) {
        self.data.give_back(&mut self.encoded);
    }
}

impl DataPlane {
    /// Puts a function's buffers into segments. With `shared` even small ones go there, so that many calls can name
    /// them.
    pub fn capture<'a>(
        &'a self,
        buffers: &[Bound<'_, PyAny>],
        shared: bool,
    ) -> PyResult<Captured<'a>> {
        let mut captured = Captured {
            data: self,
            table: Table::default(),
            encoded: Encoded::default(),
        };
        let way = Way {
            delivery: Delivery::Private,
            again: true,
        };
        let limit_bytes = if shared && self.on_this_host() {
            0
        } else {
            self.inline_limit_bytes
        };
        for buffer in buffers {
            with_raw(buffer, |data| {
                let inline_bytes = captured.table.inline.len();
                let range = if self.uploads(data.len(), inline_bytes) {
                    Some(self.upload_buffer(buffer, data.len(), &mut captured.encoded))
                } else {
                    self.range_for(data, way, limit_bytes, &mut captured.encoded)?
                };
                captured.table.push(data, range, way.delivery);
                if let Some(range) = range {
                    captured.encoded.segments.push(range);
                }
                PyResult::Ok(())
            })?;
        }
        let encoded = &mut captured.encoded;
        let own_bytes = encoded.own_weight_bytes();
        if own_bytes > 0 {
            encoded.counted.push(self.counted(own_bytes));
            encoded.counted_bytes += own_bytes;
        }
        Ok(captured)
    }
}
