//! What a host's payload plane and its mover say to each other. The mover is a rank of MPI that brings objects from host
//! to host; the plane says which, and passes it the memory.

use serde::{Deserialize, Serialize};

/// Tags that a receiving mover may give its messages: every MPI has these.
pub const MOVER_TAGS: u32 = 32_767;
/// Most bytes of one message: MPI counts them in an `int`.
pub const MAX_PIECE_BYTES: u32 = 1 << 30;
/// Objects that a mover brings in or sends at a time.
pub const MAX_FLOWS: usize = 256;

/// Which of the processes of which MPI world a mover is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MoverRank {
    /// Drawn by the world's first rank: only movers of one world reach each other.
    pub world: u64,
    /// Its rank there.
    pub rank: u32,
}

/// Where an object is sent to by MPI.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Landing {
    /// The mover that receives.
    pub mover: MoverRank,
    /// The tag of all messages of it.
    pub tag: u32,
    /// Bytes of a message; the last may be shorter. A whole number of chunks.
    pub piece_bytes: u32,
}

/// Plane to mover. An object's bytes on their way to, or from, one other host are a flow.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum MoverCommand {
    /// Receive into the segment whose descriptor rides along.
    Receive(Flow),
    /// Send from the segment whose descriptor rides along, as far as [`MoverCommand::Ready`] says.
    Send(Flow),
    /// Bytes of an object up to here may be sent.
    Ready {
        /// The flow.
        flow: u32,
        /// The end of what is there.
        end_bytes: u64,
    },
    /// End a flow before its end: what is sent ends with an empty message, and what is received ends when that has come.
    Stop {
        /// The flow.
        flow: u32,
    },
    /// End a flow at once that nobody sends.
    Abandon {
        /// The flow.
        flow: u32,
    },
}

/// One object on its way to one host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Flow {
    /// The plane's number for it.
    pub flow: u32,
    /// Rank at the other end.
    pub peer: u32,
    /// The tag of its messages.
    pub tag: u32,
    /// Bytes of a message.
    pub piece_bytes: u32,
    /// Where the object begins in the segment.
    pub segment_offset_bytes: u64,
    /// The object's length.
    pub len_bytes: u64,
    /// The first byte that is still wanted.
    pub from_bytes: u64,
}

/// Mover to plane.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum MoverEvent {
    /// A flow that is received has brought all bytes up to here.
    Moved {
        /// The flow.
        flow: u32,
        /// The end of what is there.
        end_bytes: u64,
    },
    /// Nothing of a flow will be read or written any more.
    Ended {
        /// The flow.
        flow: u32,
    },
}
