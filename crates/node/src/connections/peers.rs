//! The connections of a node.

use broadleaf_net::Link;
use broadleaf_proto::resume::SessionKey;
use broadleaf_proto::{ClientId, EngineId, HostId};
use broadleaf_shm::{ClaimBoard, OUTPUT_STREAMS, UnsentOutput};

/// What a peer has proved to be.
pub enum Role {
    /// Connected, but no hello yet; see [`crate::connections::arrivals`].
    Unknown,
    /// A client.
    Client {
        /// Its id.
        client: ClientId,
        /// Its host number as a receiver of results; the controller's for a client on this host.
        host: HostId,
        /// Whether something else forwards its bytes.
        is_forwarded: bool,
        /// Whether its outgoing queue is long.
        congested: bool,
    },
    /// An engine.
    Engine {
        /// Its engine slot.
        engine: EngineId,
        /// Its process.
        pid: u32,
        /// The board on which it claims its offers.
        board: ClaimBoard,
        /// The number after the last offer.
        next_offer: u32,
        /// Where its last output can be found if it dies.
        unsent: UnsentOutput,
        /// What has arrived of each of its streams.
        arrived_bytes: [u64; OUTPUT_STREAMS],
    },
    /// The fork server.
    ForkServer,
    /// The relay of another host.
    Relay {
        /// Its host.
        host: HostId,
    },
    /// The controller, if this node is a relay.
    Controller,
    /// Carries on the link of another peer, once it has said where that goes on.
    Resuming {
        /// The key of that link.
        session: SessionKey,
    },
    /// Refused or malformed: its last bytes are sent, then it is closed.
    Leaving,
}

/// One connection.
pub struct Peer {
    /// The connection.
    pub link: Link,
    /// What the peer is.
    pub role: Role,
    /// Its key, if the link can be resumed.
    pub session: Option<SessionKey>,
    /// High half of the ids of its segments, once it has identified itself.
    pub segment_token: Option<u32>,
    /// Whether the poller watches for writability.
    pub watches_write: bool,
    /// Whether the poller watches for readability.
    pub watches_read: bool,
    /// Whether it is in the list of peers to flush.
    pub dirty: bool,
}
