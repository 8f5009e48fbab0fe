//! What a client on another host sends inline and is large goes into a segment once, for all engines.

use std::os::fd::AsFd;

use broadleaf_proto::layout::{INLINE, Pickled};
use broadleaf_proto::limits::INLINE_BUFFER_BYTES;
use broadleaf_proto::{Payload, SegmentRef};

use crate::objects::Objects;
use crate::segments::Segments;

/// Moves a payload's large inline buffers into segments of the node's own. A payload that is none, or
/// for which there is no memory, stays as it is.
pub fn move_into_segments(payload: &mut Payload, objects: &mut Objects, segments: &mut Segments) {
    if payload.bytes.len() <= INLINE_BUFFER_BYTES || !payload.segments.is_empty() {
        return;
    }
    let Ok(pickled) = Pickled::decode(&payload.bytes) else {
        return;
    };
    let is_large = |(place, len): &(u8, u64)| *place == INLINE && *len > INLINE_BUFFER_BYTES as u64;
    if !pickled.buffers.iter().any(is_large) {
        return;
    }
    let mut rest = pickled.inline;
    let mut places: Vec<Option<SegmentRef>> = Vec::with_capacity(pickled.buffers.len());
    let mut inline: Vec<&[u8]> = Vec::new();
    for buffer in &pickled.buffers {
        let Some(bytes) = rest.split_off(..buffer.1 as usize) else {
            return;
        };
        let mut copied = None;
        if is_large(buffer)
            && let Some((place, segment)) = objects.copy_in(bytes)
        {
            if let Ok(fd) = segment.fd().as_fd().try_clone_to_owned() {
                segments.on_own(place.segment, segment.len(), fd);
                copied = Some(place);
            } else {
                objects.on_free(place.segment);
            }
        }
        if copied.is_none() {
            inline.push(bytes);
        }
        places.push(copied);
    }
    payload.bytes = pickled.with_places(&places, &inline).into();
    payload.segments = places.into_iter().flatten().collect();
}

impl crate::node::Node {
    /// See [`move_into_segments`].
    pub(crate) fn take_upload(&mut self, token: usize, payload: &mut Payload) {
        if !self.peers[token].link.is_local() {
            move_into_segments(payload, &mut self.objects, &mut self.segments);
        }
    }
}
