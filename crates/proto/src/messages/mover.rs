//! Messages between a host's payload plane and its mover. The mover is an MPI rank that sends
//! objects from host to host; the plane says which, and passes it the memory.

use serde::{Deserialize, Serialize};

/// Tags that a receiving mover may give its messages; every MPI supports these.
pub const MOVER_TAGS: u32 = 32_767;
/// Maximum number of bytes of one message: MPI counts them in an `int`.
pub const MAX_PIECE_BYTES: u32 = 1 << 30;
/// Maximum number of objects that a mover receives or sends at a time.
pub const MAX_FLOWS: usize = 256;

/// Identifies a mover: an MPI world, and a process in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MoverRank {
    /// Drawn at random by the world's first rank: only movers of one world reach each other.
    pub world: u64,
    /// Its rank there.
    pub rank: u32,
}

/// Where MPI sends an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Landing {
    /// The mover that receives.
    pub mover: MoverRank,
    /// The tag of all its messages.
    pub tag: u32,
    /// Size of a message; the last may be shorter. A whole number of chunks.
    pub piece_bytes: u32,
}

/// Plane to mover. An object's bytes on their way to, or from, one other host are a flow.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum MoverCommand {
    /// Receive into the segment whose descriptor rides along, as far as [`MoverCommand::Ready`] says.
    Receive(Flow),
    /// Send from the segment whose descriptor rides along, as far as [`MoverCommand::Ready`] says.
    Send(Flow),
    /// The object's bytes up to here may be sent; or, of a receiving flow, have memory.
    Ready {
        /// The flow.
        flow: u32,
        /// The end of those bytes.
        end_bytes: u64,
    },
    /// End a flow early: a sending flow ends with an empty message, and a receiving flow ends when
    /// that has arrived. What still comes for it and has no memory is discarded.
    Stop {
        /// The flow.
        flow: u32,
    },
    /// End a flow at once; nobody sends it.
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
    /// The rank at the other end.
    pub peer: u32,
    /// The tag of its messages.
    pub tag: u32,
    /// Size of a message.
    pub piece_bytes: u32,
    /// The object's offset in the segment.
    pub segment_offset_bytes: u64,
    /// The object's length.
    pub len_bytes: u64,
    /// The first byte that is still needed.
    pub from_bytes: u64,
}

/// Mover to plane.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum MoverEvent {
    /// A receiving flow has received all bytes up to here.
    Moved {
        /// The flow.
        flow: u32,
        /// The end of the available bytes.
        end_bytes: u64,
    },
    /// The mover will neither read nor write anything of this flow any more.
    Ended {
        /// The flow.
        flow: u32,
    },
}
