//! The wire's language: ids, frames, messages, limits and version. Data only.
//!
//! Two families of message share one framing ([`frame`]):
//!
//! * hot records ([`task`]), hand-encoded little-endian, many to a frame;
//! * control messages ([`control`]), `postcard`-encoded, one to a frame.
//!
//! Nothing here performs I/O, reads a clock, or allocates before a length was checked.

pub mod chunk;
pub mod compact;
pub mod frame;
pub mod ids;
mod lane;
pub mod layout;
pub mod limits;
mod messages;
pub mod proof;
mod records;
pub mod wire;

pub use chunk::{Block, Chunk, PayloadSecret, SealedHead};
pub use frame::{FrameHeader, FrameKind};
pub use ids::{
    ClientId, EngineId, FunctionHash, FunctionId, HostId, ObjectId, OptionsId, SegmentId, TaskKey,
    TaskSeq,
};
pub use lane::LaneWord;
pub use messages::control::{
    ControlReply, ControlRequest, DeathCause, DeathCertificate, DependencyRule, EngineInfo, Mode,
    RequestedTopology, TargetSet, TaskOptions,
};
pub use messages::mover::{Landing, MoverCommand, MoverEvent, MoverRank};
pub use messages::upload::UploadChunk;
pub use messages::{control, engine, fork_server, host, mover, relay, resume, upload};
pub use records::coalesced::CoalescedRecord;
pub use records::refused::RefusedRun;
pub use records::task::{
    AssignRecord, DoneRecord, Payload, ResultRecord, SegmentRef, Status, SubmitRecord,
};
pub use records::{coalesced, error_head, refused, spans, task};
pub use wire::DecodeError;

/// Version of the wire protocol; peers must match it exactly.
pub const PROTOCOL_VERSION: u32 = 27;
