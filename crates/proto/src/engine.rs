//! What a node and an engine tell each other besides tasks and their outcomes.

use serde::{Deserialize, Serialize};

use crate::ids::TaskKey;

/// Node to engine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum EngineCommand {
    /// Leave when the current task is done.
    Stop,
}

/// Engine to node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum EngineEvent {
    /// The task that runs waits for other tasks: until it says otherwise, the engine runs tasks that are nested
    /// deeper.
    WaitStarted(TaskKey),
    /// The task goes on.
    WaitEnded(TaskKey),
}
