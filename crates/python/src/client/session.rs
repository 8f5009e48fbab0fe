//! One connection of a client to a controller, and what was sent over it. A client has one after the other if its
//! controller is started again.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use broadleaf_client::{Limits, Looks, Spin};
use broadleaf_net::LinkError;
use broadleaf_proto::HostId;
use broadleaf_proto::control::{ControlRequest, Hello, Welcome};
use broadleaf_proto::task::PREPARATION;
use pyo3::exceptions::PyKeyboardInterrupt;
use pyo3::intern;
use pyo3::prelude::*;
use rustix::event::{EventfdFlags, eventfd};

use super::incoming::far::FarValues;
use super::incoming::tell::{report, tell};
use super::outgoing::functions::Functions;
use super::rejoin::{IDLE_S, Rejoin, heal};
use super::requests::begun;
use super::shared::{Incoming, Lasting, Shared, Step, Tuning};
use super::waiting::{Waiting, deadline_after, looks_of_this_thread};
use crate::engine::{Engine, engine_to_free};
use crate::errors::{controller_lost, forked, link_closed, link_error};
use crate::node::connect::{ConnectError, Connection, dial, handshake, route};
use crate::payload::{DataPlane, lock};

/// How long a call waits before it says what it may be waiting for.
const EXPLAIN_AFTER: Duration = Duration::from_secs(1);

/// A connection that a controller has accepted.
pub struct Accepted {
    link: broadleaf_net::Link,
    welcome: Welcome,
    connect_time: Duration,
}

impl Accepted {
    /// Dials the controller and says hello. `connecting` and `in_all` are the time that it takes at most.
    ///
    /// # Errors
    /// It was not reached in time, or refused.
    pub fn dial(
        connection: &Connection,
        hello: &Hello,
        connecting: Duration,
        in_all: Duration,
    ) -> Result<Self, ConnectError> {
        let begun = Instant::now();
        let link = dial(connection, begun + connecting)?;
        let connect_time = begun.elapsed();
        let (link, welcome, _) = handshake(link, hello, &[], begun + in_all)?;
        Ok(Self {
            link,
            welcome,
            connect_time,
        })
    }

    /// Whether the controller may be started again when it has ended.
    pub fn keeps_journal(&self) -> bool {
        self.welcome.keeps_journal
    }

    /// How long the connection took to open.
    pub fn connect_time(&self) -> Duration {
        self.connect_time
    }
}

/// Calls that Ctrl-C has ended, and debuggers that wait: what the next wait says first.
#[derive(Default)]
pub struct Notes {
    /// Ctrl-C has ended a call, and tasks of earlier calls still run or wait.
    pub left_behind: AtomicBool,
    /// The next wait calls `ClientHooks.on_wait` first.
    pub tells_waiting: AtomicBool,
}

/// See the module.
pub struct Session {
    pub(crate) shared: Arc<Shared>,
    pub(crate) hooks: Arc<Py<PyAny>>,
    client_id: u32,
    cluster_id: String,
    pub(super) functions: Mutex<Functions>,
    notes: Arc<Notes>,
    background: Mutex<Option<JoinHandle<()>>>,
}

impl Session {
    /// Begins to use a connection. `on_end` is asked once, when it is gone, whether another one will take its place.
    ///
    /// # Errors
    /// There are no descriptors or threads left, or what was received is not understood.
    pub fn begin(
        py: Python<'_>,
        accepted: Accepted,
        (connection, hello): (&Connection, &Hello),
        hooks: &Arc<Py<PyAny>>,
        (lasting, notes): (&Arc<Lasting>, &Arc<Notes>),
        on_end: impl Fn(&LinkError, bool) -> bool + Send + Sync + 'static,
    ) -> PyResult<Self> {
        let Accepted {
            mut link,
            welcome,
            connect_time,
        } = accepted;
        let rejoin = match welcome.session {
            None => None,
            Some(session) => {
                link.make_resumable();
                link.be_patient();
                link.keep_alive(IDLE_S);
                let route = route(connection).map_err(|error| error.into_py(py))?;
                let limit = Duration::from_secs_f64(connection.options.rejoin_timeout_s);
                let is_forwarded = connection.is_forwarded();
                Some(Rejoin::new(
                    route,
                    hello,
                    session,
                    connect_time,
                    limit,
                    is_forwarded,
                ))
            }
        };
        let far = if welcome.host == HostId::CONTROLLER {
            None
        } else {
            let route = route(connection).map_err(|error| error.into_py(py))?;
            Some(FarValues::new(&connection.options, hello, &welcome, route))
        };
        let tuning = Tuning {
            linger_ns: 1000 * connection.options.client_linger_us,
            spin: Spin {
                spin_ns: 1000 * connection.options.client_spin_us,
                n_cores: std::thread::available_parallelism().map_or(1, |n| n.get() as u64),
            },
            flush_bytes: connection.options.client_flush_bytes,
            limits: Limits {
                max_tasks: welcome.max_outstanding_tasks,
                max_bytes: welcome.max_outstanding_bytes,
            },
        };
        let data = DataPlane::new(
            welcome.segment_token,
            connection.large_buffers(link.is_local()),
            &connection.options,
        );
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let wake = eventfd(0, flags).map_err(std::io::Error::from)?;
        let wake = Arc::new(wake);
        let lasting = Arc::clone(lasting);
        let shared = Shared::new(py, lasting, link, &welcome, data, far, tuning, &wake)?;
        let shared = Arc::new(shared);
        shared.on_end(on_end);
        let mut incoming = Incoming::default();
        shared
            .take_frames(&mut incoming)
            .map_err(|error| link_error(py, &error))?;
        tell(py, hooks, incoming);
        if let Some(rejoin) = rejoin {
            let hooks = Arc::clone(hooks);
            heal(&shared, rejoin, move |incoming| {
                // Without an interpreter to tell, the event is useless.
                let _ = Python::try_attach(|py| tell(py, &hooks, incoming));
            });
        }
        let background = {
            let (shared, hooks) = (Arc::clone(&shared), Arc::clone(hooks));
            std::thread::Builder::new()
                .name("broadleaf-link".to_owned())
                .spawn(move || {
                    shared.run_background(&wake, &|incoming| {
                        // Without an interpreter to tell, the event is useless.
                        let _ = Python::try_attach(|py| tell(py, &hooks, incoming));
                    });
                })?
        };
        Ok(Self {
            shared,
            hooks: Arc::clone(hooks),
            client_id: welcome.client.0,
            cluster_id: connection.cluster_id.clone(),
            functions: Mutex::default(),
            notes: Arc::clone(notes),
            background: Mutex::new(Some(background)),
        })
    }

    /// The client's number.
    pub fn client_id(&self) -> u32 {
        self.client_id
    }

    /// Closes the connection. Returns the thread that reads it.
    pub fn close(&self, incoming: &mut Incoming) -> Option<JoinHandle<()>> {
        self.shared.close(incoming);
        lock(&self.background).take()
    }

    /// The threads that reach for the controller again.
    pub fn take_redials(&self) -> Vec<JoinHandle<()>> {
        std::mem::take(&mut *lock(&self.shared.redials))
    }

    /// In a child of the process that made it: its threads do not belong to this process, and are neither joined nor
    /// detached.
    pub fn forget_threads(&self) {
        if let Ok(mut background) = self.background.try_lock() {
            std::mem::forget(background.take());
        }
        match self.shared.redials.try_lock() {
            Ok(mut redials) => std::mem::forget(std::mem::take(&mut *redials)),
            Err(_) => std::mem::forget(Arc::clone(&self.shared)),
        }
    }

    /// Every call that may submit or request something starts with it.
    ///
    /// # Errors
    /// `LinkClosed` in a child of the process that made it, which must not use it.
    pub(super) fn check_process(&self, py: Python<'_>) -> PyResult<()> {
        begun::start_call();
        self.check_owner(py)
    }

    /// As `check_process`, in the middle of a call.
    fn check_owner(&self, py: Python<'_>) -> PyResult<()> {
        if self.shared.owner.is_elsewhere() {
            return Err(forked(py));
        }
        Ok(())
    }

    /// Waits until `is_done`, which depends on tasks. In a task, the engine runs other tasks in the meantime.
    pub(super) fn wait_for_tasks(
        &self,
        py: Python<'_>,
        timeout_s: Option<f64>,
        is_done: &(dyn Fn() -> bool + Sync),
    ) -> PyResult<bool> {
        self.wait_and_look(py, timeout_s, looks_of_this_thread, is_done)
    }

    /// As `wait_for_tasks`, if anything else may make `is_done` true, too.
    pub(super) fn wait_for_anything(
        &self,
        py: Python<'_>,
        timeout_s: Option<f64>,
        is_done: &(dyn Fn() -> bool + Sync),
    ) -> PyResult<bool> {
        self.wait_and_look(py, timeout_s, || Looks::EverySlice, is_done)
    }

    fn wait_and_look(
        &self,
        py: Python<'_>,
        timeout_s: Option<f64>,
        looks: impl FnOnce() -> Looks,
        is_done: &(dyn Fn() -> bool + Sync),
    ) -> PyResult<bool> {
        let waited = self.wait_unshown(py, timeout_s, looks, is_done)?;
        if self.shared.lasting.unshown.has_some() {
            self.show_output(py)?;
        }
        Ok(waited)
    }

    /// Returns once everything that was written has been shown, which another thread may be doing: what follows a wait
    /// comes after the output of what was waited for.
    fn show_output(&self, py: Python<'_>) -> PyResult<()> {
        let hooks = self.hooks.bind(py);
        match hooks.call_method0(intern!(py, "show_output")) {
            Err(error) if error.is_instance_of::<PyKeyboardInterrupt>(py) => Err(error),
            Err(error) => {
                report(py, error, hooks);
                Ok(())
            }
            Ok(_) => Ok(()),
        }
    }

    fn wait_unshown(
        &self,
        py: Python<'_>,
        timeout_s: Option<f64>,
        looks: impl FnOnce() -> Looks,
        is_done: &(dyn Fn() -> bool + Sync),
    ) -> PyResult<bool> {
        if is_done() {
            return Ok(true);
        }
        self.check_owner(py)?;
        let deadline = timeout_s.map(deadline_after).transpose()?;
        let Some(engine) = engine_to_free(py, self) else {
            return self.wait_and_explain(py, deadline, looks(), is_done);
        };
        if let Err(error) = self.flush_fully(py) {
            return self.done_or(py, is_done, error);
        }
        Engine::wait_in_task(engine.bind(py), self, deadline, is_done)
    }

    /// As `wait_until`. If Ctrl-C has left tasks of this client behind, a long wait says so.
    fn wait_and_explain(
        &self,
        py: Python<'_>,
        deadline: Option<Instant>,
        looks: Looks,
        is_done: &(dyn Fn() -> bool + Sync),
    ) -> PyResult<bool> {
        let explain_at = Instant::now() + EXPLAIN_AFTER;
        if self.notes.left_behind.load(Ordering::Relaxed)
            && deadline.is_none_or(|at| at > explain_at)
        {
            if self.wait_by(py, Some(explain_at), looks, is_done)? {
                return Ok(true);
            }
            if self.notes.left_behind.swap(false, Ordering::Relaxed) {
                let hooks = self.hooks.bind(py);
                hooks.call_method0(intern!(py, "on_wait_behind_others"))?;
            }
        }
        self.wait_by(py, deadline, looks, is_done)
    }

    /// The cluster it belongs to.
    pub fn cluster_id(&self) -> &str {
        &self.cluster_id
    }

    /// Waits until `is_done`, reading replies; runs Python's signal handlers. `false` after a timeout.
    pub(super) fn wait_until(
        &self,
        py: Python<'_>,
        timeout_s: Option<f64>,
        is_done: &(dyn Fn() -> bool + Sync),
    ) -> PyResult<bool> {
        self.check_process(py)?;
        let deadline = timeout_s.map(deadline_after).transpose()?;
        self.wait_by(py, deadline, looks_of_this_thread(), is_done)
    }

    fn wait_by(
        &self,
        py: Python<'_>,
        deadline: Option<Instant>,
        looks: Looks,
        is_done: &(dyn Fn() -> bool + Sync),
    ) -> PyResult<bool> {
        if is_done() {
            return Ok(true);
        }
        if let Err(error) = self.flush_fully(py) {
            return self.done_or(py, is_done, error);
        }
        if self.notes.tells_waiting.swap(false, Ordering::AcqRel) {
            self.hooks.bind(py).call_method0(intern!(py, "on_wait"))?;
        }
        let _waiting = Waiting(&self.shared);
        loop {
            let mut incoming = Incoming::default();
            let step = py.detach(|| {
                self.shared
                    .wait_step(deadline, looks, &|| is_done(), &mut incoming)
            });
            self.shared.tell_amid_wait(py, &self.hooks, incoming);
            if is_done() {
                return Ok(true);
            }
            if self.shared.is_closed() {
                return self.done_or(py, is_done, self.gone(py));
            }
            py.check_signals()?;
            if step == Step::TimedOut {
                return Ok(false);
            }
        }
    }

    /// The exception for what needs this connection, which is gone.
    pub fn gone(&self, py: Python<'_>) -> PyErr {
        if self.shared.is_replaced.load(Ordering::Acquire) {
            controller_lost(py)
        } else {
            link_closed(py)
        }
    }

    /// How a wait on a closed connection ends. Results that were waited for have ended, at the latest as lost, and say
    /// more than `error`, which is raised if something else was waited for.
    pub fn done_or(
        &self,
        py: Python<'_>,
        is_done: &(dyn Fn() -> bool + Sync),
        error: PyErr,
    ) -> PyResult<bool> {
        py.detach(|| self.shared.await_lost());
        if is_done() { Ok(true) } else { Err(error) }
    }

    /// Writes everything submitted to the socket, waiting if it is full.
    pub(super) fn flush_fully(&self, py: Python<'_>) -> PyResult<()> {
        match self.shared.flush() {
            Ok(true) => return Ok(()),
            Ok(false) => {}
            Err(error) => return Err(self.on_lost(py, &error)),
        }
        let mut incoming = Incoming::default();
        let drained = py.detach(|| self.shared.drain(&mut incoming));
        tell(py, &self.hooks, incoming);
        drained.map_err(|error| self.on_lost(py, &error))
    }

    /// Handles what has arrived, without waiting.
    fn read_once(&self, py: Python<'_>) {
        let mut incoming = Incoming::default();
        let read = self.shared.try_read(&mut incoming);
        tell(py, &self.hooks, incoming);
        if let Err(error) = read {
            drop(self.on_lost(py, &error));
        }
    }

    /// The exception for what could not be sent. Unless it was too large, the connection is lost, and marked so before
    /// anyone hears of it.
    pub(super) fn send_failed(&self, py: Python<'_>, error: &LinkError) -> PyErr {
        if matches!(error, LinkError::RecordTooLarge { .. }) {
            return link_error(py, error);
        }
        self.on_lost(py, error)
    }

    fn on_lost(&self, py: Python<'_>, error: &LinkError) -> PyErr {
        let mut incoming = Incoming::default();
        // A finalizer that ran on this thread meanwhile could wait for a result, and so for this very call.
        py.detach(|| self.shared.on_lost(error, &mut incoming));
        tell(py, &self.hooks, incoming);
        if error.is_closed() {
            self.gone(py)
        } else {
            link_error(py, error)
        }
    }

    /// Waits until there are `n` engines; `false` after a timeout.
    pub(super) fn wait_for_engines(
        &self,
        py: Python<'_>,
        n: usize,
        timeout_s: Option<f64>,
    ) -> PyResult<bool> {
        // Engines known from before the connection was lost are useless.
        let there = || {
            !self.shared.is_closed() && self.shared.n_engines.load(Ordering::Relaxed) >= n as u64
        };
        if self.wait_until(py, timeout_s, &there)? {
            return Ok(true);
        }
        // The event that the link is gone may still be in the socket.
        self.read_once(py);
        if self.shared.is_closed() {
            return Err(self.gone(py));
        }
        Ok(there())
    }

    /// A request, with the number of a preparation if it has this content, which is sent unless it was sent before.
    pub(super) fn with_content(
        &self,
        py: Python<'_>,
        request: ControlRequest,
        content: Option<&[u8]>,
    ) -> PyResult<ControlRequest> {
        let (Some(content), ControlRequest::Prepare { name, reload, .. }) = (content, &request)
        else {
            return Ok(request);
        };
        let body = [&[PREPARATION], content].concat();
        let function = match self.known_function(&body) {
            (_, Some(id)) => id,
            (hash, None) => self.define_function(py, hash, "", &body)?,
        };
        Ok(ControlRequest::Prepare {
            name: name.clone(),
            function,
            reload: *reload,
        })
    }
}
