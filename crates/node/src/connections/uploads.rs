//! Arguments of clients on other hosts, which are put into segments of this host once, for all engines: large ones as
//! they arrive ahead of their record, others when their record is read.

use std::os::fd::AsFd;

use broadleaf_net::LinkError;
use broadleaf_proto::layout::{Compound, Delivery};
use broadleaf_proto::limits::INLINE_BUFFER_BYTES;
use broadleaf_proto::{Payload, SegmentId, SegmentRef, UploadChunk};
use broadleaf_shm::{Lease, ShmError};
use bytes::Bytes;

use crate::hosts::objects::Objects;
use crate::node::Node;
use crate::segments::{NODE, Segments};

/// Moves a payload's large inline buffers into segments of the node's own pool. A malformed payload, or one for which
/// there is no memory, stays as it is.
pub fn move_into_segments(payload: &mut Payload, objects: &mut Objects, segments: &mut Segments) {
    let Ok(compound) = Compound::decode(&payload.bytes) else {
        return;
    };
    let moves = |(byte, len): &(u8, u64)| match Delivery::of(*byte) {
        Ok((true, Delivery::Shared)) => *len > 0,
        Ok((true, _)) => *len > INLINE_BUFFER_BYTES as u64,
        _ => false,
    };
    if !compound.buffers.iter().any(moves) {
        return;
    }
    let mut uploaded = payload.segments.iter();
    let mut rest = compound.inline;
    let mut ranges: Vec<Option<SegmentRef>> = Vec::with_capacity(compound.buffers.len());
    let mut inline: Vec<&[u8]> = Vec::new();
    for buffer in &compound.buffers {
        if !matches!(Delivery::of(buffer.0), Ok((true, _))) {
            let Some(range) = uploaded.next() else {
                return;
            };
            ranges.push(Some(*range));
            continue;
        }
        let Some(bytes) = rest.split_off(..buffer.1 as usize) else {
            return;
        };
        let mut copied = None;
        if moves(buffer)
            && let Ok(range) = objects.copy_in(bytes)
            && own(range, objects, segments)
        {
            copied = Some(range);
        } else {
            inline.push(bytes);
        }
        ranges.push(copied);
    }
    payload.bytes = compound.with_ranges(&ranges, &inline).into();
    payload.segments = ranges.into_iter().flatten().collect();
}

/// Lets payloads name a range of the node's own pool; if descriptors are short, gives it back and returns false.
fn own(range: SegmentRef, objects: &mut Objects, segments: &mut Segments) -> bool {
    let fd = objects.segment(range.segment).and_then(|segment| {
        let fd = segment.fd().as_fd().try_clone_to_owned().ok()?;
        Some((segment.len(), fd))
    });
    let Some((len_bytes, fd)) = fd else {
        objects.on_free(range.segment);
        return false;
    };
    segments.on_own(range.segment, len_bytes, fd);
    true
}

fn write(lease: &mut Lease, offset_bytes: u64, bytes: &[u8]) -> Result<(), ShmError> {
    let start = offset_bytes as usize;
    let written = lease.as_mut_slice_to(start + bytes.len())?;
    written[start..].copy_from_slice(bytes);
    Ok(())
}

impl Node {
    /// A part of an upload arrived.
    pub(crate) fn on_upload(&mut self, token: usize, body: Bytes) -> Result<(), LinkError> {
        let chunk = UploadChunk::decode(body)?;
        let uploads = self.far_clients.uploads.entry(token).or_default();
        let objects = &mut self.objects;
        let allocate = |len_bytes| {
            let lease = objects.allocate(len_bytes);
            lease.map_err(|error| error.to_string())
        };
        if let Some((lease, offset_bytes)) = uploads.on_chunk(&chunk, allocate)?
            && let Err(error) = write(lease, offset_bytes, &chunk.bytes)
            && let Some(lease) = uploads.on_failed(chunk.upload, error.to_string())
        {
            objects.cancel(lease);
        }
        Ok(())
    }

    /// Replaces what a record of a client on another host names, or brings, with segments of this host. Returns the
    /// owner of the payload's segments, or why an argument is missing.
    pub(crate) fn take_arguments(
        &mut self,
        token: usize,
        payload: &mut Payload,
    ) -> Result<u32, String> {
        if self.peers[token].link.is_local() {
            return Ok(token as u32);
        }
        let named = std::mem::take(&mut payload.segments);
        let mut missing = None;
        for named in named {
            match self.take_upload(token, &named) {
                Ok(range) => payload.segments.push(range),
                Err(reason) => missing = Some(reason),
            }
        }
        if let Some(reason) = missing {
            for range in std::mem::take(&mut payload.segments) {
                self.objects.on_free(range.segment);
            }
            payload.bytes = Bytes::new();
            return Err(reason);
        }
        move_into_segments(payload, &mut self.objects, &mut self.segments);
        Ok(NODE)
    }

    fn take_upload(&mut self, token: usize, named: &SegmentRef) -> Result<SegmentRef, String> {
        let uploads = self.far_clients.uploads.entry(token).or_default();
        let lease = uploads.take(named).map_err(|missing| {
            if let Some(lease) = missing.memory {
                self.objects.cancel(lease);
            }
            missing.reason
        })?;
        let range = self.objects.publish(lease);
        if own(range, &mut self.objects, &mut self.segments) {
            Ok(range)
        } else {
            Err("the controller has no free file descriptor for its data".to_owned())
        }
    }

    /// A client will not name these uploads.
    pub(crate) fn drop_uploads(&mut self, token: usize, dropped: &[SegmentId]) {
        if let Some(uploads) = self.far_clients.uploads.get_mut(&token) {
            for upload in dropped {
                if let Some(lease) = uploads.on_dropped(*upload) {
                    self.objects.cancel(lease);
                }
            }
        }
    }

    /// A client's connection is closed.
    pub(crate) fn on_uploader_gone(&mut self, token: usize) {
        let uploads = self.far_clients.uploads.remove(&token);
        for lease in uploads.unwrap_or_default().into_memory() {
            self.objects.cancel(lease);
        }
    }
}
