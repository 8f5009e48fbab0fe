//! What tasks do, and how they may end.

use broadleaf_core::Nanos;
use broadleaf_proto::error_head::ErrorHead;
use broadleaf_proto::ids::{ClientId, EngineId};
use broadleaf_proto::task::SegmentRef;
use broadleaf_proto::{SegmentId, TaskOptions};
use bytes::Bytes;
use smallvec::SmallVec;

/// Length of arguments and values that lie in a segment; a client may have many of them under way.
pub const LARGE_BYTES: u64 = 100_000;

/// Bytes that a task writes before it ends.
pub const JOB_OUTPUT_BYTES: u64 = 64;

/// How a task ends if it is left alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// Returns.
    Return,
    /// Raises, every time.
    Raise,
    /// Raises at its first start, then returns.
    RaiseOnce,
    /// Ends its engine's process.
    Crash,
    /// Never ends. If it has no timeout, its client aborts it, at the latest before it leaves.
    Hang,
    /// Finds its functional dependency unmet on engines with even numbers.
    UnmetOnEven,
    /// Finds it unmet everywhere.
    UnmetEverywhere,
    /// Never begins: its arguments were sent ahead and did not all arrive.
    Incomplete,
}

/// The task of one record, shared by all its parts.
#[derive(Clone, Debug)]
pub struct Job {
    /// Its index in the list of jobs, which is also its payload.
    pub index: u64,
    /// The body of its function.
    pub body: u64,
    /// How long it runs.
    pub duration_ns: Nanos,
    /// How it ends.
    pub fate: Fate,
    /// Whether it ignores interrupts.
    pub stubborn: bool,
    /// How it was submitted.
    pub options: TaskOptions,
    /// The preparations that its client had requested when it submitted the job.
    pub prepared: Vec<Preparation>,
    /// How many tasks it submits and waits for.
    pub children: u64,
    /// Whether it has dependencies.
    pub dependent: bool,
    /// Whether its arguments lie in a segment, and take time to reach another host.
    pub is_large: bool,
}

impl Job {
    /// Its arguments on the wire.
    pub fn arguments(&self) -> Bytes {
        Bytes::copy_from_slice(&self.index.to_le_bytes())
    }
    /// The part of them that lies in segments.
    pub fn segments(&self) -> SmallVec<[SegmentRef; 0]> {
        let range = SegmentRef {
            // Neighbouring jobs share their arguments.
            segment: SegmentId(self.index / 2),
            offset_bytes: 0,
            len_bytes: LARGE_BYTES,
        };
        self.is_large.then_some(range).into_iter().collect()
    }
    /// Its value, computed from its arguments and the body of its function.
    pub fn value(index: u64, body: u64) -> Bytes {
        let mixed = index.wrapping_mul(0x9e37_79b9).wrapping_add(body);
        Bytes::copy_from_slice(&mixed.to_le_bytes())
    }
    /// Its error record, of one of more kinds than a controller remembers. Some have no head, as records with buffers.
    pub fn error(index: u64) -> Bytes {
        let mut record = Vec::new();
        if !index.is_multiple_of(7) {
            let head = ErrorHead {
                kind: index % 257,
                n_items: 1,
                text: Bytes::from_static(b"{}"),
            };
            head.encode(&mut record);
        }
        record.into()
    }
    /// Whether only an abort ends it.
    pub fn hangs_unless_aborted(&self) -> bool {
        self.fate == Fate::Hang && self.options.timeout_ns.is_none()
    }
    /// Whether it finds its dependency unmet on an engine.
    pub fn is_unmet_on(&self, engine: EngineId) -> bool {
        match self.fate {
            Fate::UnmetEverywhere => true,
            Fate::UnmetOnEven => engine.0.is_multiple_of(2),
            _ => false,
        }
    }
}

/// A preparation of a client; a later one of the same name has a higher version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Preparation {
    /// The client that it belongs to.
    pub client: ClientId,
    /// Its name.
    pub name: u16,
    /// Tells it from others of that name.
    pub version: u32,
}

/// Bodies of preparations have this bit; those of functions that tasks name do not.
const IS_PREPARATION: u64 = 1 << 63;

impl Preparation {
    /// The content of its body.
    pub fn body(self) -> u64 {
        IS_PREPARATION
            | u64::from(self.client.0) << 48
            | u64::from(self.name) << 32
            | u64::from(self.version)
    }
    /// The preparation that a body holds, if it is one.
    pub fn of_body(body: u64) -> Option<Self> {
        (body & IS_PREPARATION != 0).then_some(Self {
            client: ClientId((body >> 48) as u32 & 0x7fff),
            name: (body >> 32) as u16,
            version: body as u32,
        })
    }
}

/// The index in a task's arguments.
///
/// # Panics
/// On bytes that are no job's arguments: a payload was mixed up.
pub fn index_of(arguments: &[u8]) -> u64 {
    let bytes = arguments
        .try_into()
        .expect("a job's arguments are eight bytes");
    u64::from_le_bytes(bytes)
}
