//! Messages between a node and an engine, besides tasks and their outcomes.

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
    /// The running task waits for other tasks: until it continues, the engine runs tasks that are
    /// nested deeper.
    WaitStarted(TaskKey),
    /// The task continues.
    WaitEnded(TaskKey),
}
