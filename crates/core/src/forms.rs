//! The forms of records and messages in a recording: as they are on the wire, with lengths in place of payload and
//! functions' bodies, and with dashes in place of texts. Names of hosts, worlds and preparations stay, because machines
//! compare them.

#![expect(
    clippy::ref_option,
    clippy::trivially_copy_pass_by_ref,
    reason = "serde calls these functions with a reference to a field"
)]

use broadleaf_proto::control::{
    ControlReply, ControlRequest, DeathCertificate, DefineOptions, Event, ForkServerEvent,
    RefusalReason,
};
use broadleaf_proto::host::EngineReport;
use broadleaf_proto::ids::{
    EngineId, FunctionHash, FunctionId, OptionsId, SegmentId, TaskKey, TaskSeq,
};
use broadleaf_proto::limits::MAX_FRAME_BYTES;
use broadleaf_proto::relay::Holdings;
use broadleaf_proto::task::{
    AssignRecord, DoneRecord, FunctionRecord, OutputRecord, Payload, ResultRecord, SegmentRef,
    Status, SubmitRecord,
};
use broadleaf_proto::{CoalescedRecord, RefusedRun};
use bytes::Bytes;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use smallvec::SmallVec;

// Contents

/// As many zeros as there were bytes.
fn zeros<E: serde::de::Error>(len_bytes: u64) -> Result<Bytes, E> {
    if len_bytes > u64::from(MAX_FRAME_BYTES) {
        return Err(E::custom(format!(
            "{len_bytes} bytes do not fit into a frame"
        )));
    }
    // Memory of zeros is not touched before somebody writes to it.
    Ok(vec![0; len_bytes as usize].into())
}

/// Bytes by their length.
pub(crate) mod len_bytes {
    use super::{Bytes, Deserialize, Deserializer, Serializer, zeros};

    pub fn serialize<S: Serializer>(bytes: &Bytes, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_u64(bytes.len() as u64)
    }
    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Bytes, D::Error> {
        zeros(u64::deserialize(from)?)
    }
}

/// The copy of a value by its length.
pub(crate) mod copy {
    use super::{Bytes, Deserialize, Deserializer, Serialize, Serializer, zeros};

    pub fn serialize<S: Serializer>(copy: &Option<Box<Bytes>>, to: S) -> Result<S::Ok, S::Error> {
        let len_bytes = copy.as_ref().map(|bytes| bytes.len() as u64);
        len_bytes.serialize(to)
    }
    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Box<Bytes>>, D::Error> {
        let len_bytes = Option::<u64>::deserialize(from)?;
        len_bytes.map(|len| zeros(len).map(Box::new)).transpose()
    }
}

/// A payload: the length of its inline bytes, and the ranges of segments.
pub(crate) mod payload {
    use super::{
        Deserialize, Deserializer, Payload, SegmentId, SegmentRef, Serialize, Serializer, zeros,
    };

    #[derive(Serialize, Deserialize)]
    pub(super) struct Form {
        bytes: u64,
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        segments: Vec<(SegmentId, u64, u64)>,
    }

    impl From<&Payload> for Form {
        fn from(payload: &Payload) -> Self {
            let range = |s: &SegmentRef| (s.segment, s.offset_bytes, s.len_bytes);
            Self {
                bytes: payload.bytes.len() as u64,
                segments: payload.segments.iter().map(range).collect(),
            }
        }
    }

    pub fn serialize<S: Serializer>(payload: &Payload, to: S) -> Result<S::Ok, S::Error> {
        Form::from(payload).serialize(to)
    }
    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Payload, D::Error> {
        let form = Form::deserialize(from)?;
        let range = |(segment, offset_bytes, len_bytes)| SegmentRef {
            segment,
            offset_bytes,
            len_bytes,
        };
        Ok(Payload {
            bytes: zeros(form.bytes)?,
            segments: form.segments.into_iter().map(range).collect(),
            lease: None,
        })
    }
}

/// A status by its number on the wire.
mod status {
    use super::{Deserialize, Deserializer, Serializer, Status};
    use serde::de::Error as _;

    pub fn serialize<S: Serializer>(status: &Status, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_u8(*status as u8)
    }
    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Status, D::Error> {
        Status::try_from(u8::deserialize(from)?).map_err(D::Error::custom)
    }
}

/// Numbers of tasks.
mod seqs {
    use super::{Deserialize, Deserializer, Serializer, SmallVec, TaskSeq};

    pub fn serialize<S: Serializer>(
        seqs: &SmallVec<[TaskSeq; 0]>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        to.collect_seq(seqs)
    }
    pub fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<SmallVec<[TaskSeq; 0]>, D::Error> {
        Ok(Vec::deserialize(from)?.into())
    }
}

// Records

#[derive(Serialize, Deserialize)]
#[serde(remote = "SubmitRecord")]
pub(crate) struct SubmitForm {
    seq: TaskSeq,
    function: FunctionId,
    options: OptionsId,
    depth: u16,
    #[serde(with = "seqs", default, skip_serializing_if = "SmallVec::is_empty")]
    after: SmallVec<[TaskSeq; 0]>,
    #[serde(with = "seqs", default, skip_serializing_if = "SmallVec::is_empty")]
    follow: SmallVec<[TaskSeq; 0]>,
    #[serde(with = "payload")]
    payload: Payload,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "AssignRecord")]
pub(crate) struct AssignForm {
    key: TaskKey,
    offer: u32,
    function: FunctionId,
    depth: u16,
    #[serde(with = "payload")]
    payload: Payload,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "DoneRecord")]
pub(crate) struct DoneForm {
    key: TaskKey,
    #[serde(with = "status")]
    status: Status,
    started_ns: u64,
    completed_ns: u64,
    cpu_ns: u64,
    #[serde(with = "payload")]
    payload: Payload,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "OutputRecord")]
pub(crate) struct OutputForm {
    task: u64,
    engine: EngineId,
    stream: u8,
    #[serde(with = "len_bytes")]
    bytes: Bytes,
}

/// The hash tells which functions are equal. The driver replaces it, because it would confirm a guess of the body.
#[derive(Serialize, Deserialize)]
#[serde(remote = "FunctionRecord")]
pub(crate) struct FunctionForm {
    function: FunctionId,
    hash: FunctionHash,
    #[serde(with = "len_bytes")]
    name: Bytes,
    #[serde(with = "len_bytes")]
    body: Bytes,
}

/// Output of a task, or none.
pub(crate) mod output {
    use super::{Deserialize, Deserializer, OutputForm, OutputRecord, Serialize, Serializer};

    #[derive(Serialize, Deserialize)]
    struct Form(#[serde(with = "OutputForm")] OutputRecord);

    pub fn serialize<S: Serializer>(
        record: &Option<OutputRecord>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        record.clone().map(Form).serialize(to)
    }
    pub fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Option<OutputRecord>, D::Error> {
        let form = Option::<Form>::deserialize(from)?;
        Ok(form.map(|Form(record)| record))
    }
}

// Texts

fn blank(text: &str) -> String {
    "-".repeat(text.len())
}

pub(crate) fn text<S: Serializer>(text: &str, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(&blank(text))
}

pub(crate) fn define<S: Serializer>(define: &DefineOptions, to: S) -> Result<S::Ok, S::Error> {
    let mut define = define.clone();
    define.options.label = blank(&define.options.label);
    define.serialize(to)
}

pub(crate) fn request<S: Serializer>(request: &ControlRequest, to: S) -> Result<S::Ok, S::Error> {
    match request {
        ControlRequest::Notice { about, text } => ControlRequest::Notice {
            about: about.clone(),
            text: blank(text),
        }
        .serialize(to),
        ControlRequest::SetLog { level, sink } => ControlRequest::SetLog {
            level: *level,
            sink: blank(sink),
        }
        .serialize(to),
        ControlRequest::Cancel(_)
        | ControlRequest::InterruptTasks(_)
        | ControlRequest::Interrupt(_)
        | ControlRequest::Signal(..)
        | ControlRequest::AddEngines(_)
        | ControlRequest::StopEngines(_)
        | ControlRequest::Drain { .. }
        | ControlRequest::AwaitEngines(_)
        | ControlRequest::RestartEngines(_)
        | ControlRequest::Shutdown
        | ControlRequest::Explain(_)
        | ControlRequest::Status
        | ControlRequest::QueueStatus
        | ControlRequest::Trace
        | ControlRequest::Watch { .. }
        | ControlRequest::Written { .. }
        | ControlRequest::Config
        | ControlRequest::Prepare { .. }
        | ControlRequest::Leave
        | ControlRequest::Records(_)
        | ControlRequest::Subscribe { .. }
        | ControlRequest::Resubmit { .. }
        | ControlRequest::Forget(_)
        | ControlRequest::Recording { .. }
        | ControlRequest::Recorded { .. }
        | ControlRequest::Noticed(_) => request.serialize(to),
    }
}

pub(crate) fn holdings<S: Serializer>(holdings: &Holdings, to: S) -> Result<S::Ok, S::Error> {
    let mut holdings = holdings.clone();
    for end in &mut holdings.ends {
        if let ForkServerEvent::Exited { last_output, .. } = end {
            *last_output = blank(last_output);
        }
    }
    holdings.serialize(to)
}

pub(crate) fn ends<S: Serializer>(ends: &[ForkServerEvent], to: S) -> Result<S::Ok, S::Error> {
    // What a process has written is no part of a recording.
    to.collect_seq(ends.iter().map(ForkServerEvent::engine))
}

pub(crate) fn report<S: Serializer>(report: &EngineReport, to: S) -> Result<S::Ok, S::Error> {
    let mut report = report.clone();
    match &mut report {
        EngineReport::Undeliverable { reason, .. } => *reason = blank(reason),
        EngineReport::ForkServer(event) => match event {
            ForkServerEvent::NotStarted { reason, .. } => *reason = blank(reason),
            ForkServerEvent::Exited { last_output, .. } => *last_output = blank(last_output),
            // Observers read it again and again: its length would be most of the recording. Only an empty one means
            // something else.
            ForkServerEvent::Written { text, .. } => *text = "-".repeat(text.len().min(1)),
            ForkServerEvent::Spawned(..) | ForkServerEvent::Guest { .. } => {}
        },
        EngineReport::Up(_)
        | EngineReport::Down { .. }
        | EngineReport::Revoked { .. }
        | EngineReport::Waits { .. }
        | EngineReport::Delivered { .. } => {}
    }
    report.serialize(to)
}

// Outputs: only for digests, so without what depends on contents.

pub(crate) fn written<S: Serializer>(record: &&OutputRecord, to: S) -> Result<S::Ok, S::Error> {
    OutputForm::serialize(record, to)
}

#[derive(Serialize)]
struct ResultForm {
    seq: TaskSeq,
    status: u8,
    engine: EngineId,
    times_ns: [u64; 3],
    payload: Option<payload::Form>,
}

impl From<&ResultRecord> for ResultForm {
    fn from(record: &ResultRecord) -> Self {
        // The payload of these is made from texts.
        let has_text = matches!(record.status, Status::Refused | Status::Lost);
        Self {
            seq: record.seq,
            status: record.status as u8,
            engine: record.engine,
            times_ns: [record.started_ns, record.completed_ns, record.cpu_ns],
            payload: (!has_text).then(|| payload::Form::from(&record.payload)),
        }
    }
}

pub(crate) fn result<S: Serializer>(record: &ResultRecord, to: S) -> Result<S::Ok, S::Error> {
    ResultForm::from(record).serialize(to)
}

/// Part by part, because equal payloads are coalesced.
pub(crate) fn coalesced<S: Serializer>(record: &CoalescedRecord, to: S) -> Result<S::Ok, S::Error> {
    to.collect_seq(record.results().map(|result| ResultForm::from(&result)))
}

pub(crate) fn refused<S: Serializer>(record: &RefusedRun, to: S) -> Result<S::Ok, S::Error> {
    let mut reason = record.reason.clone();
    if let RefusalReason::UnmetEverywhere(text) | RefusalReason::Undeliverable(text) = &mut reason {
        text.clear();
    }
    (record.seq, record.n_tasks, reason).serialize(to)
}

pub(crate) fn sent_function<S: Serializer>(
    record: &FunctionRecord,
    to: S,
) -> Result<S::Ok, S::Error> {
    (record.function, record.body.len()).serialize(to)
}

pub(crate) fn event<S: Serializer>(event: &Event, to: S) -> Result<S::Ok, S::Error> {
    let mut event = event.clone();
    if let Event::EngineDown(DeathCertificate { last_output, .. }) = &mut event {
        last_output.clear();
    }
    event.serialize(to)
}

pub(crate) fn reply<S: Serializer>(reply: &ControlReply, to: S) -> Result<S::Ok, S::Error> {
    let mut reply = reply.clone();
    match &mut reply {
        ControlReply::Text(text) | ControlReply::Failed(text) => text.clear(),
        ControlReply::Records { records, .. } => {
            for record in records {
                record.label.clear();
            }
        }
        ControlReply::Done | ControlReply::Queues(_) => {}
    }
    reply.serialize(to)
}
