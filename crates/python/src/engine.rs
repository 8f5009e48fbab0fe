//! `_native.Engine`: receives tasks, runs them on Python's main thread, sends what came of them.

mod call;
mod outgoing;

use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use broadleaf_net::LinkError;
use broadleaf_proto::control::{self, EngineCommand, Role};
use broadleaf_proto::task::{AssignRecord, DoneRecord, FunctionRecord, OutputRecord};
use broadleaf_proto::wire::Reader;
use broadleaf_proto::{DecodeError, EngineId, FrameKind, Payload, Status, TaskKey};
use broadleaf_shm::ClaimBoard;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use rustc_hash::FxHashMap;
use rustix::event::{PollFd, PollFlags};
use rustix::time::Timespec;

use self::outgoing::Io;
use crate::buffer::address_of;
use crate::client::{split_announce, wall_ns};
use crate::connect::{ConnectError, Connection, dial_local, handshake};
use crate::errors::link_error;
use crate::payload::{DataPlane, Encoded, lock};

/// A function as this engine has it.
enum Function {
    Unloaded(bytes::Bytes),
    Loaded(Py<PyAny>),
    Failed(Py<PyAny>),
}

struct Work {
    tasks: VecDeque<AssignRecord>,
    functions: FxHashMap<u32, Function>,
    stop: bool,
}

/// An engine's connection to its node.
#[pyclass(frozen, module = "broadleaf._native")]
pub struct Engine {
    io: Arc<Io>,
    poll_fd: OwnedFd,
    board: ClaimBoard,
    hooks: Py<PyAny>,
    id: EngineId,
    uuid: String,
    current: AtomicU64,
    output_held: AtomicBool,
    work: Mutex<Work>,
}

const NO_TASK: u64 = u64::MAX;
/// Time without work after which what was dropped is unmapped: the other engines of a broadcast run first.
const UNMAP_AFTER: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 10_000_000,
};

impl Engine {
    /// Takes in what has arrived; whether anything had.
    fn read(&self) -> Result<bool, LinkError> {
        let received_bytes = lock(&self.io.link).fill()?;
        self.take_frames()?;
        Ok(received_bytes > 0)
    }

    /// Takes in what has been received. The first frames may have come together with the welcome.
    fn take_frames(&self) -> Result<(), LinkError> {
        let mut frames = Vec::new();
        {
            let mut link = lock(&self.io.link);
            while let Some(frame) = link.next_frame()? {
                frames.push(frame);
            }
        }
        let mut work = lock(&self.work);
        for frame in frames {
            let mut reader = Reader::new(frame.body.clone());
            match frame.kind {
                FrameKind::Assign => {
                    while !reader.is_empty() {
                        let mut record = AssignRecord::decode(&mut reader)?;
                        self.io.data.adopt(&mut record.payload);
                        work.tasks.push_back(record);
                    }
                }
                FrameKind::Function => {
                    while !reader.is_empty() {
                        let record = FunctionRecord::decode(&mut reader)?;
                        work.functions
                            .insert(record.function.0, Function::Unloaded(record.body));
                    }
                }
                FrameKind::SegmentAnnounce => {
                    self.io
                        .data
                        .on_announce(control::decode(&frame.body)?, frame.fds);
                }
                FrameKind::SegmentRelease => {
                    self.io.data.on_release(&control::decode(&frame.body)?);
                }
                FrameKind::EngineCommand => {
                    let EngineCommand::Stop = control::decode(&frame.body)?;
                    work.stop = true;
                }
                kind => return Err(DecodeError::UnknownKind(kind as u8).into()),
            }
        }
        Ok(())
    }

    /// Runs one claimed task; its outcome is queued for sending.
    fn run_task(&self, py: Python<'_>, task: AssignRecord) -> Result<(), LinkError> {
        self.current.store(task.key.0, Ordering::Release);
        let started_ns = wall_ns();
        let outcome = self
            .call(py, &task)
            .and_then(|value| self.encode_value(&value));
        // An interrupt meant for this task ends with it.
        self.board.finish();
        let completed_ns = wall_ns();
        let (status, mut encoded) = match outcome {
            Ok(encoded) => (Status::Ok, encoded),
            Err(error) => self.encode_error(py, &error),
        };
        if self.output_held.swap(false, Ordering::AcqRel)
            && let Err(error) = self
                .hooks
                .bind(py)
                .call_method0(intern!(py, "flush_output"))
        {
            error.write_unraisable(py, None);
        }
        self.current.store(NO_TASK, Ordering::Release);
        let key = task.key;
        // The arguments' segments are given back before the reply leaves, so that both travel together.
        drop(task);
        self.queue_done(key, status, (started_ns, completed_ns), &mut encoded)
    }

    fn queue_done(
        &self,
        key: TaskKey,
        status: Status,
        (started_ns, completed_ns): (u64, u64),
        encoded: &mut Encoded,
    ) -> Result<(), LinkError> {
        let announcements = split_announce(encoded);
        let payload = Payload {
            bytes: std::mem::take(&mut encoded.bytes).into(),
            segments: std::mem::take(&mut encoded.segments),
            lease: None,
        };
        let record = DoneRecord {
            key,
            status,
            started_ns,
            completed_ns,
            payload,
        };
        let queued_bytes = {
            let mut link = lock(&self.io.link);
            for (body, fds) in announcements {
                let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
                link.send(FrameKind::SegmentAnnounce, &body, &fds)?;
            }
            link.append(FrameKind::Done, |frame| record.encode(frame));
            link.queued_bytes()
        };
        let more = !lock(&self.work).tasks.is_empty();
        self.io
            .on_reply(queued_bytes, completed_ns.saturating_sub(started_ns), more)
    }

    /// Waits for something to do; `false` if there was nothing for that long.
    fn wait(&self, for_write: bool, longest: Option<&Timespec>) -> bool {
        let flags = if for_write {
            PollFlags::IN | PollFlags::OUT
        } else {
            PollFlags::IN
        };
        // An interruption by a signal is a reason to look around, no failure.
        rustix::event::poll(&mut [PollFd::new(&self.poll_fd, flags)], longest) != Ok(0)
    }

    fn serve(&self, py: Python<'_>) -> PyResult<Result<(), LinkError>> {
        if let Err(error) = self.take_frames() {
            return Ok(Err(error));
        }
        loop {
            let next = lock(&self.work).tasks.pop_front();
            let received = self.io.data.received();
            if let Some(task) = next {
                drop(received.take_retired());
                self.io.before_user_code();
                if self.board.claim(task.offer)
                    && let Err(error) = self.run_task(py, task)
                {
                    return Ok(Err(error));
                }
                continue;
            }
            if lock(&self.work).stop {
                return Ok(self.io.flush().map(drop));
            }
            let flushed = match self.io.flush() {
                Ok(flushed) => flushed,
                Err(error) => return Ok(Err(error)),
            };
            // With tasks on their way there is something to read already, and nothing to wait for.
            match self.read() {
                Ok(true) if flushed => continue,
                Ok(_) => {}
                Err(error) => return Ok(Err(error)),
            }
            let longest = received.has_retired().then_some(&UNMAP_AFTER);
            if !py.detach(|| self.wait(!flushed, longest)) {
                drop(received.take_retired());
            }
            py.check_signals()?;
        }
    }
}

#[pymethods]
impl Engine {
    #[new]
    fn new(
        py: Python<'_>,
        connection: &str,
        engine_id: Option<u32>,
        hooks: Py<PyAny>,
    ) -> PyResult<Self> {
        let connection = Connection::parse(connection)?;
        let role = Role::Engine {
            engine: engine_id.map(EngineId),
            pid: std::process::id(),
        };
        let hello = connection.hello(py, role);
        let (board, board_fd) = ClaimBoard::create()
            .map_err(|e| pyo3::exceptions::PyMemoryError::new_err(e.to_string()))?;
        let deadline = Instant::now() + Duration::from_secs(30);
        let (link, welcome, _) = py
            .detach(|| -> Result<_, ConnectError> {
                handshake(
                    dial_local(&connection)?,
                    &hello,
                    &[board_fd.as_fd()],
                    deadline,
                )
            })
            .map_err(|error| error.into_py(py))?;
        let data = DataPlane::new(
            welcome.segment_token,
            connection.inline_limit_bytes(true),
            connection.options.pool_max_bytes,
        );
        let poll_fd = link.as_fd().try_clone_to_owned()?;
        let io = Arc::new(Io {
            link: Mutex::new(link),
            unflushed_since_ns: AtomicU64::new(0),
            flusher_asleep: AtomicBool::new(false),
            flusher: (Mutex::new(()), Condvar::new()),
            closed: AtomicBool::new(false),
            epoch: Instant::now(),
            data,
            flush_after: Duration::from_micros(connection.options.engine_flush_us),
            flush_bytes: connection.options.engine_flush_bytes,
        });
        let uuid = welcome
            .engines
            .first()
            .map(|e| e.uuid.clone())
            .unwrap_or_default();
        Ok(Self {
            io,
            poll_fd,
            board,
            hooks,
            id: welcome.engine,
            uuid,
            current: AtomicU64::new(NO_TASK),
            output_held: AtomicBool::new(false),
            work: Mutex::new(Work {
                tasks: VecDeque::new(),
                functions: FxHashMap::default(),
                stop: false,
            }),
        })
    }

    #[getter]
    fn engine_id(&self) -> u32 {
        self.id.0
    }

    #[getter]
    fn uuid(&self) -> &str {
        &self.uuid
    }

    fn run(&self, py: Python<'_>) -> PyResult<()> {
        let io = Arc::clone(&self.io);
        let flusher = std::thread::Builder::new()
            .name("broadleaf-flush".to_owned())
            .spawn(move || io.run_flusher())?;
        let result = self.serve(py);
        self.io.closed.store(true, Ordering::Release);
        self.io.flusher.1.notify_one();
        drop(flusher);
        match result? {
            Ok(()) => Ok(()),
            Err(error) if error.is_closed() => Ok(()),
            Err(error) => Err(link_error(py, &error)),
        }
    }

    fn current_task(&self) -> Option<u64> {
        Some(self.current.load(Ordering::Acquire)).filter(|key| *key != NO_TASK)
    }

    #[getter]
    fn get_output_held(&self) -> bool {
        self.output_held.load(Ordering::Acquire)
    }

    #[setter]
    fn set_output_held(&self, held: bool) {
        self.output_held.store(held, Ordering::Release);
    }

    fn counters<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let dict = PyDict::new(py);
        crate::pool_counters_into(&dict, &self.io.data.counters())?;
        Ok(dict)
    }

    /// Shows the bytes received as `source` in the place of `destination`, without a copy.
    fn replace(&self, destination: &Bound<'_, PyAny>, source: &Bound<'_, PyAny>) -> PyResult<bool> {
        let (to, len_bytes) = address_of(destination)?;
        let (from, source_bytes) = address_of(source)?;
        Ok(len_bytes == source_bytes && self.io.data.replace(to, from, len_bytes))
    }

    /// Large received buffers that the running task drops from here on are unmapped after its reply.
    fn retire_buffers(&self) {
        self.io.data.received().retire();
    }

    fn interrupt_pending(&self) -> bool {
        self.board.take_interrupt()
    }

    fn send_output(&self, py: Python<'_>, stream: u8, data: &[u8]) -> PyResult<()> {
        let Some(task) = self.current_task() else {
            return Ok(());
        };
        let record = OutputRecord {
            task,
            engine: self.id,
            stream,
            bytes: bytes::Bytes::copy_from_slice(data),
        };
        let queued_bytes = {
            let mut link = lock(&self.io.link);
            link.append(FrameKind::Output, |frame| record.encode(frame));
            link.queued_bytes()
        };
        self.io
            .on_output(queued_bytes)
            .map_err(|error| link_error(py, &error))
    }
}
