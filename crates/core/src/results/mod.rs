//! Results: how tasks ended, and what is stored of it.

pub(crate) mod failures;
pub(crate) mod store;

use broadleaf_proto::control::{self, RefusalReason};
use broadleaf_proto::ids::{EngineId, TaskSeq};
use broadleaf_proto::task::{Payload, ResultRecord, Status};
use bytes::Bytes;
use smallvec::SmallVec;

use crate::tasks::dependencies::NOWHERE;

/// A task's end.
pub(crate) struct Outcome {
    pub status: Status,
    pub engine: EngineId,
    pub started_ns: u64,
    pub completed_ns: u64,
    pub cpu_ns: u64,
    pub payload: Payload,
    /// The payload inline, for the result store.
    pub copy: Option<Box<Bytes>>,
}

impl Outcome {
    /// An end without a value.
    pub fn bare(status: Status, engine: EngineId) -> Self {
        Self {
            status,
            engine,
            started_ns: 0,
            completed_ns: 0,
            cpu_ns: 0,
            payload: Payload::default(),
            copy: None,
        }
    }

    /// The end of a task that did not run.
    pub fn refused(reason: &RefusalReason) -> Self {
        let payload = Payload {
            bytes: control::encode(reason).into(),
            segments: SmallVec::new(),
            lease: None,
        };
        Self {
            payload,
            ..Self::bare(Status::Refused, NOWHERE)
        }
    }

    /// What a client is told, under the number by which it knows the task.
    pub fn into_record(self, seq: TaskSeq) -> ResultRecord {
        ResultRecord {
            seq,
            status: self.status,
            engine: self.engine,
            started_ns: self.started_ns,
            completed_ns: self.completed_ns,
            cpu_ns: self.cpu_ns,
            payload: self.payload,
        }
    }

    /// As [`Self::into_record`], for one of several that are told.
    pub fn record(&self, seq: TaskSeq) -> ResultRecord {
        ResultRecord {
            seq,
            status: self.status,
            engine: self.engine,
            started_ns: self.started_ns,
            completed_ns: self.completed_ns,
            cpu_ns: self.cpu_ns,
            payload: self.payload.clone(),
        }
    }
}
