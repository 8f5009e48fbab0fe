//! The link of a process of this host that takes commands from its node and tells it events: a fork server, a mover.

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use broadleaf_net::{Link, LinkError};
use broadleaf_proto::control::{self, Role};
use broadleaf_proto::{DecodeError, FrameKind};
use pyo3::prelude::*;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::errors::link_error;
use crate::forks::Sockets;
use crate::node::connect::{ConnectError, Connection, dial_local, handshake};
use crate::payload::lock;

const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(30);

/// See the module.
pub struct NodeLink {
    /// Dropped before the descriptor is closed.
    _sockets: Arc<Sockets>,
    link: Mutex<Link>,
}

impl NodeLink {
    /// Dials the socket that a connection file's text names, and says who dials.
    pub fn connect(py: Python<'_>, connection: &str, role: Role) -> PyResult<Self> {
        let connection = Connection::parse(connection)?;
        let hello = connection.hello(py, role);
        let deadline = Instant::now() + HANDSHAKE_TIMEOUT;
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

    /// The descriptor to poll.
    pub fn fileno(&self) -> i32 {
        lock(&self.link).as_fd().as_raw_fd()
    }

    /// The next command and the first descriptor that came with it, or `None` when none is complete yet.
    pub fn next_command<C: DeserializeOwned>(
        &self,
        py: Python<'_>,
        kind: FrameKind,
    ) -> PyResult<Option<(C, Option<OwnedFd>)>> {
        let read = |link: &mut Link| -> Result<_, LinkError> {
            let mut next = link.next_frame()?;
            if next.is_none() {
                link.fill()?;
                next = link.next_frame()?;
            }
            let Some(frame) = next else {
                return Ok(None);
            };
            if frame.kind != kind {
                return Err(DecodeError::UnknownKind(frame.kind as u8).into());
            }
            let command = control::decode(&frame.body)?;
            Ok(Some((command, frame.fds.into_iter().next())))
        };
        read(&mut lock(&self.link)).map_err(|error| link_error(py, &error))
    }

    /// Queues an event for the next [`NodeLink::flush`].
    pub fn send<E: Serialize>(&self, py: Python<'_>, kind: FrameKind, event: &E) -> PyResult<()> {
        let sent = lock(&self.link).send(kind, &control::encode(event), &[]);
        sent.map_err(|error| link_error(py, &error))
    }

    /// Writes what waits; true when nothing is left.
    pub fn flush(&self, py: Python<'_>) -> PyResult<bool> {
        let flushed = lock(&self.link).flush();
        flushed.map_err(|error| link_error(py, &error))
    }
}
