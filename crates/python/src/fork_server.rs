//! `_native.ForkServer`: the fork server's connection to its node.

use std::os::fd::AsRawFd;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use broadleaf_net::Link;
use broadleaf_proto::control::{self, ForkServerCommand, ForkServerEvent, Role};
use broadleaf_proto::{EngineId, FrameKind};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use serde::Deserialize;

use crate::connect::{ConnectError, Connection, dial_local, handshake};
use crate::errors::link_error;
use crate::forks::Sockets;
use crate::payload::lock;

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
        }
    }
}

/// The fork server's connection to its node.
#[pyclass(frozen, module = "broadleaf._native")]
pub struct ForkServer {
    /// Dropped before the descriptor is closed.
    _sockets: Arc<Sockets>,
    link: Mutex<Link>,
}

#[pymethods]
impl ForkServer {
    #[new]
    fn new(py: Python<'_>, connection: &str) -> PyResult<Self> {
        let connection = Connection::parse(connection)?;
        let hello = connection.hello(
            py,
            Role::ForkServer {
                pid: std::process::id(),
            },
        );
        let deadline = Instant::now() + Duration::from_secs(30);
        let (link, _, _) = py
            .detach(|| -> Result<_, ConnectError> {
                handshake(dial_local(&connection)?, &hello, &[], deadline)
            })
            .map_err(|error| error.into_py(py))?;
        Ok(Self {
            _sockets: Sockets::register(py, &[link.as_fd()]),
            link: Mutex::new(link),
        })
    }

    fn fileno(&self) -> i32 {
        lock(&self.link).as_fd().as_raw_fd()
    }

    /// JSON of the next command, or `None` when none is complete yet.
    fn next_command(&self, py: Python<'_>) -> PyResult<Option<String>> {
        let mut link = lock(&self.link);
        let read = |link: &mut Link| {
            if let Some(frame) = link.next_frame()? {
                return Ok(Some(frame));
            }
            link.fill()?;
            link.next_frame()
        };
        let Some(frame) = read(&mut link).map_err(|error| link_error(py, &error))? else {
            return Ok(None);
        };
        let command: ForkServerCommand =
            control::decode(&frame.body).map_err(|error| link_error(py, &error.into()))?;
        let json = match command {
            ForkServerCommand::Spawn(engine, env) => {
                serde_json::json!({"spawn": {"engine": engine.0, "env": env}})
            }
            ForkServerCommand::Seat {
                engine,
                world,
                rank,
                env,
            } => {
                serde_json::json!({"seat": {"engine": engine.0, "world": world, "rank": rank, "env": env}})
            }
            ForkServerCommand::Stop => serde_json::json!({"stop": {}}),
        };
        Ok(Some(json.to_string()))
    }

    fn send_event(&self, py: Python<'_>, event: &str) -> PyResult<()> {
        let event: EventJson = serde_json::from_str(event)
            .map_err(|e| PyValueError::new_err(format!("fork_server event: {e}")))?;
        let mut link = lock(&self.link);
        link.send(
            FrameKind::ForkServerEvent,
            &control::encode(&ForkServerEvent::from(event)),
            &[],
        )
        .and_then(|()| link.flush())
        .map(drop)
        .map_err(|error| link_error(py, &error))
    }
}
