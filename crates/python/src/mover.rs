//! `_native.Mover`: a mover's connection to the payload plane of its host.

use std::os::fd::{AsRawFd, IntoRawFd};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use broadleaf_net::Link;
use broadleaf_proto::control::{self, Role};
use broadleaf_proto::mover::{Flow, MoverCommand, MoverEvent, MoverRank};
use broadleaf_proto::{DecodeError, FrameKind};
use pyo3::prelude::*;

use crate::connect::{ConnectError, Connection, dial_local, handshake};
use crate::errors::link_error;
use crate::forks::Sockets;
use crate::payload::lock;

/// A command as Python sees it: its name, the flow, the fields of a new flow or the end of what is
/// ready, a descriptor.
type CommandTuple = (&'static str, u32, Vec<u64>, Option<i32>);

/// A mover's connection to the payload plane of its host.
#[pyclass(frozen, module = "broadleaf._native")]
pub struct Mover {
    /// Dropped before the descriptor is closed.
    _sockets: Arc<Sockets>,
    link: Mutex<Link>,
}

fn fields(flow: &Flow) -> Vec<u64> {
    vec![
        u64::from(flow.peer),
        u64::from(flow.tag),
        u64::from(flow.piece_bytes),
        flow.segment_offset_bytes,
        flow.len_bytes,
        flow.from_bytes,
    ]
}

#[pymethods]
impl Mover {
    #[new]
    fn new(py: Python<'_>, connection: &str, world: u64, rank: u32) -> PyResult<Self> {
        let connection = Connection::parse(connection)?;
        let hello = connection.hello(py, Role::Mover(MoverRank { world, rank }));
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

    /// The next command, or `None` when none is complete yet.
    fn next_command(&self, py: Python<'_>) -> PyResult<Option<CommandTuple>> {
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
        if frame.kind != FrameKind::MoverCommand {
            let error = DecodeError::UnknownKind(frame.kind as u8);
            return Err(link_error(py, &error.into()));
        }
        let command: MoverCommand =
            control::decode(&frame.body).map_err(|error| link_error(py, &error.into()))?;
        let fd = frame.fds.into_iter().next().map(IntoRawFd::into_raw_fd);
        Ok(Some(match command {
            MoverCommand::Receive(flow) => ("receive", flow.flow, fields(&flow), fd),
            MoverCommand::Send(flow) => ("send", flow.flow, fields(&flow), fd),
            MoverCommand::Ready { flow, end_bytes } => ("ready", flow, vec![end_bytes], fd),
            MoverCommand::Stop { flow } => ("stop", flow, Vec::new(), fd),
            MoverCommand::Abandon { flow } => ("abandon", flow, Vec::new(), fd),
        }))
    }

    fn moved(&self, py: Python<'_>, flow: u32, end_bytes: u64) -> PyResult<()> {
        self.send(py, &MoverEvent::Moved { flow, end_bytes })
    }

    fn ended(&self, py: Python<'_>, flow: u32) -> PyResult<()> {
        self.send(py, &MoverEvent::Ended { flow })
    }

    /// Writes what is waiting; true when nothing is left.
    fn flush(&self, py: Python<'_>) -> PyResult<bool> {
        let flushed = lock(&self.link).flush();
        flushed.map_err(|error| link_error(py, &error))
    }
}

impl Mover {
    fn send(&self, py: Python<'_>, event: &MoverEvent) -> PyResult<()> {
        let sent = lock(&self.link).send(FrameKind::MoverEvent, &control::encode(event), &[]);
        sent.map_err(|error| link_error(py, &error))
    }
}
