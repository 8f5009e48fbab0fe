//! The connections of a node.

use broadleaf_net::Link;
use broadleaf_proto::{ClientId, EngineId, HostId};
use broadleaf_shm::{ClaimBoard, OUTPUT_STREAMS, UnsentOutput};

/// What a peer has proved to be.
pub enum Role {
    /// Connected, no hello yet; see [`crate::arrivals`].
    Unknown,
    /// A client.
    Client {
        /// Its id.
        client: ClientId,
        /// Its number as a host that gets results; the controller's for one that is there.
        host: HostId,
        /// Whether its outgoing queue is long.
        congested: bool,
    },
    /// An engine.
    Engine {
        /// Its place.
        engine: EngineId,
        /// Its process.
        pid: u32,
        /// Where it claims what it is offered.
        board: ClaimBoard,
        /// The number after the last offer made.
        next_offer: u32,
        /// Where its last output is found should it die.
        unsent: UnsentOutput,
        /// What came of each of its streams.
        arrived_bytes: [u64; OUTPUT_STREAMS],
    },
    /// The fork server.
    ForkServer,
    /// The relay of another host.
    Relay {
        /// Its host.
        host: HostId,
    },
    /// The controller, where this node is a relay.
    Controller,
    /// Refused or malformed: its last bytes go out, then it is closed.
    Leaving,
}

/// One connection.
pub struct Peer {
    /// The connection.
    pub link: Link,
    /// What it is.
    pub role: Role,
    /// High half of the ids of its segments, once it has said who it is.
    pub segment_token: Option<u32>,
    /// Whether the poller watches for room to write.
    pub watches_write: bool,
    /// Whether it watches for something to read.
    pub watches_read: bool,
    /// Whether it is in the list of peers to flush.
    pub dirty: bool,
}
