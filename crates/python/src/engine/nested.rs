//! Tasks that wait for tasks. While the task that runs waits for results of its own cluster on the engine's main
//! thread, the engine runs others in the middle of it: those nested deeper, which the controller sends once it is told.

use std::cell::RefCell;
use std::os::fd::AsFd;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicUsize, Ordering};
use std::time::Instant;

use broadleaf_net::LinkError;
use broadleaf_proto::control;
use broadleaf_proto::engine::EngineEvent;
use broadleaf_proto::limits::MAX_NESTING;
use broadleaf_proto::task::AssignRecord;
use broadleaf_proto::{FrameKind, TaskKey};
use broadleaf_shm::ClaimBoard;
use pyo3::exceptions::{PyKeyboardInterrupt, PyRecursionError};
use pyo3::intern;
use pyo3::prelude::*;
use rustix::event::{PollFd, PollFlags};

use super::{Engine, Work};
use crate::client::{Incoming, Link, Step, Waiting};
use crate::errors::{link_closed, link_error};
use crate::payload::lock;

/// The depth of tasks that this process submits: 0 if no task is running.
static SUBMITTED_DEPTH: AtomicU16 = AtomicU16::new(0);

thread_local! {
    /// The engine that runs its tasks on this thread.
    static ENGINE: RefCell<Option<Py<Engine>>> = const { RefCell::new(None) };
}

/// The depth of a task submitted now: 0 outside tasks.
pub fn submitted_depth() -> u16 {
    SUBMITTED_DEPTH.load(Ordering::Relaxed)
}

/// The same, for a submission.
///
/// # Errors
/// `RecursionError` if that is deeper than allowed.
pub fn checked_depth() -> PyResult<u16> {
    let depth = submitted_depth();
    if depth <= MAX_NESTING {
        return Ok(depth);
    }
    Err(PyRecursionError::new_err(format!(
        "tasks are nested {depth} deep here, and cannot be nested deeper: a task submits a task, which submits a task, \
         and so on; call the function itself instead of submitting it"
    )))
}

/// The engine whose task runs on this thread, if waiting for results of `link` lets it run others.
pub fn engine_to_free(py: Python<'_>, link: &Link) -> Option<Py<Engine>> {
    let engine = ENGINE.with_borrow(|engine| {
        let engine = engine.as_ref()?;
        // A child that a task forked is not an engine.
        (!engine.get().owner.is_elsewhere()).then(|| engine.clone_ref(py))
    })?;
    let runs_task = engine.get().output.task().is_some();
    (runs_task && link.cluster_id() == engine.get().cluster_id).then_some(engine)
}

/// What the engine knows about the tasks it has begun.
#[derive(Debug, Default)]
pub struct Stack {
    /// The running task's level on the claim board.
    level: AtomicUsize,
    /// Whether the controller has been told that this task waits.
    waits: AtomicBool,
    /// The task to run on top of it.
    next: Mutex<Option<AssignRecord>>,
}

impl Stack {
    /// The level of the running task.
    pub(super) fn level(&self) -> usize {
        self.level.load(Ordering::Acquire)
    }
}

/// The state of a task while another runs on top of it.
pub struct Outer {
    key: Option<u64>,
    depth: u16,
    waits: bool,
}

impl Work {
    /// Queues an offered task.
    pub(super) fn push(&mut self, task: AssignRecord) {
        self.n_nested += usize::from(task.depth > 0);
        self.tasks.push_back(task);
    }

    /// The oldest task.
    pub(super) fn pop(&mut self) -> Option<AssignRecord> {
        let task = self.tasks.pop_front()?;
        self.n_nested -= usize::from(task.depth > 0);
        Some(task)
    }

    /// Queues a task again that was not started.
    fn put_back(&mut self, task: AssignRecord) {
        self.n_nested += usize::from(task.depth > 0);
        self.tasks.push_front(task);
    }

    /// The oldest task that is nested deeper than this.
    fn pop_deeper(&mut self, depth: u16) -> Option<AssignRecord> {
        if self.n_nested == 0 {
            return None;
        }
        let index = self.tasks.iter().position(|task| task.depth > depth)?;
        self.n_nested -= 1;
        self.tasks.remove(index)
    }

    /// Forgets tasks that were taken back.
    fn drop_revoked(&mut self, board: &ClaimBoard) {
        self.tasks.retain(|task| board.is_offered(task.offer));
        self.n_nested = self.tasks.iter().filter(|task| task.depth > 0).count();
    }
}

impl Engine {
    /// Sets or clears the calling thread's engine.
    pub(super) fn set_thread(engine: Option<Py<Self>>) {
        ENGINE.set(engine);
    }

    /// A claimed task begins; returns what `leave` needs.
    pub(super) fn enter(&self, task: &AssignRecord) -> Outer {
        // Only this thread writes them, so these are plain stores, which cost a tenth of an exchange.
        let outer = Outer {
            key: self.output.start_task(task.key.0),
            depth: SUBMITTED_DEPTH.load(Ordering::Relaxed),
            waits: self.stack.waits.load(Ordering::Relaxed),
        };
        SUBMITTED_DEPTH.store(task.depth + 1, Ordering::Release);
        self.stack.waits.store(false, Ordering::Release);
        outer
    }

    /// It has ended after `task_ns`: the previous task, if any, is the current one again.
    pub(super) fn leave(&self, outer: &Outer, task_ns: u64) {
        self.output.end_task(task_ns, outer.key);
        SUBMITTED_DEPTH.store(outer.depth, Ordering::Release);
        self.stack.waits.store(outer.waits, Ordering::Release);
    }

    /// Waits, within a task, until `is_done`, and runs tasks that are nested deeper meanwhile. `false` at the deadline,
    /// which a task that is running by then delays.
    pub fn wait_in_task(
        slf: &Bound<'_, Self>,
        link: &Link,
        deadline: Option<Instant>,
        is_done: &(dyn Fn() -> bool + Sync),
    ) -> PyResult<bool> {
        let (py, this) = (slf.py(), slf.get());
        let Some(key) = this.output.task().map(TaskKey) else {
            return Self::run_others_until(slf, link, deadline, is_done);
        };
        // A callback may wait in the middle of a wait of the same task.
        if this.stack.waits.swap(true, Ordering::AcqRel) {
            return Self::run_others_until(slf, link, deadline, is_done);
        }
        lock(&this.work).drop_revoked(&this.board);
        this.say(py, EngineEvent::WaitStarted(key))?;
        let ended = Self::run_others_until(slf, link, deadline, is_done);
        this.stack.waits.store(false, Ordering::Release);
        this.say(py, EngineEvent::WaitEnded(key))?;
        ended
    }

    fn say(&self, py: Python<'_>, event: EngineEvent) -> PyResult<()> {
        let said = lock(&self.io.link).send(FrameKind::EngineEvent, &control::encode(&event), &[]);
        said.and_then(|()| self.io.flush())
            .map(drop)
            .map_err(|error| link_error(py, &error))
    }

    fn run_others_until(
        slf: &Bound<'_, Self>,
        link: &Link,
        deadline: Option<Instant>,
        is_done: &(dyn Fn() -> bool + Sync),
    ) -> PyResult<bool> {
        let (py, this) = (slf.py(), slf.get());
        let level = this.stack.level();
        let depth = SUBMITTED_DEPTH.load(Ordering::Acquire) - 1;
        let _waiting = Waiting(&link.shared);
        loop {
            // An interrupt that arrived while another task ran: its signal was not for that one. It takes precedence
            // over what is waited for, which the other task may have produced.
            if this.board.take_interrupt(level) {
                return Err(PyKeyboardInterrupt::new_err(()));
            }
            if is_done() {
                return Ok(true);
            }
            if link.shared.is_closed() {
                return link.done_or(py, is_done, link_closed(py));
            }
            py.check_signals()?;
            let preparations = std::mem::take(&mut lock(&this.work).preparations);
            if !preparations.is_empty() {
                this.prepare(py, preparations);
            }
            let next = lock(&this.work).pop_deeper(depth);
            if let Some(task) = next {
                Self::run_nested(slf, task, level)?;
                continue;
            }
            let flushed = (this.io.flush()).map_err(|error| link_error(py, &error))?;
            if this.read().map_err(|error| link_error(py, &error))? {
                continue;
            }
            let (fd, flags) = if flushed {
                (this.lane.as_fd(), PollFlags::IN)
            } else {
                (this.poll_fd.as_fd(), PollFlags::IN | PollFlags::OUT)
            };
            let mut incoming = Incoming::default();
            let beside = PollFd::new(&fd, flags);
            let step = py.detach(|| {
                (link.shared).wait_step_beside(deadline, is_done, &mut incoming, beside)
            });
            this.hear_bell().map_err(|error| link_error(py, &error))?;
            (link.shared).tell_amid_wait(py, &link.hooks, incoming);
            if step == Step::TimedOut && !is_done() {
                return Ok(false);
            }
        }
    }

    /// Runs a task in the middle of the one at `level`.
    fn run_nested(slf: &Bound<'_, Self>, task: AssignRecord, level: usize) -> PyResult<()> {
        let (py, this) = (slf.py(), slf.get());
        // The board has a level for each possible depth, and depths grow along the stack.
        if level + 1 >= ClaimBoard::LEVELS {
            return Err(PyRecursionError::new_err(
                "too many tasks wait on this engine",
            ));
        }
        drop(this.io.data.received().take_retired());
        // What the task below has written so far belongs to it.
        this.output.collect();
        this.io.before_user_code(false);
        *lock(&this.stack.next) = Some(task);
        // From here on no interrupt is meant for the task below.
        this.stack.level.store(level + 1, Ordering::Release);
        let run = slf.getattr(intern!(py, "run_next"));
        let ran = run.and_then(|run| {
            this.hooks
                .bind(py)
                .call_method1(intern!(py, "run_nested"), (run,))
        });
        this.stack.level.store(level, Ordering::Release);
        let left = lock(&this.stack.next).take();
        if let Some(task) = left {
            lock(&this.work).put_back(task);
        }
        ran.map(drop)
    }

    /// Runs the task that `run_nested` has chosen, unless it was taken back.
    pub(super) fn run_chosen(&self, py: Python<'_>) -> Result<(), LinkError> {
        let chosen = lock(&self.stack.next).take();
        match chosen {
            Some(task) if self.claim(&task)? => self.run_task(py, task),
            _ => Ok(()),
        }
    }
}
