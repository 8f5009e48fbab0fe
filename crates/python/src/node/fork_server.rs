//! `_native.ForkServer`: the fork server's connection to its node.

use broadleaf_proto::control::{ForkServerCommand, ForkServerEvent, ForkServerOrder, Role};
use broadleaf_proto::{EngineId, FrameKind};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use serde::Deserialize;

use crate::node::node_link::NodeLink;

/// The JSON form of a [`ForkServerEvent`].
#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum EventJson {
    Spawned {
        engine: u32,
        pid: u32,
    },
    NotStarted {
        engine: u32,
        reason: String,
    },
    Exited {
        engine: u32,
        pid: u32,
        code: Option<i32>,
        signal: Option<i32>,
        #[serde(default)]
        out_of_memory: bool,
        #[serde(default)]
        last_output: String,
    },
    Guest {
        world: String,
        size: u32,
        rank: u32,
        pid: u32,
    },
    Written {
        reading: u64,
        text: String,
    },
}

impl From<EventJson> for ForkServerEvent {
    fn from(event: EventJson) -> Self {
        match event {
            EventJson::Spawned { engine, pid } => Self::Spawned(EngineId(engine), pid),
            EventJson::NotStarted { engine, reason } => Self::NotStarted {
                engine: EngineId(engine),
                reason,
            },
            EventJson::Exited {
                engine,
                pid,
                code,
                signal,
                out_of_memory,
                last_output,
            } => Self::Exited {
                engine: EngineId(engine),
                pid,
                code,
                signal,
                out_of_memory,
                last_output,
            },
            EventJson::Guest {
                world,
                size,
                rank,
                pid,
            } => Self::Guest {
                world,
                size,
                rank,
                pid,
            },
            EventJson::Written { reading, text } => Self::Written { reading, text },
        }
    }
}

/// The fork server's connection to its node.
#[pyclass(frozen, module = "broadleaf._native")]
pub struct ForkServer(NodeLink);

#[pymethods]
impl ForkServer {
    #[new]
    fn new(py: Python<'_>, connection: &str) -> PyResult<Self> {
        let pid = std::process::id();
        NodeLink::connect(py, connection, Role::ForkServer { pid }).map(Self)
    }

    fn fileno(&self) -> i32 {
        self.0.fileno()
    }

    /// JSON of the next command, or `None` when none is complete yet.
    fn next_command(&self, py: Python<'_>) -> PyResult<Option<String>> {
        let next = self.0.next_command(py, FrameKind::ForkServerCommand)?;
        let json = next.map(|(command, _)| match command {
            ForkServerCommand::Do(ForkServerOrder::Spawn { engine }) => {
                serde_json::json!({"spawn": {"engine": engine.0}})
            }
            ForkServerCommand::Do(ForkServerOrder::Seat {
                engine,
                world,
                rank,
            }) => {
                serde_json::json!({"seat": {"engine": engine.0, "world": world, "rank": rank}})
            }
            ForkServerCommand::Do(ForkServerOrder::ReadWritten(read)) => {
                serde_json::json!({"read_written": read})
            }
            ForkServerCommand::Stop => serde_json::json!({"stop": {}}),
        });
        Ok(json.map(|json| json.to_string()))
    }

    fn send_event(&self, py: Python<'_>, event: &str) -> PyResult<()> {
        let event: EventJson = serde_json::from_str(event)
            .map_err(|e| PyValueError::new_err(format!("fork_server event: {e}")))?;
        let event = ForkServerEvent::from(event);
        self.0.send(py, FrameKind::ForkServerEvent, &event)?;
        self.0.flush(py).map(drop)
    }
}
