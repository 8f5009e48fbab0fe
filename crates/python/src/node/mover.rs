//! `_native.Mover`: a mover's connection to the payload plane of its host.

use std::os::fd::IntoRawFd;

use broadleaf_proto::FrameKind;
use broadleaf_proto::control::Role;
use broadleaf_proto::mover::{Flow, MoverCommand, MoverEvent, MoverRank};
use pyo3::prelude::*;

use crate::node::node_link::NodeLink;

/// A command as Python sees it: its name, the flow, the fields of a new flow or the end of what is
/// ready, a descriptor.
type CommandTuple = (&'static str, u32, Vec<u64>, Option<i32>);

/// A mover's connection to the payload plane of its host.
#[pyclass(frozen, module = "broadleaf._native")]
pub struct Mover(NodeLink);

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
        let role = Role::Mover(MoverRank { world, rank });
        NodeLink::connect(py, connection, role).map(Self)
    }

    fn fileno(&self) -> i32 {
        self.0.fileno()
    }

    /// The next command, or `None` when none is complete yet.
    fn next_command(&self, py: Python<'_>) -> PyResult<Option<CommandTuple>> {
        let next = self.0.next_command(py, FrameKind::MoverCommand)?;
        Ok(next.map(|(command, fd)| {
            let fd = fd.map(IntoRawFd::into_raw_fd);
            match command {
                MoverCommand::Receive(flow) => ("receive", flow.flow, fields(&flow), fd),
                MoverCommand::Send(flow) => ("send", flow.flow, fields(&flow), fd),
                MoverCommand::Ready { flow, end_bytes } => ("ready", flow, vec![end_bytes], fd),
                MoverCommand::Stop { flow } => ("stop", flow, Vec::new(), fd),
                MoverCommand::Abandon { flow } => ("abandon", flow, Vec::new(), fd),
            }
        }))
    }

    fn moved(&self, py: Python<'_>, flow: u32, end_bytes: u64) -> PyResult<()> {
        let event = MoverEvent::Moved { flow, end_bytes };
        self.0.send(py, FrameKind::MoverEvent, &event)
    }

    fn ended(&self, py: Python<'_>, flow: u32) -> PyResult<()> {
        let event = MoverEvent::Ended { flow };
        self.0.send(py, FrameKind::MoverEvent, &event)
    }

    /// Writes what is waiting; true when nothing is left.
    fn flush(&self, py: Python<'_>) -> PyResult<bool> {
        self.0.flush(py)
    }
}
