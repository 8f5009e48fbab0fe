//! Tasks that wait for tasks. While the task that runs waits for results of its own cluster on the engine's main
//! thread, the engine runs others in the middle of it: those nested deeper, which the controller sends once it is told.

use std::cell::RefCell;
use std::os::fd::AsFd;
use std::time::Instant;

use broadleaf_engine::{Next, Outer, Stack};
use broadleaf_net::LinkError;
use broadleaf_proto::FrameKind;
use broadleaf_proto::control;
use broadleaf_proto::engine::EngineEvent;
use broadleaf_proto::limits::MAX_NESTING;
use broadleaf_proto::task::AssignRecord;
use broadleaf_shm::ClaimBoard;
use pyo3::exceptions::{PyKeyboardInterrupt, PyRecursionError};
use pyo3::intern;
use pyo3::prelude::*;
use rustix::event::{PollFd, PollFlags};

use super::Engine;
use crate::client::{Incoming, Session, Step, Waiting};
use crate::errors::link_error;
use crate::payload::lock;

/// The tasks that this process has begun, as its engine. One that is none has begun none.
pub(super) static STACK: Stack = Stack::new();

thread_local! {
    /// The engine that runs its tasks on this thread.
    static ENGINE: RefCell<Option<Py<Engine>>> = const { RefCell::new(None) };
}

/// The depth of a task submitted now: 0 outside tasks.
pub fn submitted_depth() -> u16 {
    STACK.submitted_depth()
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

/// The engine whose task runs on this thread, if waiting for results of `session` lets it run others.
pub fn engine_to_free(py: Python<'_>, session: &Session) -> Option<Py<Engine>> {
    let engine = ENGINE.with_borrow(|engine| {
        let engine = engine.as_ref()?;
        // A child that a task forked is not an engine.
        (!engine.get().owner.is_elsewhere()).then(|| engine.clone_ref(py))
    })?;
    (engine.get().stack.task().is_some() && session.cluster_id() == engine.get().cluster_id)
        .then_some(engine)
}

impl Engine {
    /// Sets or clears the calling thread's engine.
    pub(super) fn set_thread(engine: Option<Py<Self>>) {
        ENGINE.set(engine);
    }

    /// The running task has ended after `task_ns`: what it wrote is queued, and the one below runs again.
    pub(super) fn leave(&self, outer: &Outer, task_ns: u64) {
        self.output.collect_after(task_ns);
        self.stack.leave(outer);
    }

    /// Waits, within a task, until `is_done`, and runs tasks that are nested deeper meanwhile. `false` at the deadline,
    /// which a task that is running by then delays.
    pub fn wait_in_task(
        slf: &Bound<'_, Self>,
        session: &Session,
        deadline: Option<Instant>,
        is_done: &(dyn Fn() -> bool + Sync),
    ) -> PyResult<bool> {
        let (py, this) = (slf.py(), slf.get());
        let Some(key) = this.stack.begin_wait() else {
            return Self::run_others_until(slf, session, deadline, is_done);
        };
        lock(&this.work).forget_revoked(|task| this.board.is_offered(task.offer));
        this.say(py, EngineEvent::WaitStarted(key))?;
        let ended = Self::run_others_until(slf, session, deadline, is_done);
        this.stack.end_wait();
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
        session: &Session,
        deadline: Option<Instant>,
        is_done: &(dyn Fn() -> bool + Sync),
    ) -> PyResult<bool> {
        let (py, this) = (slf.py(), slf.get());
        let level = this.stack.level();
        // Outside of tasks there is nothing to run in the middle of.
        let depth = this.stack.running_depth().unwrap_or(u16::MAX);
        let _waiting = Waiting(&session.shared);
        loop {
            // An interrupt that arrived while another task ran: its signal was not for that one. It takes precedence
            // over what is waited for, which the other task may have produced.
            if this.board.take_interrupt(level) {
                return Err(PyKeyboardInterrupt::new_err(()));
            }
            if is_done() {
                return Ok(true);
            }
            if session.shared.is_closed() {
                return session.done_or(py, is_done, session.gone(py));
            }
            py.check_signals()?;
            let next = lock(&this.work).next_step_above(depth);
            match next {
                Next::Prepare(preparations) => {
                    this.prepare(py, preparations);
                    continue;
                }
                Next::Run(task) => {
                    Self::run_nested(slf, task)?;
                    continue;
                }
                Next::Stop | Next::Nothing => {}
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
                (session.shared).wait_step_beside(deadline, is_done, &mut incoming, beside)
            });
            this.hear_bell().map_err(|error| link_error(py, &error))?;
            (session.shared).tell_amid_wait(py, &session.hooks, incoming);
            if step == Step::TimedOut && !is_done() {
                return Ok(false);
            }
        }
    }

    /// Runs a task in the middle of the one that waits.
    fn run_nested(slf: &Bound<'_, Self>, task: AssignRecord) -> PyResult<()> {
        let (py, this) = (slf.py(), slf.get());
        drop(this.io.data.received().take_retired());
        // What the task below has written so far belongs to it.
        this.output.collect();
        this.io.before_user_code(false);
        lock(&this.work).choose(task);
        // The board has a level for each possible depth, and depths grow along the stack.
        let Some(level) = this.stack.rise(ClaimBoard::LEVELS) else {
            lock(&this.work).end_choice();
            return Err(PyRecursionError::new_err(
                "too many tasks wait on this engine",
            ));
        };
        let run = slf.getattr(intern!(py, "run_next"));
        let ran = run.and_then(|run| {
            this.hooks
                .bind(py)
                .call_method1(intern!(py, "run_nested"), (run,))
        });
        this.stack.fall(level);
        lock(&this.work).end_choice();
        ran.map(drop)
    }

    /// Runs the task that `run_nested` has chosen, unless it was taken back.
    pub(super) fn run_chosen(&self, py: Python<'_>) -> Result<(), LinkError> {
        let chosen = lock(&self.work).take_chosen();
        match chosen {
            Some(task) if self.claim(&task)? => self.run_task(py, task),
            _ => Ok(()),
        }
    }
}
