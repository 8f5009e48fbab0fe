//! Framing: an 8-byte header, then the body. All integers are little-endian.
//!
//! ```text
//! 0        4     5      6        8
//! +--------+-----+------+--------+----------------
//! | length | kind| zero | n fds  | body (length bytes)
//! +--------+-----+------+--------+----------------
//! ```

use crate::limits::MAX_FRAME_FDS;
use crate::wire::DecodeError;

/// Size of a frame's header.
pub const HEADER_BYTES: usize = 8;

/// What a frame's body holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum FrameKind {
    /// First frame once the keys are proven: [`crate::messages::control::Hello`].
    Hello = 1,
    /// The controller accepts: [`crate::messages::control::Welcome`].
    Welcome = 2,
    /// The controller refuses, then closes: [`crate::messages::control::Refusal`].
    Refused = 3,
    /// First frame of a connection without TLS: [`crate::proof::Challenge`].
    Challenge = 4,
    /// The listener's proof and its own challenge: [`crate::proof::Answer`].
    Answer = 5,
    /// The dialer's proof: [`crate::proof::Proof`].
    Proof = 6,
    /// On a link that can be resumed, in either direction: [`crate::messages::resume::Received`]. As the answer to a hello
    /// that resumes a link, and as the answer to that, it says where the other side goes on.
    Received = 7,
    /// On a link that can be resumed: its sender closes it, and does not come back.
    Goodbye = 8,
    /// Client to controller: [`crate::records::task::SubmitRecord`]s.
    Submit = 16,
    /// Controller to engine: [`crate::records::task::AssignRecord`]s.
    Assign = 17,
    /// Engine to controller: [`crate::records::task::DoneRecord`]s.
    Done = 18,
    /// Controller to client: [`crate::records::task::ResultRecord`]s.
    Result = 19,
    /// Controller to client: a [`crate::records::coalesced::CoalescedRecord`].
    Coalesced = 25,
    /// Controller to client: [`crate::records::refused::RefusedRun`]s.
    RefusedRun = 26,
    /// Engine to controller, and controller to client: [`crate::records::task::OutputRecord`]s.
    Output = 20,
    /// A function's content: [`crate::records::task::FunctionRecord`].
    Function = 21,
    /// A set of task options: [`crate::messages::control::DefineOptions`].
    Options = 22,
    /// New segments whose descriptors ride with the frame: [`crate::messages::control::SegmentAnnounce`].
    SegmentAnnounce = 23,
    /// References to segments that the sender no longer holds: [`crate::messages::control::SegmentRelease`].
    SegmentRelease = 24,
    /// Client on another host to controller: [`crate::messages::upload::UploadChunk`].
    Upload = 27,
    /// Client to controller: [`crate::messages::control::ControlRequest`] with a request number.
    Request = 32,
    /// Controller to client: [`crate::messages::control::ControlReply`] with that number.
    Reply = 33,
    /// Controller to client: [`crate::messages::control::Event`].
    Event = 34,
    /// Node to fork server: [`crate::messages::control::ForkServerCommand`].
    ForkServerCommand = 40,
    /// Fork server to node: [`crate::messages::control::ForkServerEvent`].
    ForkServerEvent = 41,
    /// Node to engine: [`crate::messages::engine::EngineCommand`].
    EngineCommand = 42,
    /// Engine to node: [`crate::messages::engine::EngineEvent`].
    EngineEvent = 43,
    /// Engine to node: an answer is in this engine's place on the lane, and maybe in others.
    LaneAnswered = 44,
    /// Controller to relay: [`crate::messages::relay::RelayCommand`]s.
    RelayCommand = 48,
    /// Controller to relay: [`crate::messages::relay::AssignMany`]s.
    AssignMany = 49,
    /// Relay to controller: [`crate::messages::relay::RelayEvent`]s.
    RelayEvent = 50,
    /// Relay to controller: [`crate::messages::relay::RelayedDone`]s.
    RelayedDone = 51,
    /// Between hosts, in either direction: [`crate::messages::relay::PayloadCommand`].
    PayloadCommand = 52,
    /// Between hosts, in answer to a pull: [`crate::chunk::Chunk`].
    Chunk = 53,
    /// Payload plane to mover: [`crate::messages::mover::MoverCommand`].
    MoverCommand = 54,
    /// Mover to payload plane: [`crate::messages::mover::MoverEvent`].
    MoverEvent = 55,
}

impl TryFrom<u8> for FrameKind {
    type Error = DecodeError;
    fn try_from(byte: u8) -> Result<Self, DecodeError> {
        use FrameKind as K;
        const ALL: [FrameKind; 36] = [
            K::Hello,
            K::Welcome,
            K::Refused,
            K::Challenge,
            K::Answer,
            K::Proof,
            K::Received,
            K::Goodbye,
            K::Submit,
            K::Assign,
            K::Done,
            K::Result,
            K::Coalesced,
            K::RefusedRun,
            K::Output,
            K::Function,
            K::Options,
            K::SegmentAnnounce,
            K::SegmentRelease,
            K::Upload,
            K::Request,
            K::Reply,
            K::Event,
            K::ForkServerCommand,
            K::ForkServerEvent,
            K::EngineCommand,
            K::EngineEvent,
            K::LaneAnswered,
            K::RelayCommand,
            K::AssignMany,
            K::RelayEvent,
            K::RelayedDone,
            K::PayloadCommand,
            K::Chunk,
            K::MoverCommand,
            K::MoverEvent,
        ];
        ALL.into_iter()
            .find(|k| *k as u8 == byte)
            .ok_or(DecodeError::UnknownKind(byte))
    }
}

/// A frame's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameHeader {
    /// Size of the body.
    pub body_bytes: u32,
    /// What the body holds.
    pub kind: FrameKind,
    /// Number of file descriptors that travel with the frame.
    pub fd_count: u16,
}

impl FrameHeader {
    /// The header's bytes.
    pub fn encode(self) -> [u8; HEADER_BYTES] {
        let mut out = [0; HEADER_BYTES];
        out[..4].copy_from_slice(&self.body_bytes.to_le_bytes());
        out[4] = self.kind as u8;
        out[6..].copy_from_slice(&self.fd_count.to_le_bytes());
        out
    }

    /// Reads a header, refusing a body above `limit_bytes` before anything is allocated for it.
    ///
    /// # Errors
    /// [`DecodeError`] on an unknown kind, a non-zero reserved byte or a number above its limit.
    pub fn decode(bytes: [u8; HEADER_BYTES], limit_bytes: u32) -> Result<Self, DecodeError> {
        let [b0, b1, b2, b3, kind, reserved, f0, f1] = bytes;
        let body_bytes = u32::from_le_bytes([b0, b1, b2, b3]);
        let fd_count = u16::from_le_bytes([f0, f1]);
        if reserved != 0 {
            return Err(DecodeError::ReservedNotZero);
        }
        if body_bytes > limit_bytes {
            return Err(DecodeError::TooLong {
                claimed: u64::from(body_bytes),
                limit: u64::from(limit_bytes),
            });
        }
        if fd_count > MAX_FRAME_FDS {
            return Err(DecodeError::TooLong {
                claimed: fd_count.into(),
                limit: MAX_FRAME_FDS.into(),
            });
        }
        Ok(Self {
            body_bytes,
            kind: FrameKind::try_from(kind)?,
            fd_count,
        })
    }
}
