//! The wire's language: ids, frames, messages, limits and version. Data only.
//!
//! Two families of message share one framing ([`frame`]):
//!
//! * hot records ([`task`]), hand-encoded little-endian, many to a frame;
//! * control messages ([`control`]), `postcard`-encoded, one to a frame.
//!
//! Nothing here performs I/O, reads a clock, or allocates before a length was checked.

pub mod chunk;
pub mod coalesced;
pub mod control;
pub mod engine;
pub mod fork_server;
pub mod frame;
pub mod ids;
pub mod layout;
pub mod limits;
pub mod mover;
pub mod proof;
pub mod refused;
pub mod relay;
pub mod spans;
pub mod task;
pub mod upload;
pub mod wire;

pub use chunk::{Block, Chunk, PayloadSecret, SealedHead};
pub use coalesced::CoalescedRecord;
pub use control::{
    ControlReply, ControlRequest, DeathCause, DeathCertificate, DependencyRule, EngineInfo, Mode,
    RequestedTopology, TargetSet, TaskOptions,
};
pub use frame::{FrameHeader, FrameKind};
pub use ids::{
    ClientId, EngineId, FunctionHash, FunctionId, HostId, ObjectId, OptionsId, SegmentId, TaskKey,
    TaskSeq,
};
pub use mover::{Landing, MoverCommand, MoverEvent, MoverRank};
pub use refused::RefusedRun;
pub use task::{AssignRecord, DoneRecord, Payload, ResultRecord, SegmentRef, Status, SubmitRecord};
pub use upload::UploadChunk;
pub use wire::DecodeError;

/// Version of the wire protocol; peers must match it exactly.
pub const PROTOCOL_VERSION: u32 = 17;
