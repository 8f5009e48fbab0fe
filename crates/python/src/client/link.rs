//! `_native.Link`: a client's way to its controller, over one connection after the other.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Instant;

use broadleaf_proto::control::{self, ControlReply, ControlRequest, DefineOptions, Role};
use broadleaf_proto::limits::{MAX_LABEL_BYTES, MAX_OPTIONS_BYTES};
use broadleaf_proto::{FrameKind, OptionsId, TaskOptions};
use pyo3::exceptions::{PyTimeoutError, PyValueError};
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use super::incoming::tell::tell;
use super::requests::begun;
use super::session::Session;
use super::sessions::Sessions;
use super::shared::Incoming;
use super::waiting::deadline_after;
use crate::engine::engine_to_free;
use crate::node::connect::Connection;
use crate::payload::lock;

/// A client's way to its controller. Thread-safe.
#[pyclass(frozen, weakref, module = "broadleaf._native")]
pub struct Link {
    sessions: Arc<Sessions>,
}

impl Link {
    /// The connection for a call that begins; waits while the client awaits another controller.
    ///
    /// # Errors
    /// The client is closed, or belongs to the process that this one was forked from.
    pub(super) fn session(&self, py: Python<'_>) -> PyResult<Arc<Session>> {
        begun::start_call();
        self.sessions.live(py, None)
    }

    /// The connection, or the last one, for a call that begins.
    fn session_now(&self, py: Python<'_>) -> PyResult<Arc<Session>> {
        let session = self.sessions.now();
        session.check_process(py)?;
        Ok(session)
    }
}

#[pymethods]
impl Link {
    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&**self.sessions.hooks())?;
        if let Ok(functions) = self.sessions.now().functions.try_lock() {
            for cached in functions.by_identity.values() {
                visit.call(&cached.function)?;
            }
        }
        Ok(())
    }

    #[new]
    #[pyo3(signature = (connection, hooks, timeout_s = 10.0, name = String::new(), goes_on = false))]
    fn new(
        py: Python<'_>,
        connection: &str,
        hooks: Py<PyAny>,
        timeout_s: f64,
        name: String,
        goes_on: bool,
    ) -> PyResult<Self> {
        let connection = Connection::parse(connection)?;
        let is_forwarded = connection.is_forwarded();
        let hello = connection.hello(py, Role::Client { name, is_forwarded });
        let sessions = Sessions::connect(py, connection, hello, hooks, timeout_s, goes_on)?;
        Ok(Self { sessions })
    }

    #[getter]
    fn client_id(&self) -> u32 {
        self.sessions.now().client_id()
    }

    #[getter]
    fn next_seq(&self) -> u64 {
        self.sessions.lasting().next_seq.load(Ordering::Relaxed)
    }

    #[getter]
    fn closed(&self) -> bool {
        self.sessions.is_closed()
    }

    #[getter]
    fn max_outstanding_bytes(&self) -> u64 {
        self.sessions.now().shared.tuning.limits.max_bytes
    }

    #[getter]
    fn max_outstanding_tasks(&self) -> u64 {
        self.sessions.now().shared.tuning.limits.max_tasks
    }

    #[getter]
    fn get_live_output(&self) -> bool {
        self.sessions.lasting().live_output.load(Ordering::Relaxed)
    }

    #[setter]
    fn set_live_output(&self, on: bool) {
        let live_output = &self.sessions.lasting().live_output;
        live_output.store(on, Ordering::Relaxed);
    }

    fn show_next(&self, show: &Bound<'_, PyAny>) -> PyResult<bool> {
        self.sessions.lasting().unshown.show_next(show)
    }

    fn define_options(&self, py: Python<'_>, options: &str) -> PyResult<u32> {
        self.session_now(py)?;
        let mut agreed = lock(&self.sessions.agreed);
        if let Some(id) = agreed.options_ids.get(options) {
            return Ok(id.0);
        }
        let parsed: TaskOptions = serde_json::from_str(options)
            .map_err(|e| PyValueError::new_err(format!("task options: {e}")))?;
        let id = OptionsId(agreed.options_ids.len() as u32 + 1);
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
        let session = self.sessions.now();
        // A controller that is awaited is told once it is there.
        if !session.shared.is_closed() || self.sessions.is_closed() {
            let queued = session.shared.queue(FrameKind::Options, &body, &[]);
            if let Err(error) = queued {
                // What hears of the lost connection may define options.
                drop(agreed);
                return Err(session.send_failed(py, &error));
            }
        }
        agreed.options_ids.insert(options.to_owned(), id);
        agreed.options.push(body);
        Ok(id.0)
    }

    #[getter]
    fn engines_version(&self) -> u64 {
        let version = &self.sessions.lasting().engines_version;
        version.load(Ordering::Acquire)
    }

    fn engines(&self, py: Python<'_>) -> PyResult<Vec<(u32, String, u32, String)>> {
        let engines = self.session_now(py)?.shared.engines().into_iter();
        Ok(engines
            .map(|e| (e.engine.0, e.uuid, e.pid, e.host))
            .collect())
    }

    fn deaths_after(&self, n: u64) -> (u64, Vec<String>) {
        lock(&self.sessions.lasting().deaths).after(n)
    }

    fn wait_for_engines(&self, py: Python<'_>, n: usize, timeout_s: Option<f64>) -> PyResult<bool> {
        begun::start_call();
        let deadline = timeout_s.map(deadline_after).transpose()?;
        loop {
            let session = match self.sessions.live(py, deadline.map(seconds_until)) {
                Err(error) if error.is_instance_of::<PyTimeoutError>(py) => return Ok(false),
                other => other?,
            };
            match session.wait_for_engines(py, n, deadline.map(seconds_until)) {
                // The controller has died meanwhile.
                Err(_) if session.shared.is_closed() && !self.sessions.is_closed() => {}
                waited => return waited,
            }
        }
    }

    #[pyo3(signature = (request, timeout_s = Some(10.0), content = None))]
    fn request(
        &self,
        py: Python<'_>,
        request: &str,
        timeout_s: Option<f64>,
        content: Option<&[u8]>,
    ) -> PyResult<String> {
        begun::start_call();
        let request = parsed(request)?;
        let deadline = timeout_s.map(deadline_after).transpose()?;
        let session = self.sessions.live(py, timeout_s)?;
        let request = session.with_content(py, request, content)?;
        let number = session
            .shared
            .start_request(&request)
            .map_err(|error| session.send_failed(py, &error))?;
        let answered = session.wait_until(py, deadline.map(seconds_until), &|| {
            session.shared.has_reply(number)
        });
        let reply: Option<ControlReply> = session.shared.take_reply(number);
        match (answered?, reply) {
            (true, Some(reply)) => Ok(
                serde_json::to_string(&reply).expect("invariant: replies have string keys only")
            ),
            (true, None) => Err(session.gone(py)),
            (false, _) => Err(PyTimeoutError::new_err(
                "the controller did not answer in time; see `broadleaf status` and the cluster's log",
            )),
        }
    }

    /// Sends a request, given as JSON, whose reply nobody waits for.
    #[pyo3(signature = (request, content = None))]
    fn post(&self, py: Python<'_>, request: &str, content: Option<&[u8]>) -> PyResult<()> {
        let session = self.session_now(py)?;
        if session.shared.is_closed() {
            return Err(session.gone(py));
        }
        let request = session.with_content(py, parsed(request)?, content)?;
        session
            .shared
            .post(&request)
            .map_err(|error| session.send_failed(py, &error))
    }

    fn keep_sent_again(&self, keep: bool) {
        let is_elsewhere = self.sessions.now().shared.owner.is_elsewhere();
        if !is_elsewhere {
            self.sessions.keep_sent_again(keep);
        }
    }

    /// Whether a task waits here, whose engine runs other tasks in the meantime.
    fn frees_engine(&self, py: Python<'_>) -> bool {
        engine_to_free(py, &self.sessions.now()).is_some()
    }

    /// Waits until `is_done()`, which results make true.
    fn wait_for(
        &self,
        py: Python<'_>,
        is_done: &Bound<'_, PyAny>,
        timeout_s: Option<f64>,
    ) -> PyResult<bool> {
        let is_done = is_done.clone().unbind();
        self.sessions.now().wait_for_anything(py, timeout_s, &|| {
            let said = Python::attach(|py| is_done.call0(py)?.is_truthy(py));
            said.unwrap_or(true)
        })
    }

    fn flush(&self, py: Python<'_>) -> PyResult<()> {
        let session = self.session_now(py)?;
        if session.shared.is_closed() && !self.sessions.is_closed() {
            // What was submitted to the controller that has died is lost.
            return Ok(());
        }
        session.flush_fully(py)
    }

    /// The number of the first task, and the number of tasks, of the request that this thread's last call began.
    fn begun(&self) -> (u64, usize) {
        begun::begun(&self.sessions.now().shared)
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
        (self.sessions.notes.left_behind).store(true, Ordering::Relaxed);
    }

    /// The next wait calls `ClientHooks.on_wait` first.
    fn tell_waiting(&self) {
        (self.sessions.notes.tells_waiting).store(true, Ordering::Release);
    }

    fn is_outstanding(&self, seq: u64) -> bool {
        self.sessions.now().shared.is_outstanding(seq)
    }

    fn outstanding(&self) -> u64 {
        let session = self.sessions.now();
        session.shared.outstanding.load(Ordering::Acquire)
    }

    fn outstanding_seqs(&self, py: Python<'_>) -> PyResult<Vec<u64>> {
        Ok(self.session_now(py)?.shared.outstanding_seqs())
    }

    fn wait_all(&self, py: Python<'_>, timeout_s: Option<f64>) -> PyResult<bool> {
        let session = self.sessions.now();
        session.wait_for_tasks(py, timeout_s, &|| {
            session.shared.outstanding.load(Ordering::Acquire) == 0
        })
    }

    fn wait_tasks(
        &self,
        py: Python<'_>,
        mut seqs: Vec<u64>,
        timeout_s: Option<f64>,
    ) -> PyResult<bool> {
        let session = self.session_now(py)?;
        seqs.sort_unstable();
        let left = Mutex::new(seqs);
        session.shared.register_submissions();
        session.wait_for_tasks(py, timeout_s, &|| {
            session.shared.drop_resolved(&mut lock(&left))
        })
    }

    fn counters<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let session = self.session_now(py)?;
        let shared = &session.shared;
        let dict = PyDict::new(py);
        let counters = &shared.counters;
        dict.set_item("submitted", counters.submitted.load(Ordering::Relaxed))?;
        dict.set_item("resolved", counters.resolved.load(Ordering::Relaxed))?;
        dict.set_item(
            "background_wakeups",
            counters.wakeups.load(Ordering::Relaxed),
        )?;
        dict.set_item("throttled", counters.throttled.load(Ordering::Relaxed))?;
        dict.set_item(
            "outstanding_bytes",
            shared.outstanding_bytes.load(Ordering::Acquire),
        )?;
        let net = shared
            .wire
            .with(|net| Ok(net.counters()))
            .unwrap_or_default();
        dict.set_item("reads", net.reads)?;
        dict.set_item("writes", net.writes)?;
        dict.set_item("bytes_in", net.bytes_in)?;
        dict.set_item("bytes_out", net.bytes_out)?;
        dict.set_item("frames_in", net.frames_in)?;
        dict.set_item("frames_out", net.frames_out)?;
        crate::pool_counters_into(&dict, &shared.data.counters())?;
        Ok(dict)
    }

    fn close(&self, py: Python<'_>) {
        if self.sessions.begins_to_close() {
            let mut incoming = Incoming::default();
            py.detach(|| {
                let background = self.sessions.close(&mut incoming);
                join(background);
            });
            tell(py, self.sessions.hooks(), incoming);
        }
    }

    fn close_at_exit(&self, py: Python<'_>) {
        if !self.sessions.is_elsewhere() {
            self.sessions.begins_to_close();
            py.detach(|| {
                let background = self.sessions.close(&mut Incoming::default());
                join(background.into_iter().chain(self.sessions.take_redials()));
            });
        }
    }
}

fn parsed(request: &str) -> PyResult<ControlRequest> {
    serde_json::from_str(request).map_err(|e| PyValueError::new_err(format!("request: {e}")))
}

fn seconds_until(deadline: Instant) -> f64 {
    let left = deadline.saturating_duration_since(Instant::now());
    left.as_secs_f64()
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
        if self.sessions.is_elsewhere() {
            self.sessions.forget_threads();
        } else {
            drop(self.sessions.close(&mut Incoming::default()));
        }
    }
}
