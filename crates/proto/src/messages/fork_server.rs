//! Messages between a node and the fork server of its host.

use serde::{Deserialize, Serialize};

use crate::ids::EngineId;

/// Node to fork server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ForkServerCommand {
    /// Carry out an order of the controller.
    Do(ForkServerOrder),
    /// End everything and exit.
    Stop,
}

/// What the controller orders a fork server to do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ForkServerOrder {
    /// Start an engine for this slot.
    Spawn {
        /// The slot.
        engine: EngineId,
    },
    /// Give this slot to a guest: a rank of a world that has announced itself.
    Seat {
        /// The slot.
        engine: EngineId,
        /// The world's name.
        world: String,
        /// The guest's rank there.
        rank: u32,
    },
    /// Read what an engine has written; answered by [`ForkServerEvent::Written`].
    ReadWritten(ReadWritten),
}

impl ForkServerOrder {
    /// The engine, or its slot.
    pub fn engine(&self) -> EngineId {
        match self {
            Self::Spawn { engine }
            | Self::Seat { engine, .. }
            | Self::ReadWritten(ReadWritten { engine, .. }) => *engine,
        }
    }
}

/// A request for what an engine has written: its latest output, and the end of its log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReadWritten {
    /// The engine.
    pub engine: EngineId,
    /// Its process; 0 if it has none now.
    pub pid: u32,
    /// Repeated by the answer.
    pub reading: u64,
    /// What the observer has of it already.
    pub seen: Option<Seen>,
}

/// How much an observer has of what an engine has written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Seen {
    /// The process that wrote it: one that is started again writes from the beginning.
    pub pid: u32,
    /// Bytes of its output.
    pub output_bytes: u64,
    /// Bytes of its log.
    pub log_bytes: u64,
}

/// Fork server to node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ForkServerEvent {
    /// An engine's process exists.
    Spawned(EngineId, u32),
    /// No process could be created for an engine.
    NotStarted {
        /// Its engine slot.
        engine: EngineId,
        /// For the user: what the operating system said.
        reason: String,
    },
    /// An engine's process ended.
    Exited {
        /// Its engine slot.
        engine: EngineId,
        /// Its process.
        pid: u32,
        /// Its exit code, or `None` if a signal ended it.
        code: Option<i32>,
        /// The signal, or `None`.
        signal: Option<i32>,
        /// Whether the out-of-memory killer ended it.
        out_of_memory: bool,
        /// The end of its output.
        last_output: String,
    },
    /// A process that the fork server did not start wants to be an engine: a rank of an MPI world.
    Guest {
        /// The world's name: the ranks of one world have adjacent slots, in order.
        world: String,
        /// Number of ranks in the world.
        size: u32,
        /// Its own.
        rank: u32,
        /// Its process.
        pid: u32,
    },
    /// The answer to [`ForkServerCommand::ReadWritten`].
    Written {
        /// From the command.
        reading: u64,
        /// JSON; empty if it cannot be read.
        text: String,
    },
}

impl ForkServerEvent {
    /// The slot that the event is about; a guest has none yet, and an answer names its request.
    pub fn engine(&self) -> Option<EngineId> {
        match self {
            Self::Spawned(engine, _)
            | Self::NotStarted { engine, .. }
            | Self::Exited { engine, .. } => Some(*engine),
            Self::Guest { .. } | Self::Written { .. } => None,
        }
    }
}
