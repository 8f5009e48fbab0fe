//! Tasks that were refused together, in one record.

use bytes::BufMut;

use crate::ids::{EngineId, TaskSeq};
use crate::limits::{MAX_COALESCED_PARTS, MAX_REFUSAL_BYTES};
use crate::messages::control::{self, RefusalReason};
use crate::records::task::{Payload, ResultRecord, Status, check};
use crate::wire::{DecodeError, Reader};

/// Controller to client: tasks with consecutive numbers were never accepted. A record that stands
/// for many tasks is refused by one that is no longer than it was.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefusedRun {
    /// The number of the first task.
    pub seq: TaskSeq,
    /// How many.
    pub n_tasks: u32,
    /// Why. The engines of [`RefusalReason::NoSuchEngine`] count up with the tasks.
    pub reason: RefusalReason,
}

impl RefusedRun {
    /// Why one of them was refused.
    pub fn reason(&self, index: u32) -> RefusalReason {
        match &self.reason {
            RefusalReason::NoSuchEngine(first) => {
                RefusalReason::NoSuchEngine(EngineId(first.0.wrapping_add(index)))
            }
            reason => reason.clone(),
        }
    }

    /// The result of each task.
    pub fn results(&self) -> impl Iterator<Item = ResultRecord> {
        (0..self.n_tasks).map(|index| ResultRecord {
            seq: TaskSeq(self.seq.0 + u64::from(index)),
            status: Status::Refused,
            engine: EngineId(u32::MAX),
            started_ns: 0,
            completed_ns: 0,
            cpu_ns: 0,
            payload: Payload {
                bytes: control::encode(&self.reason(index)).into(),
                ..Payload::default()
            },
        })
    }

    /// Appends the record.
    pub fn encode(&self, out: &mut impl BufMut) {
        let reason = control::encode(&self.reason);
        out.put_u64_le(self.seq.0);
        out.put_u32_le(self.n_tasks);
        out.put_u32_le(reason.len() as u32);
        out.put_slice(&reason);
    }

    /// Reads one record.
    ///
    /// # Errors
    /// [`DecodeError`] if the bytes are not one.
    pub fn decode(r: &mut Reader) -> Result<Self, DecodeError> {
        let (seq, n_tasks) = (TaskSeq(r.u64()?), r.u32()?);
        check(n_tasks as usize, MAX_COALESCED_PARTS)?;
        seq.0
            .checked_add(n_tasks.into())
            .ok_or(DecodeError::Malformed)?;
        let len = r.u32()? as usize;
        check(len, MAX_REFUSAL_BYTES)?;
        let reason = control::decode(&r.bytes(len)?)?;
        Ok(Self {
            seq,
            n_tasks,
            reason,
        })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // a test fails by panicking
mod tests {
    use super::*;

    #[test]
    fn a_run_is_read_as_it_was_written_and_names_each_engine() {
        let run = RefusedRun {
            seq: TaskSeq(40),
            n_tasks: 3,
            reason: RefusalReason::NoSuchEngine(EngineId(7)),
        };
        let mut bytes = Vec::new();
        run.encode(&mut bytes);
        for end in 0..bytes.len() {
            let cut = bytes[..end].to_vec();
            assert!(RefusedRun::decode(&mut Reader::new(cut.into())).is_err());
        }
        let mut reader = Reader::new(bytes.into());
        assert_eq!(RefusedRun::decode(&mut reader).unwrap(), run);
        let last = run.results().last().unwrap();
        assert_eq!(last.seq, TaskSeq(42));
        let reason: RefusalReason = control::decode(&last.payload.bytes).unwrap();
        assert_eq!(reason, RefusalReason::NoSuchEngine(EngineId(9)));
    }

    #[test]
    fn numbers_end_at_the_last_there_is() {
        let run = RefusedRun {
            seq: TaskSeq(u64::MAX - 2),
            n_tasks: 3,
            reason: RefusalReason::NoSuchEngine(EngineId(7)),
        };
        let mut bytes = Vec::new();
        run.encode(&mut bytes);
        assert_eq!(
            RefusedRun::decode(&mut Reader::new(bytes.into())),
            Err(DecodeError::Malformed)
        );
    }

    #[test]
    fn claimed_lengths_are_limited() {
        let mut bytes = vec![0; 8];
        bytes.extend([0xff; 8]);
        assert!(matches!(
            RefusedRun::decode(&mut Reader::new(bytes.into())),
            Err(DecodeError::TooLong { .. })
        ));
    }
}
