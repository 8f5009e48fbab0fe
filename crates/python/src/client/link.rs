//! `_native.Link`: one connection of a client to its controller.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use broadleaf_client::{Limits, Looks, Spin};
use broadleaf_net::LinkError;
use broadleaf_proto::control::{self, ControlReply, ControlRequest, DefineOptions, Role};
use broadleaf_proto::limits::{MAX_LABEL_BYTES, MAX_OPTIONS_BYTES};
use broadleaf_proto::task::PREPARATION;
use broadleaf_proto::{FrameKind, HostId, OptionsId, TaskOptions};
use pyo3::exceptions::{PyKeyboardInterrupt, PyTimeoutError, PyValueError};
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use rustc_hash::FxHashMap;
use rustix::event::{EventfdFlags, eventfd};

use super::incoming::far::FarValues;
use super::incoming::tell::{report, tell};
use super::outgoing::functions::Functions;
use super::rejoin::{IDLE_S, Rejoin, heal};
use super::requests::begun;
use super::shared::{Incoming, Shared, Step, Tuning};
use super::waiting::{Waiting, deadline_after, looks_of_this_thread};
use crate::engine::{Engine, engine_to_free};
use crate::errors::{forked, link_closed, link_error};
use crate::node::connect::{Connection, dial, handshake, route};
use crate::payload::{DataPlane, lock};

/// How long a call waits before it says what it may be waiting for.
const EXPLAIN_AFTER: Duration = Duration::from_secs(1);

/// One connection of a client to its controller. Thread-safe.
#[pyclass(frozen, weakref, module = "broadleaf._native")]
pub struct Link {
    pub(crate) shared: Arc<Shared>,
    pub(crate) hooks: Py<PyAny>,
    client_id: u32,
    cluster_id: String,
    pub(super) functions: Mutex<Functions>,
    options: Mutex<FxHashMap<String, OptionsId>>,
    background: Mutex<Option<JoinHandle<()>>>,
    close_started: AtomicBool,
    /// Ctrl-C has ended a call, and tasks of earlier calls still run or wait.
    left_behind: AtomicBool,
    tells_waiting: AtomicBool,
}

impl Link {
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
        if self.shared.unshown.has_some() {
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
        if self.left_behind.load(Ordering::Relaxed) && deadline.is_none_or(|at| at > explain_at) {
            if self.wait_by(py, Some(explain_at), looks, is_done)? {
                return Ok(true);
            }
            if self.left_behind.swap(false, Ordering::Relaxed) {
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
        if self.tells_waiting.swap(false, Ordering::AcqRel) {
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
                return self.done_or(py, is_done, link_closed(py));
            }
            py.check_signals()?;
            if step == Step::TimedOut {
                return Ok(false);
            }
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
        link_error(py, error)
    }
}

#[pymethods]
impl Link {
    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.hooks)?;
        if let Ok(functions) = self.functions.try_lock() {
            for cached in functions.by_identity.values() {
                visit.call(&cached.function)?;
            }
        }
        Ok(())
    }

    #[new]
    #[pyo3(signature = (connection, hooks, timeout_s = 10.0, name = String::new()))]
    fn new(
        py: Python<'_>,
        connection: &str,
        hooks: Py<PyAny>,
        timeout_s: f64,
        name: String,
    ) -> PyResult<Self> {
        let connection = Connection::parse(connection)?;
        let deadline = deadline_after(timeout_s)?;
        let is_forwarded = connection.is_forwarded();
        let role = Role::Client { name, is_forwarded };
        let hello = connection.hello(py, role);
        let (mut link, welcome, connect_time) = py
            .detach(|| -> Result<_, crate::node::connect::ConnectError> {
                let begun = Instant::now();
                let link = dial(&connection, deadline)?;
                let connect_time = begun.elapsed();
                let (link, welcome, _) = handshake(link, &hello, &[], deadline)?;
                Ok((link, welcome, connect_time))
            })
            .map_err(|error| error.into_py(py))?;
        let rejoin = match welcome.session {
            None => None,
            Some(session) => {
                link.make_resumable();
                link.be_patient();
                link.keep_alive(IDLE_S);
                let route = route(&connection).map_err(|error| error.into_py(py))?;
                let limit = Duration::from_secs_f64(connection.options.rejoin_timeout_s);
                let hello = &hello;
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
            let route = route(&connection).map_err(|error| error.into_py(py))?;
            Some(FarValues::new(&connection.options, &hello, &welcome, route))
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
        let shared = Shared::new(py, link, &welcome, data, far, tuning, &wake)?;
        let shared = Arc::new(shared);
        let mut incoming = Incoming::default();
        shared
            .take_frames(&mut incoming)
            .map_err(|error| link_error(py, &error))?;
        tell(py, &hooks, incoming);
        if let Some(rejoin) = rejoin {
            let hooks = hooks.clone_ref(py);
            heal(&shared, rejoin, move |incoming| {
                // Without an interpreter to tell, the event is useless.
                let _ = Python::try_attach(|py| tell(py, &hooks, incoming));
            });
        }
        let background = {
            let (shared, hooks) = (Arc::clone(&shared), hooks.clone_ref(py));
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
            hooks,
            client_id: welcome.client.0,
            cluster_id: connection.cluster_id,
            functions: Mutex::default(),
            options: Mutex::default(),
            background: Mutex::new(Some(background)),
            close_started: AtomicBool::new(false),
            left_behind: AtomicBool::new(false),
            tells_waiting: AtomicBool::new(false),
        })
    }

    #[getter]
    fn client_id(&self) -> u32 {
        self.client_id
    }

    #[getter]
    fn closed(&self) -> bool {
        self.shared.is_closed()
    }

    #[getter]
    fn max_outstanding_bytes(&self) -> u64 {
        self.shared.tuning.limits.max_bytes
    }

    #[getter]
    fn max_outstanding_tasks(&self) -> u64 {
        self.shared.tuning.limits.max_tasks
    }

    #[getter]
    fn get_live_output(&self) -> bool {
        self.shared.live_output.load(Ordering::Relaxed)
    }

    #[setter]
    fn set_live_output(&self, on: bool) {
        self.shared.live_output.store(on, Ordering::Relaxed);
    }

    fn show_next(&self, show: &Bound<'_, PyAny>) -> PyResult<bool> {
        self.shared.unshown.show_next(show)
    }

    fn define_options(&self, py: Python<'_>, options: &str) -> PyResult<u32> {
        self.check_process(py)?;
        let mut known = lock(&self.options);
        if let Some(id) = known.get(options) {
            return Ok(id.0);
        }
        let parsed: TaskOptions = serde_json::from_str(options)
            .map_err(|e| PyValueError::new_err(format!("task options: {e}")))?;
        let id = OptionsId(known.len() as u32 + 1);
        let define = DefineOptions {
            id,
            options: parsed,
        };
        let body = control::encode(&define);
        let label_bytes = define.options.label.len();
        if label_bytes > MAX_LABEL_BYTES {
            return Err(PyValueError::new_err(format!(
                "a label may have at most {MAX_LABEL_BYTES} bytes, not {label_bytes}: use a shorter label"
            )));
        }
        if body.len() > MAX_OPTIONS_BYTES {
            return Err(PyValueError::new_err(format!(
                "the task options take {} bytes, and the limit is {MAX_OPTIONS_BYTES}: use a shorter label, or fewer targets",
                body.len()
            )));
        }
        if let Err(error) = self.shared.queue(FrameKind::Options, &body, &[]) {
            // What hears of the lost connection may define options.
            drop(known);
            return Err(self.send_failed(py, &error));
        }
        known.insert(options.to_owned(), id);
        Ok(id.0)
    }

    #[getter]
    fn engines_version(&self) -> u64 {
        self.shared.engines_version.load(Ordering::Acquire)
    }

    fn engines(&self, py: Python<'_>) -> PyResult<Vec<(u32, String, u32, String)>> {
        self.check_process(py)?;
        let engines = self.shared.engines().into_iter();
        Ok(engines
            .map(|e| (e.engine.0, e.uuid, e.pid, e.host))
            .collect())
    }

    fn deaths_after(&self, n: u64) -> (u64, Vec<String>) {
        lock(&self.shared.deaths).after(n)
    }

    fn wait_for_engines(&self, py: Python<'_>, n: usize, timeout_s: Option<f64>) -> PyResult<bool> {
        self.check_process(py)?;
        // Engines known from before the link closed are useless.
        let there = || {
            !self.shared.is_closed() && self.shared.n_engines.load(Ordering::Relaxed) >= n as u64
        };
        if self.wait_until(py, timeout_s, &there)? {
            return Ok(true);
        }
        // The event that the link is gone may still be in the socket.
        self.read_once(py);
        if self.shared.is_closed() {
            return Err(link_closed(py));
        }
        Ok(there())
    }

    #[pyo3(signature = (request, timeout_s = Some(10.0)))]
    fn request(&self, py: Python<'_>, request: &str, timeout_s: Option<f64>) -> PyResult<String> {
        self.check_process(py)?;
        let request: ControlRequest = serde_json::from_str(request)
            .map_err(|e| PyValueError::new_err(format!("request: {e}")))?;
        if self.shared.is_closed() {
            return Err(link_closed(py));
        }
        let number = self
            .shared
            .start_request(&request)
            .map_err(|error| self.send_failed(py, &error))?;
        let answered = self.wait_until(py, timeout_s, &|| self.shared.has_reply(number));
        let reply: Option<ControlReply> = self.shared.take_reply(number);
        match (answered?, reply) {
            (true, Some(reply)) => Ok(
                serde_json::to_string(&reply).expect("invariant: replies have string keys only")
            ),
            (true, None) => Err(link_closed(py)),
            (false, _) => Err(PyTimeoutError::new_err(
                "the controller did not answer in time; see `broadleaf status` and the cluster's log",
            )),
        }
    }

    /// The id of a preparation, which is sent unless it was sent before.
    fn define_preparation(&self, py: Python<'_>, content: &[u8]) -> PyResult<u32> {
        self.check_process(py)?;
        let body = [&[PREPARATION], content].concat();
        let id = match self.known_function(&body) {
            (_, Some(id)) => id,
            (hash, None) => self.define_function(py, hash, "", &body)?,
        };
        Ok(id.0)
    }

    /// Sends a request, given as JSON, whose reply nobody waits for.
    fn post(&self, py: Python<'_>, request: &str) -> PyResult<()> {
        self.check_process(py)?;
        let request: ControlRequest = serde_json::from_str(request)
            .map_err(|e| PyValueError::new_err(format!("request: {e}")))?;
        self.shared
            .post(&request)
            .map_err(|error| self.send_failed(py, &error))
    }

    fn keep_sent_again(&self, keep: bool) {
        if self.shared.owner.is_elsewhere() {
            return;
        }
        if keep {
            self.shared.data.start_keeping();
        } else {
            self.shared.data.stop_keeping();
        }
    }

    /// Whether a task waits here, whose engine runs other tasks in the meantime.
    fn frees_engine(&self, py: Python<'_>) -> bool {
        engine_to_free(py, self).is_some()
    }

    /// Waits until `is_done()`, which results make true.
    fn wait_for(
        &self,
        py: Python<'_>,
        is_done: &Bound<'_, PyAny>,
        timeout_s: Option<f64>,
    ) -> PyResult<bool> {
        let is_done = is_done.clone().unbind();
        self.wait_for_anything(py, timeout_s, &|| {
            let said = Python::attach(|py| is_done.call0(py)?.is_truthy(py));
            said.unwrap_or(true)
        })
    }

    fn flush(&self, py: Python<'_>) -> PyResult<()> {
        self.check_process(py)?;
        self.flush_fully(py)
    }

    /// The number of the first task, and the number of tasks, of the request that this thread's last call began.
    fn begun(&self) -> (u64, usize) {
        begun::begun(&self.shared)
    }

    /// A call that makes a request begins; what this thread's earlier calls have begun is no longer known.
    #[expect(
        clippy::unused_self,
        reason = "Python calls it as a method of the link"
    )]
    fn start_call(&self) {
        begun::start_call();
    }

    /// The next long wait calls `ClientHooks.on_wait_behind_others`.
    fn leave_behind(&self) {
        self.left_behind.store(true, Ordering::Relaxed);
    }

    /// The next wait calls `ClientHooks.on_wait` first.
    fn tell_waiting(&self) {
        self.tells_waiting.store(true, Ordering::Release);
    }

    fn is_outstanding(&self, seq: u64) -> bool {
        self.shared.is_outstanding(seq)
    }

    fn outstanding(&self) -> u64 {
        self.shared.outstanding.load(Ordering::Acquire)
    }

    fn outstanding_seqs(&self, py: Python<'_>) -> PyResult<Vec<u64>> {
        self.check_process(py)?;
        Ok(self.shared.outstanding_seqs())
    }

    fn wait_all(&self, py: Python<'_>, timeout_s: Option<f64>) -> PyResult<bool> {
        self.wait_for_tasks(py, timeout_s, &|| {
            self.shared.outstanding.load(Ordering::Acquire) == 0
        })
    }

    fn wait_tasks(
        &self,
        py: Python<'_>,
        mut seqs: Vec<u64>,
        timeout_s: Option<f64>,
    ) -> PyResult<bool> {
        self.check_process(py)?;
        seqs.sort_unstable();
        let left = Mutex::new(seqs);
        self.shared.register_submissions();
        self.wait_for_tasks(py, timeout_s, &|| {
            self.shared.drop_resolved(&mut lock(&left))
        })
    }

    fn counters<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        self.check_process(py)?;
        let dict = PyDict::new(py);
        let counters = &self.shared.counters;
        dict.set_item("submitted", counters.submitted.load(Ordering::Relaxed))?;
        dict.set_item("resolved", counters.resolved.load(Ordering::Relaxed))?;
        dict.set_item(
            "background_wakeups",
            counters.wakeups.load(Ordering::Relaxed),
        )?;
        dict.set_item("throttled", counters.throttled.load(Ordering::Relaxed))?;
        dict.set_item(
            "outstanding_bytes",
            self.shared.outstanding_bytes.load(Ordering::Acquire),
        )?;
        let net = self
            .shared
            .wire
            .with(|net| Ok(net.counters()))
            .unwrap_or_default();
        dict.set_item("reads", net.reads)?;
        dict.set_item("writes", net.writes)?;
        dict.set_item("bytes_in", net.bytes_in)?;
        dict.set_item("bytes_out", net.bytes_out)?;
        dict.set_item("frames_in", net.frames_in)?;
        dict.set_item("frames_out", net.frames_out)?;
        crate::pool_counters_into(&dict, &self.shared.data.counters())?;
        Ok(dict)
    }

    fn close(&self, py: Python<'_>) {
        if self.shared.owner.is_elsewhere() {
            return;
        }
        if self.close_started.swap(true, Ordering::AcqRel) {
            return;
        }
        let mut incoming = Incoming::default();
        let background = lock(&self.background).take();
        py.detach(|| {
            self.shared.close(&mut incoming);
            join(background);
        });
        tell(py, &self.hooks, incoming);
    }

    fn close_at_exit(&self, py: Python<'_>) {
        if self.shared.owner.is_elsewhere() {
            return;
        }
        self.close_started.store(true, Ordering::Release);
        let background = lock(&self.background).take();
        let redials = std::mem::take(&mut *lock(&self.shared.redials));
        py.detach(|| {
            self.shared.close(&mut Incoming::default());
            join(background.into_iter().chain(redials));
        });
    }
}

/// Waits for threads. A callback running on such a thread may close the link; it cannot wait for itself.
fn join(threads: impl IntoIterator<Item = JoinHandle<()>>) {
    for thread in threads {
        if thread.thread().id() != std::thread::current().id() {
            let _ = thread.join();
        }
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        if self.shared.owner.is_elsewhere() {
            // The threads do not belong to this process: they are neither joined nor detached.
            if let Ok(background) = self.background.get_mut() {
                std::mem::forget(background.take());
            }
            match self.shared.redials.try_lock() {
                Ok(mut redials) => std::mem::forget(std::mem::take(&mut *redials)),
                Err(_) => std::mem::forget(Arc::clone(&self.shared)),
            }
            return;
        }
        self.shared.close(&mut Incoming::default());
    }
}
