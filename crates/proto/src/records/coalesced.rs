//! The results of all parts of one request in one record.

use bytes::BufMut;

use crate::ids::TaskSeq;
use crate::limits::MAX_COALESCED_PARTS;
use crate::records::spans::{Span, Spans};
use crate::records::task::{Payload, ResultRecord, Status, check};
use crate::wire::{DecodeError, Reader};

/// How consecutive parts ended: the same way, with the same payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// The first part after them.
    pub end: u32,
    /// How they ended.
    pub status: Status,
    /// The payload of each of them.
    pub payload: Payload,
}

/// Controller to client: every part of a coalescing request is resolved. Parts that ended alike, with equal inline
/// payloads, share one outcome, so an empty call costs the same whatever the number of engines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CoalescedRecord {
    /// The client's number of the first part.
    pub seq: TaskSeq,
    /// In target order; the last `end` is the number of parts.
    pub outcomes: Vec<Outcome>,
    spans: Spans,
}

impl CoalescedRecord {
    /// Packs results of consecutive parts.
    ///
    /// # Panics
    /// If there is no result.
    pub fn pack(results: Vec<ResultRecord>) -> Self {
        let seq = results.first().expect("invariant: a request has parts").seq;
        let mut outcomes: Vec<Outcome> = Vec::new();
        let mut spans: Vec<Span> = Vec::with_capacity(results.len());
        for (end, result) in (1..).zip(results) {
            spans.push((
                result.engine,
                result.started_ns,
                result.completed_ns,
                result.cpu_ns,
            ));
            let (status, payload) = (result.status, result.payload);
            let shareable = |p: &Payload| p.segments.is_empty();
            match outcomes.last_mut() {
                Some(last)
                    if last.status == status
                        && shareable(&last.payload)
                        && shareable(&payload)
                        && last.payload.bytes == payload.bytes =>
                {
                    last.end = end;
                }
                _ => outcomes.push(Outcome {
                    end,
                    status,
                    payload,
                }),
            }
        }
        Self {
            seq,
            outcomes,
            spans: Spans::pack(&spans),
        }
    }

    /// The number of parts that it stands for.
    pub fn len(&self) -> usize {
        self.spans.len()
    }

    /// Whether it stands for no part, which no encoded record does.
    pub fn is_empty(&self) -> bool {
        self.spans.is_empty()
    }

    /// How a part ended.
    pub fn outcome(&self, part: usize) -> Option<&Outcome> {
        let found = self.outcomes.partition_point(|o| o.end as usize <= part);
        self.outcomes.get(found)
    }

    /// Takes a part's payload, unless other parts share it.
    pub fn take_own_payload(&mut self, part: usize) -> Option<Payload> {
        let found = self.outcomes.partition_point(|o| o.end as usize <= part);
        let first = found
            .checked_sub(1)
            .map_or(0, |before| self.outcomes[before].end);
        let outcome = self.outcomes.get_mut(found)?;
        (outcome.end - first == 1).then(|| std::mem::take(&mut outcome.payload))
    }

    /// Where and when a part ran last.
    pub fn span(&self, part: usize) -> Option<Span> {
        self.spans.get(part)
    }

    /// The result of each part, in target order.
    pub fn results(&self) -> impl Iterator<Item = ResultRecord> {
        (0..self.len()).filter_map(|part| {
            let (engine, started_ns, completed_ns, cpu_ns) = self.span(part)?;
            let outcome = self.outcome(part)?;
            Some(ResultRecord {
                seq: TaskSeq(self.seq.0 + part as u64),
                status: outcome.status,
                engine,
                started_ns,
                completed_ns,
                cpu_ns,
                payload: outcome.payload.clone(),
            })
        })
    }

    /// Appends the record.
    pub fn encode(&self, out: &mut impl BufMut) {
        out.put_u64_le(self.seq.0);
        out.put_u32_le(self.len() as u32);
        out.put_u32_le(self.outcomes.len() as u32);
        for outcome in &self.outcomes {
            out.put_u32_le(outcome.end);
            out.put_u8(outcome.status as u8);
            outcome.payload.encode(out);
        }
        self.spans.encode(out);
    }

    /// Reads one record.
    ///
    /// # Errors
    /// [`DecodeError`] if the bytes are not one.
    pub fn decode(r: &mut Reader) -> Result<Self, DecodeError> {
        let seq = TaskSeq(r.u64()?);
        let (n_parts, n_outcomes) = (r.u32()? as usize, r.u32()? as usize);
        check(n_parts, MAX_COALESCED_PARTS)?;
        seq.0
            .checked_add(n_parts as u64)
            .ok_or(DecodeError::Malformed)?;
        if n_outcomes == 0 || n_outcomes > n_parts {
            return Err(DecodeError::Malformed);
        }
        let mut outcomes: Vec<Outcome> = Vec::new();
        for _ in 0..n_outcomes {
            let end = r.u32()?;
            let status = Status::try_from(r.u8()?)?;
            if end <= outcomes.last().map_or(0, |o| o.end) {
                return Err(DecodeError::Malformed);
            }
            outcomes.push(Outcome {
                end,
                status,
                payload: Payload::decode(r)?,
            });
        }
        if outcomes.last().map(|o| o.end as usize) != Some(n_parts) {
            return Err(DecodeError::Malformed);
        }
        Ok(Self {
            seq,
            outcomes,
            spans: Spans::decode(r, n_parts)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::ids::EngineId;

    fn result(part: u64, status: Status, bytes: &'static [u8]) -> ResultRecord {
        ResultRecord {
            seq: TaskSeq(40 + part),
            status,
            engine: EngineId(part as u32 * 2),
            started_ns: part + 1,
            completed_ns: part + 2,
            cpu_ns: 3,
            payload: Payload {
                bytes: Bytes::from_static(bytes),
                ..Payload::default()
            },
        }
    }

    fn packed(results: Vec<ResultRecord>) -> (CoalescedRecord, Vec<u8>) {
        let record = CoalescedRecord::pack(results);
        let mut bytes = Vec::new();
        record.encode(&mut bytes);
        (record, bytes)
    }

    #[test]
    fn equal_outcomes_are_sent_once_and_every_part_is_found_again() {
        let (record, bytes) = packed(vec![
            result(0, Status::Ok, b"a"),
            result(1, Status::Ok, b"a"),
            result(2, Status::Error, b"a"),
            result(3, Status::Ok, b"a"),
        ]);
        let ends: Vec<u32> = record.outcomes.iter().map(|o| o.end).collect();
        assert_eq!(ends, [2, 3, 4]);
        let decoded = CoalescedRecord::decode(&mut Reader::new(bytes.into())).unwrap();
        assert_eq!(decoded, record);
        assert_eq!(decoded.outcome(1).unwrap().status, Status::Ok);
        assert_eq!(decoded.outcome(2).unwrap().status, Status::Error);
        assert_eq!(decoded.outcome(4), None);
        assert_eq!(decoded.span(3), Some((EngineId(6), 4, 5, 3)));
        assert_eq!(decoded.span(4), None);
        assert_eq!(
            decoded.results().nth(2),
            Some(result(2, Status::Error, b"a"))
        );
    }

    #[test]
    fn a_record_of_many_equal_parts_grows_by_their_places_alone() {
        let of = |n: u64| {
            packed((0..n).map(|part| result(part, Status::Ok, b"")).collect())
                .1
                .len()
        };
        // Engines two apart, starts one apart, equal durations: a byte each for the first two.
        assert_eq!(of(100) - of(1), 2 * 100);
    }

    #[test]
    fn what_is_no_record_is_refused() {
        let (_, bytes) = packed(vec![
            result(0, Status::Ok, b"x"),
            result(1, Status::Lost, b""),
        ]);
        for end in 0..bytes.len() {
            let cut = Bytes::copy_from_slice(&bytes[..end]);
            assert!(
                CoalescedRecord::decode(&mut Reader::new(cut)).is_err(),
                "{end}"
            );
        }
        let patched = |at: usize, value: u32| {
            let mut bytes = bytes.clone();
            bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
            CoalescedRecord::decode(&mut Reader::new(bytes.into()))
        };
        assert!(matches!(
            patched(8, u32::MAX),
            Err(DecodeError::TooLong { .. })
        ));
        let mut past_the_end = bytes.clone();
        past_the_end[..8].fill(0xff);
        let past_the_end = CoalescedRecord::decode(&mut Reader::new(past_the_end.into()));
        assert_eq!(past_the_end, Err(DecodeError::Malformed));
        assert_eq!(patched(12, 0), Err(DecodeError::Malformed));
        assert_eq!(patched(12, 3), Err(DecodeError::Malformed));
        assert_eq!(
            patched(16, 2),
            Err(DecodeError::Malformed),
            "outcomes that do not ascend"
        );
    }
}
