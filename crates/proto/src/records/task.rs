//! Hot records: many travel in one frame, so each is a few fixed fields, then its payload.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use bytes::{BufMut, Bytes};
use smallvec::SmallVec;

use crate::ids::{EngineId, FunctionHash, FunctionId, OptionsId, SegmentId, TaskKey, TaskSeq};
use crate::limits::{
    MAX_DEPENDENCIES, MAX_FUNCTION_BYTES, MAX_FUNCTION_NAME_BYTES, MAX_NESTING,
    MAX_PAYLOAD_SEGMENTS,
};
use crate::wire::{DecodeError, Reader};

/// A range of a shared segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentRef {
    /// The segment.
    pub segment: SegmentId,
    /// First byte.
    pub offset_bytes: u64,
    /// Length.
    pub len_bytes: u64,
}

/// Keeps a payload's segments from being recycled: dropped with the last clone of the payload.
/// The machines carry it without looking inside; a driver puts in whatever must live that long.
#[derive(Clone)]
pub struct LeaseGuard(pub Arc<dyn Any + Send + Sync>);

impl fmt::Debug for LeaseGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LeaseGuard")
    }
}

impl PartialEq for LeaseGuard {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for LeaseGuard {}

/// Arguments or a result: opaque to everyone between the client and the engine, except for the
/// shared segments it names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Payload {
    /// Encoded bytes; empty for no arguments and for `None`.
    pub bytes: Bytes,
    /// Segments holding the large buffers, in order.
    pub segments: SmallVec<[SegmentRef; 0]>,
    /// Holds the segments; never on the wire.
    pub lease: Option<LeaseGuard>,
}

impl Payload {
    /// Bytes that count against a client's limit: inline and in segments.
    pub fn weight_bytes(&self) -> u64 {
        let inline = self.bytes.len() as u64;
        let sizes = self.segments.iter().map(|s| s.len_bytes);
        sizes.fold(inline, u64::saturating_add)
    }
    pub(crate) fn encode(&self, out: &mut impl BufMut) {
        put_fields::<6>(out, |mut fields| {
            fields.put_u32_le(self.bytes.len() as u32);
            fields.put_u16_le(self.segments.len() as u16);
        });
        for s in &self.segments {
            out.put_u64_le(s.segment.0);
            out.put_u64_le(s.offset_bytes);
            out.put_u64_le(s.len_bytes);
        }
        out.put_slice(&self.bytes);
    }
    pub(crate) fn decode(r: &mut Reader) -> Result<Self, DecodeError> {
        let len = r.u32()? as usize;
        let n = r.u16()? as usize;
        check(n, MAX_PAYLOAD_SEGMENTS)?;
        let mut segments = SmallVec::new();
        for _ in 0..n {
            segments.push(SegmentRef {
                segment: SegmentId(r.u64()?),
                offset_bytes: r.u64()?,
                len_bytes: r.u64()?,
            });
        }
        Ok(Self {
            bytes: r.bytes(len)?,
            segments,
            lease: None,
        })
    }
}

/// Gathers fields of N bytes on the stack: one copy into the growing frame instead of one per field.
#[inline]
fn put_fields<const N: usize>(out: &mut impl BufMut, fill: impl FnOnce(&mut [u8])) {
    let mut fields = [0; N];
    fill(&mut fields);
    out.put_slice(&fields);
}

pub(crate) fn check(claimed: usize, limit: usize) -> Result<(), DecodeError> {
    if claimed > limit {
        return Err(DecodeError::TooLong {
            claimed: claimed as u64,
            limit: limit as u64,
        });
    }
    Ok(())
}

/// Reads a task's nesting depth.
pub(crate) fn depth(r: &mut Reader) -> Result<u16, DecodeError> {
    let depth = r.u16()?;
    check(usize::from(depth), usize::from(MAX_NESTING))?;
    Ok(depth)
}

/// How a task ended. Every task ends in exactly one of these.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Status {
    /// It returned; the payload is its value.
    Ok = 0,
    /// It raised; the payload is the engine's error record.
    Error = 1,
    /// It was aborted, queued or running.
    Cancelled = 2,
    /// It ran longer than its timeout, or its dependencies took longer than theirs.
    Timeout = 3,
    /// It was never accepted: no such target, an impossible or failed dependency, or a limit
    /// exceeded. The payload is a postcard [`crate::messages::control::RefusalReason`].
    Refused = 4,
    /// Its engine died. The payload is a postcard [`crate::messages::control::DeathCertificate`].
    Lost = 5,
    /// Engine to controller only: a functional dependency (`@depend`, `@require`) does not hold
    /// there, so the task goes to another engine.
    Unmet = 6,
}

impl TryFrom<u8> for Status {
    type Error = DecodeError;
    fn try_from(byte: u8) -> Result<Self, DecodeError> {
        Ok(match byte {
            0 => Self::Ok,
            1 => Self::Error,
            2 => Self::Cancelled,
            3 => Self::Timeout,
            4 => Self::Refused,
            5 => Self::Lost,
            6 => Self::Unmet,
            _ => return Err(DecodeError::UnknownStatus(byte)),
        })
    }
}

/// Client to controller: run `function`. With options of mode `Each`, one task per target,
/// numbered from `seq` in target order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubmitRecord {
    /// The task's number, or the number of its first target's task.
    pub seq: TaskSeq,
    /// What to call, defined earlier on this connection.
    pub function: FunctionId,
    /// How to run it, defined earlier on this connection.
    pub options: OptionsId,
    /// Its nesting depth: 0, or one more than that of the task that submits it.
    pub depth: u16,
    /// Tasks of the same client that must end first.
    pub after: SmallVec<[TaskSeq; 0]>,
    /// Tasks of the same client that must end first, and on whose engines it must run.
    pub follow: SmallVec<[TaskSeq; 0]>,
    /// Arguments.
    pub payload: Payload,
}

impl SubmitRecord {
    /// Appends the record.
    pub fn encode(&self, out: &mut impl BufMut) {
        out.put_u64_le(self.seq.0);
        out.put_u32_le(self.function.0);
        out.put_u32_le(self.options.0);
        out.put_u16_le(self.depth);
        out.put_u32_le(self.after.len() as u32);
        out.put_u32_le(self.follow.len() as u32);
        for s in self.after.iter().chain(&self.follow) {
            out.put_u64_le(s.0);
        }
        self.payload.encode(out);
    }
    /// Reads one record.
    ///
    /// # Errors
    /// [`DecodeError`] if the bytes are not one.
    pub fn decode(r: &mut Reader) -> Result<Self, DecodeError> {
        let seq = TaskSeq(r.u64()?);
        let function = FunctionId(r.u32()?);
        let options = OptionsId(r.u32()?);
        let depth = depth(r)?;
        let (n_after, n_follow) = (r.u32()? as usize, r.u32()? as usize);
        check(n_after.saturating_add(n_follow), MAX_DEPENDENCIES)?;
        let mut list = |n| {
            (0..n)
                .map(|_| r.u64().map(TaskSeq))
                .collect::<Result<SmallVec<_>, _>>()
        };
        let after = list(n_after)?;
        let follow = list(n_follow)?;
        Ok(Self {
            seq,
            function,
            options,
            depth,
            after,
            follow,
            payload: Payload::decode(r)?,
        })
    }
}

/// Controller to engine: run this, once its claim is won.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AssignRecord {
    /// The controller's name for the task.
    pub key: TaskKey,
    /// Position in this engine's sequence of offers; the claim slot is `offer % CLAIM_SLOTS`.
    pub offer: u32,
    /// What to call, sent to this engine earlier.
    pub function: FunctionId,
    /// Its nesting depth; see [`SubmitRecord::depth`].
    pub depth: u16,
    /// Arguments.
    pub payload: Payload,
}

impl AssignRecord {
    /// Appends the record.
    pub fn encode(&self, out: &mut impl BufMut) {
        put_fields::<18>(out, |mut fields| {
            fields.put_u64_le(self.key.0);
            fields.put_u32_le(self.offer);
            fields.put_u32_le(self.function.0);
            fields.put_u16_le(self.depth);
        });
        self.payload.encode(out);
    }
    /// Reads one record.
    ///
    /// # Errors
    /// [`DecodeError`] if the bytes are not one.
    pub fn decode(r: &mut Reader) -> Result<Self, DecodeError> {
        Ok(Self {
            key: TaskKey(r.u64()?),
            offer: r.u32()?,
            function: FunctionId(r.u32()?),
            depth: depth(r)?,
            payload: Payload::decode(r)?,
        })
    }
}

/// Engine to controller: a task ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DoneRecord {
    /// The task.
    pub key: TaskKey,
    /// How it ended.
    pub status: Status,
    /// Wall clock at its start, ns since 1970.
    pub started_ns: u64,
    /// Wall clock at its end, ns since 1970.
    pub completed_ns: u64,
    /// Processor time that it took.
    pub cpu_ns: u64,
    /// Value or error record.
    pub payload: Payload,
}

impl DoneRecord {
    /// Appends the record.
    pub fn encode(&self, out: &mut impl BufMut) {
        put_fields::<33>(out, |mut fields| {
            fields.put_u64_le(self.key.0);
            fields.put_u8(self.status as u8);
            fields.put_u64_le(self.started_ns);
            fields.put_u64_le(self.completed_ns);
            fields.put_u64_le(self.cpu_ns);
        });
        self.payload.encode(out);
    }
    /// Reads one record.
    ///
    /// # Errors
    /// [`DecodeError`] if the bytes are not one.
    pub fn decode(r: &mut Reader) -> Result<Self, DecodeError> {
        Ok(Self {
            key: TaskKey(r.u64()?),
            status: Status::try_from(r.u8()?)?,
            started_ns: r.u64()?,
            completed_ns: r.u64()?,
            cpu_ns: r.u64()?,
            payload: Payload::decode(r)?,
        })
    }
}

/// Controller to client: a task is resolved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResultRecord {
    /// The client's number of the task.
    pub seq: TaskSeq,
    /// How it ended.
    pub status: Status,
    /// Where it ran last; `u32::MAX` if nowhere.
    pub engine: EngineId,
    /// Wall clock at its start, ns since 1970; 0 if it never started.
    pub started_ns: u64,
    /// Wall clock at its end, ns since 1970; 0 if it never started.
    pub completed_ns: u64,
    /// Processor time that it took.
    pub cpu_ns: u64,
    /// Value, error record, refusal reason or death certificate.
    pub payload: Payload,
}

impl ResultRecord {
    /// Appends the record.
    pub fn encode(&self, out: &mut impl BufMut) {
        put_fields::<37>(out, |mut fields| {
            fields.put_u64_le(self.seq.0);
            fields.put_u8(self.status as u8);
            fields.put_u32_le(self.engine.0);
            fields.put_u64_le(self.started_ns);
            fields.put_u64_le(self.completed_ns);
            fields.put_u64_le(self.cpu_ns);
        });
        self.payload.encode(out);
    }
    /// Reads one record.
    ///
    /// # Errors
    /// [`DecodeError`] if the bytes are not one.
    pub fn decode(r: &mut Reader) -> Result<Self, DecodeError> {
        Ok(Self {
            seq: TaskSeq(r.u64()?),
            status: Status::try_from(r.u8()?)?,
            engine: EngineId(r.u32()?),
            started_ns: r.u64()?,
            completed_ns: r.u64()?,
            cpu_ns: r.u64()?,
            payload: Payload::decode(r)?,
        })
    }
}

/// What a task wrote. `task` is a [`TaskKey`] from the engine, a [`TaskSeq`] towards the client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutputRecord {
    /// The task, by the receiver's name for it.
    pub task: u64,
    /// Who wrote.
    pub engine: EngineId,
    /// 1 standard output, 2 standard error, 3 a pickled display or published-data message.
    pub stream: u8,
    /// The text (UTF-8) or message.
    pub bytes: Bytes,
}

/// The stream of standard output.
pub const STDOUT: u8 = 1;
/// The stream of standard error.
pub const STDERR: u8 = 2;
/// The stream of displays and published data.
pub const MESSAGE: u8 = 3;

/// The text that replaces dropped output.
pub fn dropped_notice(bytes: u64) -> String {
    let count = with_commas(bytes);
    format!("[broadleaf: {count} bytes of output were dropped here]\n")
}

/// The text that reports dropped displays and published data.
pub fn dropped_messages_notice(messages: u64) -> String {
    let count = with_commas(messages);
    format!(
        "[broadleaf: displays or published data were dropped here ({count} messages): the client did not read them in \
         time]\n"
    )
}

fn with_commas(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

impl OutputRecord {
    /// Appends the record.
    pub fn encode(&self, out: &mut impl BufMut) {
        out.put_u64_le(self.task);
        out.put_u32_le(self.engine.0);
        out.put_u8(self.stream);
        out.put_u32_le(self.bytes.len() as u32);
        out.put_slice(&self.bytes);
    }
    /// Reads one record.
    ///
    /// # Errors
    /// [`DecodeError`] if the bytes are not one.
    pub fn decode(r: &mut Reader) -> Result<Self, DecodeError> {
        let (task, engine, stream) = (r.u64()?, EngineId(r.u32()?), r.u8()?);
        if !(1..=3).contains(&stream) {
            return Err(DecodeError::Malformed);
        }
        let len = r.u32()? as usize;
        Ok(Self {
            task,
            engine,
            stream,
            bytes: r.bytes(len)?,
        })
    }
}

/// First byte of the body of a preparation: an engine passes the rest to Python on arrival, and no
/// task ever names it. Other bodies are pickles, which start with another byte.
pub const PREPARATION: u8 = 1;

/// A function's content, sent once per connection, before the first task that names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FunctionRecord {
    /// The sender's name for it on this connection.
    pub function: FunctionId,
    /// Hash of `body`.
    pub hash: FunctionHash,
    /// Its name in displays, in UTF-8; empty towards engines.
    pub name: Bytes,
    /// Pickled function.
    pub body: Bytes,
}

impl FunctionRecord {
    /// Appends the record.
    pub fn encode(&self, out: &mut impl BufMut) {
        out.put_u32_le(self.function.0);
        out.put_slice(&self.hash.0);
        let name_len = self.name.len().min(MAX_FUNCTION_NAME_BYTES);
        out.put_u8(name_len as u8);
        out.put_slice(&self.name[..name_len]);
        out.put_u32_le(self.body.len() as u32);
        out.put_slice(&self.body);
    }
    /// Reads one record.
    ///
    /// # Errors
    /// [`DecodeError`] if the bytes are not one, or the name or body exceeds its limit.
    pub fn decode(r: &mut Reader) -> Result<Self, DecodeError> {
        let function = FunctionId(r.u32()?);
        let mut hash = [0; 16];
        hash.copy_from_slice(&r.bytes(16)?);
        let name_len = r.u8()? as usize;
        check(name_len, MAX_FUNCTION_NAME_BYTES)?;
        let name = r.bytes(name_len)?;
        let len = r.u32()? as usize;
        check(len, MAX_FUNCTION_BYTES)?;
        Ok(Self {
            function,
            hash: FunctionHash(hash),
            name,
            body: r.bytes(len)?,
        })
    }
}
