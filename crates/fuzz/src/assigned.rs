//! What a node sends to an engine, taken apart as the engine does, with segments to map. Whatever the numbers say, no
//! view leaves its segment and nothing is nested deeper than an engine has room for.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use broadleaf_proto::control::{self, SegmentAnnounce, SegmentRelease};
use broadleaf_proto::engine::EngineCommand;
use broadleaf_proto::layout::{Compound, Delivery, ValueHead, pack_offsets};
use broadleaf_proto::limits::{MAX_FRAME_FDS, MAX_NESTING, MAX_PAYLOAD_SEGMENTS};
use broadleaf_proto::task::{AssignRecord, FunctionRecord};
use broadleaf_proto::wire::Reader;
use broadleaf_proto::{DecodeError, FrameKind, Payload, SegmentId, SegmentRef};
use broadleaf_shm::{Announced, Segment, ShmError};
use bytes::Bytes;

/// Size of the segment that every announcement comes with.
const SEGMENT_BYTES: u64 = 3 * 4096;
/// Maximum number of payloads of one input that are mapped.
const MAX_MAPPED: usize = 32;

static SEGMENT: LazyLock<Segment> = LazyLock::new(|| {
    let made = Segment::create(SEGMENT_BYTES, &[]);
    made.expect("memory for a small segment").0
});

/// Frames one after the other: kind, length u16, body.
pub fn run(mut data: &[u8]) {
    let mut engine = Engine::default();
    while let [kind, low, high, rest @ ..] = data {
        let len = usize::from(u16::from_le_bytes([*low, *high])).min(rest.len());
        let (body, rest) = rest.split_at(len);
        data = rest;
        let Ok(kind) = FrameKind::try_from(*kind) else {
            return;
        };
        if engine.frame(kind, body).is_err() {
            return; // The engine ends, and says why.
        }
    }
}

#[derive(Default)]
struct Engine {
    borrowed: BTreeMap<SegmentId, Announced>,
    n_mapped: usize,
}

impl Engine {
    fn frame(&mut self, kind: FrameKind, body: &[u8]) -> Result<(), DecodeError> {
        let mut reader = Reader::new(Bytes::copy_from_slice(body));
        match kind {
            FrameKind::Assign => {
                while !reader.is_empty() {
                    let task = AssignRecord::decode(&mut reader)?;
                    assert!(task.depth <= MAX_NESTING);
                    assert!(task.payload.segments.len() <= MAX_PAYLOAD_SEGMENTS);
                    self.n_mapped += 1;
                    if self.n_mapped <= MAX_MAPPED {
                        // What is malformed fails its own task.
                        let _ = self.payload(&task.payload);
                    }
                }
            }
            FrameKind::Function => {
                while !reader.is_empty() {
                    FunctionRecord::decode(&mut reader)?;
                }
            }
            FrameKind::SegmentAnnounce => {
                let announce: SegmentAnnounce = control::decode(body)?;
                let segments = announce.segments.into_iter();
                for (id, len_bytes) in segments.take(MAX_FRAME_FDS.into()) {
                    let fd = SEGMENT.fd().try_clone_to_owned().expect("a descriptor");
                    if let Ok(segment) = Announced::new(fd, len_bytes) {
                        assert!(segment.len() <= SEGMENT_BYTES);
                        self.borrowed.insert(id, segment);
                    }
                }
            }
            FrameKind::SegmentRelease => {
                for id in control::decode::<SegmentRelease>(body)?.retired {
                    self.borrowed.remove(&id);
                }
            }
            FrameKind::EngineCommand => {
                control::decode::<EngineCommand>(body)?;
            }
            kind => return Err(DecodeError::UnknownKind(kind as u8)),
        }
        Ok(())
    }

    fn payload(&self, payload: &Payload) -> Result<(), DecodeError> {
        let compound = Compound::decode(&payload.bytes)?;
        let mut lengths = Vec::new();
        let mut ranges = payload.segments.iter();
        let mut inline = compound.inline;
        for (byte, len) in &compound.buffers {
            let (is_inline, delivery) = Delivery::of(*byte)?;
            if is_inline {
                let bytes = inline.split_off(..*len as usize);
                lengths.push(bytes.expect("decoding checked the lengths").len());
            } else {
                let range = ranges.next().ok_or(DecodeError::Truncated)?;
                lengths.push(self.view(range, delivery).ok_or(DecodeError::Malformed)?);
            }
        }
        let (head, _) = ValueHead::decode(compound.value)?;
        if head.is_out_of_band {
            lengths.pop().ok_or(DecodeError::Truncated)?;
        }
        if !head.packed.is_empty() {
            let pack = lengths.pop().ok_or(DecodeError::Truncated)?;
            let (offsets, end) = pack_offsets(head.packed.iter().map(|(_, len)| *len))?;
            if end > pack as u64 {
                return Err(DecodeError::Truncated);
            }
            for ((_, len), start) in head.packed.iter().zip(offsets) {
                assert!(start + len <= pack as u64);
            }
        }
        Ok(())
    }

    /// The length of a view whose bytes can be read.
    fn view(&self, range: &SegmentRef, delivery: Delivery) -> Option<usize> {
        let segment = self.borrowed.get(&range.segment)?;
        let (offset_bytes, len_bytes) = (range.offset_bytes, range.len_bytes);
        let view = match delivery {
            Delivery::Private => segment.map_private(offset_bytes, len_bytes),
            Delivery::Readonly => segment.map_readonly(offset_bytes, len_bytes),
            Delivery::Shared => segment.map_shared(offset_bytes, len_bytes),
        };
        let view = match view {
            Ok(view) => view,
            Err(ShmError::BadRange { .. }) => return None,
            // A sealed segment cannot be mapped for shared writing.
            Err(_) => {
                assert_eq!(delivery, Delivery::Shared);
                return None;
            }
        };
        assert_eq!(view.len() as u64, len_bytes);
        assert!(offset_bytes + len_bytes <= segment.len());
        assert_eq!((view[0], view[view.len() - 1]), (0, 0));
        Some(view.len())
    }
}
