//! What a node sends to a client.

use broadleaf_proto::control::{
    self, ControlReply, DeathCertificate, Event, Refusal, RefusalReason, SegmentAnnounce,
    SegmentRelease, Welcome,
};
use broadleaf_proto::layout::{Compound, ValueHead};
use broadleaf_proto::limits::MAX_COALESCED_PARTS;
use broadleaf_proto::task::{OutputRecord, ResultRecord};
use broadleaf_proto::wire::Reader;
use broadleaf_proto::{CoalescedRecord, DecodeError, FrameKind, RefusedRun, Status};
use bytes::Bytes;

/// One frame: its kind, then its body.
pub fn run(data: &[u8]) {
    if let Some((kind, body)) = data.split_first()
        && let Ok(kind) = FrameKind::try_from(*kind)
    {
        // What does not decode closes the link.
        let _ = frame(kind, body);
    }
}

fn frame(kind: FrameKind, body: &[u8]) -> Result<(), DecodeError> {
    let mut reader = Reader::new(Bytes::copy_from_slice(body));
    match kind {
        FrameKind::Result => {
            while !reader.is_empty() {
                result(&ResultRecord::decode(&mut reader)?);
            }
        }
        FrameKind::Coalesced => {
            while !reader.is_empty() {
                let mut record = CoalescedRecord::decode(&mut reader)?;
                assert!(record.len() <= MAX_COALESCED_PARTS && !record.is_empty());
                let last = record.len() - 1;
                assert!(record.span(last).is_some() && record.outcome(last).is_some());
                assert!(record.span(last + 1).is_none() && record.outcome(last + 1).is_none());
                for record in record.results().take(64) {
                    result(&record);
                }
                drop(record.take_own_payload(last));
            }
        }
        FrameKind::RefusedRun => {
            while !reader.is_empty() {
                let run = RefusedRun::decode(&mut reader)?;
                assert!(run.n_tasks as usize <= MAX_COALESCED_PARTS);
                for record in run.results().take(64) {
                    result(&record);
                }
            }
        }
        FrameKind::Output => {
            while !reader.is_empty() {
                let record = OutputRecord::decode(&mut reader)?;
                assert!((1..=3).contains(&record.stream));
            }
        }
        FrameKind::Welcome => drop(control::decode::<Welcome>(body)?),
        FrameKind::Refused => drop(control::decode::<Refusal>(body)?),
        FrameKind::Reply => drop(control::decode::<(u64, ControlReply)>(body)?),
        FrameKind::Event => drop(control::decode::<Event>(body)?),
        FrameKind::SegmentAnnounce => drop(control::decode::<SegmentAnnounce>(body)?),
        FrameKind::SegmentRelease => drop(control::decode::<SegmentRelease>(body)?),
        kind => return Err(DecodeError::UnknownKind(kind as u8)),
    }
    Ok(())
}

fn result(record: &ResultRecord) {
    let bytes = &record.payload.bytes;
    match record.status {
        Status::Lost => drop(control::decode::<DeathCertificate>(bytes)),
        Status::Refused => drop(control::decode::<RefusalReason>(bytes)),
        _ => {
            if let Ok(compound) = Compound::decode(bytes) {
                let _ = ValueHead::decode(compound.value);
            }
        }
    }
}
