//! `_native.Engine`: receives tasks, runs them on Python's main thread, and sends their outcomes.

mod call;
mod child;
mod lane;
mod log;
mod nested;
mod outgoing;
mod output;
mod processor;
mod surroundings;
mod unfit;
mod wakeups;

use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use broadleaf_engine::{
    Batching, Flushing, LastTask, Look, Next, Stack, Stream, Turns, Work, longest_sleep_ns,
};
use broadleaf_net::LinkError;
use broadleaf_proto::control::{self, Role};
use broadleaf_proto::engine::EngineCommand;
use broadleaf_proto::limits::MAX_INLINE_PAYLOAD_BYTES;
use broadleaf_proto::task::{AssignRecord, FunctionRecord, PREPARATION};
use broadleaf_proto::wire::Reader;
use broadleaf_proto::{DecodeError, EngineId, FrameKind};
use broadleaf_shm::{ClaimBoard, ShmError, UnsentOutput, raise_descriptor_limit};
use pyo3::exceptions::{PyMemoryError, PyOSError, PyRuntimeError, PyValueError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};
use rustc_hash::FxHashMap;
use rustix::time::Timespec;

use self::lane::EngineLane;
use self::nested::STACK;
use self::outgoing::{Alarm, Io};
use self::output::{Captured, Output};
use self::processor::Processor;
use self::surroundings::Surroundings;
use self::wakeups::Wakeups;
use crate::buffer::address_of;
use crate::clock::follow_steps;
use crate::errors::link_error;
use crate::forks::{Owner, Sockets};
use crate::held_key::become_engine;
use crate::node::connect::{ConnectError, Connection, dial_local, handshake};
use crate::payload::{DataPlane, lock};

pub use self::nested::{checked_depth, engine_to_free, submitted_depth};

/// A function on this engine.
enum Function {
    Unloaded(bytes::Bytes),
    Loaded(Py<PyAny>),
}

/// A thread that waits to be told what to do. It ends if it never is.
struct Standby(SyncSender<Box<dyn FnOnce() + Send>>);

impl Standby {
    fn start(name: &str) -> PyResult<Self> {
        let (sender, receiver) = sync_channel::<Box<dyn FnOnce() + Send>>(1);
        let thread = std::thread::Builder::new().name(name.to_owned());
        let started = thread.spawn(move || {
            if let Ok(work) = receiver.recv() {
                work();
            }
        });
        match started {
            Ok(_) => Ok(Self(sender)),
            Err(error) => Err(PyOSError::new_err(format!(
                "cannot start the engine's threads: {error}; raise the limit on your processes and threads \
                 (`ulimit -u`), or start fewer engines"
            ))),
        }
    }

    fn begin(self, work: impl FnOnce() + Send + 'static) {
        // It is there: it waits for this.
        let _ = self.0.send(Box::new(work));
    }
}

/// An engine's threads besides its main one. They are started before it joins its cluster, where an engine that then
/// failed would count as one that had been there.
struct Threads {
    flusher: Standby,
    output: Standby,
    wakeups: Standby,
}

impl Threads {
    fn start() -> PyResult<Self> {
        Ok(Self {
            flusher: Standby::start("broadleaf-flush")?,
            output: Standby::start("broadleaf-output")?,
            wakeups: Standby::start("broadleaf-wake")?,
        })
    }
}

/// An engine's connection to its node.
#[pyclass(frozen, module = "broadleaf._native")]
pub struct Engine {
    /// Dropped before the descriptors are closed.
    _sockets: Arc<Sockets>,
    owner: Owner,
    io: Arc<Io>,
    poll_fd: OwnedFd,
    lane: EngineLane,
    board: ClaimBoard,
    hooks: Py<PyAny>,
    id: EngineId,
    uuid: String,
    cluster_id: String,
    output: Arc<Output>,
    wakeups: Arc<Wakeups>,
    /// Until it runs.
    threads: Mutex<Option<Threads>>,
    stack: &'static Stack,
    surroundings: Surroundings,
    processor: Processor,
    /// Why it cannot run tasks any more.
    unfit: OnceLock<String>,
    last_task: LastTask,
    work: Mutex<Work>,
    functions: Mutex<FxHashMap<u32, Function>>,
}

/// For a system call.
fn timespec(ns: u64) -> Timespec {
    Timespec {
        tv_sec: (ns / 1_000_000_000) as i64,
        tv_nsec: (ns % 1_000_000_000) as i64,
    }
}

impl Engine {
    /// Handles what has arrived; returns whether anything had.
    fn read(&self) -> Result<bool, LinkError> {
        let received_bytes = lock(&self.io.link).fill()?;
        Ok(self.take_frames()? || received_bytes > 0)
    }

    /// Handles what has been received and what is on the lane, in the order in which it was sent; returns whether there
    /// was any. The first frames may have arrived together with the welcome.
    fn take_frames(&self) -> Result<bool, LinkError> {
        let mut frames = Vec::new();
        let mut letter = None;
        {
            let mut link = lock(&self.io.link);
            // Looked at after the frames were received: whatever was sent before one of them is there.
            let mut position = self.board.place().task_position();
            loop {
                if position.is_some_and(|position| position <= link.frames_taken()) {
                    position = None;
                    letter = Some(frames.len());
                }
                let Some(frame) = link.next_frame()? else {
                    break;
                };
                frames.push(frame);
            }
        }
        let mut work = lock(&self.work);
        let n_frames = frames.len();
        for (index, frame) in frames.into_iter().enumerate() {
            if letter == Some(index) {
                self.take_letter(&mut work)?;
            }
            let mut reader = Reader::new(frame.body.clone());
            match frame.kind {
                FrameKind::Assign => {
                    while !reader.is_empty() {
                        let mut record = AssignRecord::decode(&mut reader)?;
                        self.io.data.adopt(&mut record.payload);
                        work.push(record);
                    }
                }
                FrameKind::Function => {
                    while !reader.is_empty() {
                        let record = FunctionRecord::decode(&mut reader)?;
                        if record.body.first() == Some(&PREPARATION) {
                            work.prepare(record.body.slice(1..));
                            continue;
                        }
                        let unloaded = Function::Unloaded(record.body);
                        lock(&self.functions).insert(record.function.0, unloaded);
                    }
                }
                FrameKind::SegmentAnnounce => {
                    self.io
                        .data
                        .on_announce(control::decode(&frame.body)?, frame.fds);
                }
                FrameKind::SegmentRelease => {
                    self.io.data.on_release(&control::decode(&frame.body)?);
                    self.io.on_segments_released();
                }
                FrameKind::EngineCommand => {
                    let EngineCommand::Stop = control::decode(&frame.body)?;
                    work.stop();
                }
                kind => return Err(DecodeError::UnknownKind(kind as u8).into()),
            }
        }
        if letter == Some(n_frames) {
            self.take_letter(&mut work)?;
        }
        Ok(n_frames > 0 || letter.is_some())
    }

    /// Whether a task is expected to be short.
    fn is_short(&self, task: &AssignRecord) -> bool {
        let expected_ns = self.last_task.expected_ns(task.function);
        self.io.flushing.is_short(expected_ns)
    }

    /// Claims a task at the current level.
    fn claim(&self, task: &AssignRecord) -> Result<bool, LinkError> {
        let is_won = self.board.claim(self.stack.level(), task.offer);
        if !is_won {
            self.count_answer(task.key)?;
        }
        Ok(is_won)
    }

    /// Runs preparations. A failure goes to the log: tasks that need the preparation say what they lack.
    fn prepare(&self, py: Python<'_>, preparations: VecDeque<bytes::Bytes>) {
        self.io.before_user_code(false);
        for content in preparations {
            let hooks = self.hooks.bind(py);
            let content = PyBytes::new(py, &content);
            let prepared = hooks.call_method1(intern!(py, "prepare"), (content,));
            self.end_child(py, prepared.as_ref().err());
            if let Err(error) = prepared {
                error.write_unraisable(py, Some(hooks));
            }
        }
        self.settle(py);
    }

    fn serve(&self, py: Python<'_>) -> PyResult<Result<(), LinkError>> {
        if let Err(error) = self.take_frames() {
            return Ok(Err(error));
        }
        let mut turns = Turns::default();
        loop {
            let next = lock(&self.work).next_step();
            let received = self.io.data.received();
            match next {
                Next::Prepare(preparations) => {
                    self.prepare(py, preparations);
                    continue;
                }
                Next::Run(task) => {
                    turns.on_run();
                    drop(received.take_retired());
                    self.io.before_user_code(self.is_short(&task));
                    // A SIGINT that came before a task is not the task's, although a task in C would act on it.
                    py.check_signals()?;
                    let ran = match self.claim(&task) {
                        Ok(true) => self.run_task(py, task),
                        lost => lost.map(drop),
                    };
                    if let Err(error) = ran {
                        self.check_fit()?;
                        return Ok(Err(error));
                    }
                    continue;
                }
                Next::Stop => return Ok(self.io.flush().map(drop)),
                Next::Nothing => {}
            }
            let flushed = match self.io.flush() {
                Ok(flushed) => flushed,
                Err(error) => return Ok(Err(error)),
            };
            let looked = match turns.look() {
                Look::Nowhere => Ok(false),
                Look::Everywhere => self.read(),
                Look::Lane => self.take_frames(),
            };
            match looked {
                Ok(true) if flushed => continue,
                Ok(_) => {}
                Err(error) => return Ok(Err(error)),
            }
            let longest_ns = longest_sleep_ns(received.has_retired(), self.io.data.needs_trim());
            let longest = longest_ns.map(timespec);
            let for_write = (!flushed).then_some(&self.poll_fd);
            let arrived = py.detach(|| self.lane.wait(for_write, longest.as_ref()));
            turns.on_slept(arrived);
            if arrived.is_none() {
                drop(received.take_retired());
            }
            follow_steps();
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
        captured: Option<Captured>,
    ) -> PyResult<Self> {
        raise_descriptor_limit();
        let threads = Threads::start()?;
        let connection = Connection::parse(connection)?;
        let role = Role::Engine {
            engine: engine_id.map(EngineId),
            pid: std::process::id(),
        };
        let hello = connection.hello(py, role);
        let out_of_memory = |error: ShmError| PyMemoryError::new_err(error.to_string());
        let (board, board_fd) = ClaimBoard::create().map_err(out_of_memory)?;
        let unsent = UnsentOutput::of_engine(&board_fd).map_err(out_of_memory)?;
        let deadline = Instant::now() + Duration::from_secs(30);
        let (link, welcome, lane) = py
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
            connection.large_buffers(true),
            &connection.options,
        );
        let poll_fd = link.as_fd().try_clone_to_owned()?;
        let lane = EngineLane::new(lane, &poll_fd)?;
        let wakeups = Wakeups::new()?;
        let sockets = Sockets::register(py, &[link.as_fd(), poll_fd.as_fd(), wakeups.write_end()]);
        let io = Arc::new(Io {
            link: Mutex::new(link),
            flushing: Flushing::new(Batching {
                delay_ns: connection.options.engine_flush_us * 1000,
                max_bytes: connection.options.engine_flush_bytes,
            }),
            alarm: Alarm::default(),
            closed: AtomicBool::new(false),
            data,
        });
        let uuid = welcome
            .engines
            .first()
            .map(|e| e.uuid.clone())
            .unwrap_or_default();
        become_engine();
        let output = Output::new(Arc::clone(&io), welcome.engine, &STACK, captured, unsent)?;
        Ok(Self {
            _sockets: sockets,
            owner: Owner::this(),
            io,
            poll_fd,
            lane,
            board,
            hooks,
            id: welcome.engine,
            uuid,
            cluster_id: connection.cluster_id,
            output: Arc::new(output),
            wakeups,
            threads: Mutex::new(Some(threads)),
            stack: &STACK,
            surroundings: Surroundings::default(),
            processor: Processor::default(),
            unfit: OnceLock::new(),
            last_task: LastTask::default(),
            work: Mutex::new(Work::default()),
            functions: Mutex::new(FxHashMap::default()),
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

    fn run(slf: &Bound<'_, Self>) -> PyResult<()> {
        let (py, this) = (slf.py(), slf.get());
        let io = Arc::clone(&this.io);
        let output = Arc::clone(&this.output);
        let wakeups = Arc::clone(&this.wakeups);
        let Some(threads) = lock(&this.threads).take() else {
            return Err(PyRuntimeError::new_err("an engine runs once"));
        };
        threads.flusher.begin(move || io.run_flusher());
        // It continues after this loop: exit handlers print too.
        threads.output.begin(move || output.run_reader());
        threads.wakeups.begin(move || wakeups.run());
        Self::set_thread(Some(slf.clone().unbind()));
        this.settle(py);
        let result = this.serve(py);
        Self::set_thread(None);
        this.io.close();
        match result? {
            Ok(()) => Ok(()),
            Err(error) if error.is_closed() => Ok(()),
            Err(error) => Err(link_error(py, &error)),
        }
    }

    /// Passed to `EngineHooks.run_nested`.
    fn run_next(&self, py: Python<'_>) -> PyResult<()> {
        self.run_chosen(py).map_err(|error| link_error(py, &error))
    }

    fn current_task(&self) -> Option<u64> {
        self.stack.task().map(|task| task.0)
    }

    /// Called when the level of a logger has been set.
    fn note_level(&self) {
        self.on_new_level();
    }

    fn counters<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let dict = PyDict::new(py);
        crate::pool_counters_into(&dict, &self.io.data.counters())?;
        Ok(dict)
    }

    /// Maps the bytes received as `source` over `destination`, without a copy.
    fn replace(&self, destination: &Bound<'_, PyAny>, source: &Bound<'_, PyAny>) -> PyResult<bool> {
        let (to, len_bytes) = address_of(destination)?;
        let (from, source_bytes) = address_of(source)?;
        Ok(!self.owner.is_elsewhere()
            && len_bytes == source_bytes
            && self.io.data.replace(to, from, len_bytes))
    }

    /// Large received buffers that the running task drops from here on are unmapped after its reply.
    fn retire_buffers(&self) {
        if self.owner.is_elsewhere() {
            return;
        }
        self.io.data.received().retire();
    }

    fn interrupt_pending(&self) -> bool {
        // Only the sender of a signal to a child knows its purpose.
        if self.owner.is_elsewhere() {
            return true;
        }
        self.board.take_interrupt(self.stack.level())
    }

    fn is_interrupt_requested(&self) -> bool {
        self.owner.is_elsewhere() || self.board.is_interrupt_requested(self.stack.level())
    }

    fn wakeup_fd(&self) -> i32 {
        self.wakeups.number()
    }

    fn on_interrupted(&self) {
        self.wakeups.on_acted();
    }

    /// Accepts what Python writes to a stream, 1 or 2.
    fn write_output(&self, py: Python<'_>, stream: u8, data: &[u8]) -> PyResult<()> {
        let Some(stream) = Stream::of(stream) else {
            return Err(PyValueError::new_err("no such stream"));
        };
        if self.owner.is_elsewhere() {
            return Ok(());
        }
        let written = self.output.write(stream, data);
        self.after_output(py, written)
    }

    /// Sends the unfinished line of a stream, 1 or 2, or of both, and everything queued: flushed output is not lost
    /// when the process dies.
    #[pyo3(signature = (stream=None))]
    fn flush_output(&self, py: Python<'_>, stream: Option<u8>) {
        if self.owner.is_elsewhere() {
            return;
        }
        self.output.flush(stream.and_then(Stream::of));
        // The next use of the link notices if it has ended.
        let _ = py.detach(|| self.io.drain());
    }

    /// Sends a pickled message of the running task.
    fn send_message(&self, py: Python<'_>, data: &[u8]) -> PyResult<()> {
        if data.len() > MAX_INLINE_PAYLOAD_BYTES {
            return Err(PyValueError::new_err(format!(
                "a message of {} bytes is too long to be published: at most {MAX_INLINE_PAYLOAD_BYTES} bytes are sent. \
                 Return large data as the task's value",
                data.len()
            )));
        }
        if self.owner.is_elsewhere() {
            return Ok(());
        }
        let sent = self.output.send_message(data);
        self.after_output(py, sent)
    }
}

impl Engine {
    fn after_output(&self, py: Python<'_>, written: Result<(), LinkError>) -> PyResult<()> {
        written
            .and_then(|()| {
                if self.output.has_room() {
                    return Ok(());
                }
                py.detach(|| self.output.await_room())
            })
            .map_err(|error| link_error(py, &error))
    }
}
