//! Moves large inline arguments of a client on another host into a segment once, for all engines.

use std::os::fd::AsFd;

use broadleaf_proto::layout::{Compound, Delivery};
use broadleaf_proto::limits::INLINE_BUFFER_BYTES;
use broadleaf_proto::{Payload, SegmentRef};

use crate::objects::Objects;
use crate::segments::{NODE, Segments};

/// Moves a payload's large inline buffers into segments of the node's own pool. A malformed
/// payload, or one for which there is no memory, stays as it is.
pub fn move_into_segments(payload: &mut Payload, objects: &mut Objects, segments: &mut Segments) {
    let Ok(compound) = Compound::decode(&payload.bytes) else {
        return;
    };
    let moves = |(place, len): &(u8, u64)| match Delivery::of(*place) {
        Ok((true, Delivery::Shared)) => *len > 0,
        Ok((true, _)) => *len > INLINE_BUFFER_BYTES as u64,
        _ => false,
    };
    if !compound.buffers.iter().any(moves) {
        return;
    }
    let mut rest = compound.inline;
    let mut places: Vec<Option<SegmentRef>> = Vec::with_capacity(compound.buffers.len());
    let mut inline: Vec<&[u8]> = Vec::new();
    for buffer in &compound.buffers {
        let Some(bytes) = rest.split_off(..buffer.1 as usize) else {
            return;
        };
        let mut copied = None;
        if moves(buffer)
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
    payload.bytes = compound.with_places(&places, &inline).into();
    payload.segments = places.into_iter().flatten().collect();
}

impl crate::node::Node {
    /// See [`move_into_segments`]. Returns the owner of the payload's segments.
    pub(crate) fn take_upload(&mut self, token: usize, payload: &mut Payload) -> u32 {
        if self.peers[token].link.is_local() {
            return token as u32;
        }
        // The client has no segments of this host to name.
        payload.segments.clear();
        move_into_segments(payload, &mut self.objects, &mut self.segments);
        NODE
    }
}
