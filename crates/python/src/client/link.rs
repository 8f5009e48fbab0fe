//! `_native.Link`: one connection of a client to its controller.

use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use broadleaf_net::LinkError;
use broadleaf_proto::control::{self, ControlReply, ControlRequest, DefineOptions, Role};
use broadleaf_proto::task::FunctionRecord;
use broadleaf_proto::{FrameKind, FunctionHash, FunctionId, OptionsId, TaskOptions};
use bytes::Bytes;
use pyo3::exceptions::{PyTimeoutError, PyValueError};
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};
use rustc_hash::FxHashMap;
use sha2::{Digest, Sha256};

use super::shared::{Incoming, Shared, Step, Tuning};
use crate::connect::{Connection, handshake};
use crate::errors::{link_closed, link_error};
use crate::payload::{DataPlane, lock};

/// Functions cached by identity before the cache starts afresh.
const MAX_CACHED_FUNCTIONS: usize = 10_000;

/// Names given to functions on this connection.
#[derive(Default)]
struct Functions {
    by_identity: FxHashMap<usize, (Py<PyAny>, FunctionId)>,
    by_hash: FxHashMap<FunctionHash, FunctionId>,
}

/// One connection of a client to its controller. Thread-safe.
#[pyclass(frozen, weakref, module = "broadleaf._native")]
pub struct Link {
    pub(super) shared: Arc<Shared>,
    pub(super) hooks: Py<PyAny>,
    client_id: u32,
    functions: Mutex<Functions>,
    options: Mutex<FxHashMap<String, OptionsId>>,
    background: Mutex<Option<JoinHandle<()>>>,
    close_started: AtomicBool,
}

impl Link {
    /// The id of a function on this connection; its content is sent before the first task that names it.
    pub(super) fn function_id(
        &self,
        py: Python<'_>,
        function: &Bound<'_, PyAny>,
    ) -> PyResult<FunctionId> {
        let identity = function.as_ptr() as usize;
        if let Some((_, id)) = lock(&self.functions).by_identity.get(&identity) {
            return Ok(*id);
        }
        let resolved = self
            .hooks
            .bind(py)
            .call_method1(intern!(py, "resolve_function"), (function,))?;
        let (body, cacheable): (Bound<'_, PyBytes>, bool) = resolved.extract()?;
        let id = self.define_function(py, body.as_bytes())?;
        if cacheable {
            let mut functions = lock(&self.functions);
            if functions.by_identity.len() >= MAX_CACHED_FUNCTIONS {
                functions.by_identity.clear();
            }
            functions
                .by_identity
                .insert(identity, (function.clone().unbind(), id));
        }
        Ok(id)
    }

    fn define_function(&self, py: Python<'_>, body: &[u8]) -> PyResult<FunctionId> {
        let digest = Sha256::digest(body);
        let mut hash = [0; 16];
        hash.copy_from_slice(&digest[..16]);
        let hash = FunctionHash(hash);
        let mut functions = lock(&self.functions);
        if let Some(id) = functions.by_hash.get(&hash) {
            return Ok(*id);
        }
        let id = FunctionId(functions.by_hash.len() as u32);
        let record = FunctionRecord {
            function: id,
            hash,
            body: Bytes::copy_from_slice(body),
        };
        let mut frame = Vec::with_capacity(body.len() + 32);
        record.encode(&mut frame);
        self.shared
            .queue(FrameKind::Function, &frame, &[])
            .map_err(|error| link_error(py, &error))?;
        functions.by_hash.insert(hash, id);
        Ok(id)
    }

    /// Waits until `is_done`, reading replies; runs Python's signal handlers. `false` when the time is over.
    pub(super) fn wait_until(
        &self,
        py: Python<'_>,
        timeout_s: Option<f64>,
        is_done: &(dyn Fn() -> bool + Sync),
    ) -> PyResult<bool> {
        if is_done() {
            return Ok(true);
        }
        let deadline = timeout_s.map(deadline_after).transpose()?;
        self.flush_fully(py)?;
        loop {
            let mut incoming = Incoming::default();
            let step = py.detach(|| {
                self.shared
                    .wait_step(deadline, &|| is_done(), &mut incoming)
            });
            tell(py, &self.hooks, incoming);
            if is_done() {
                self.shared.after_wait();
                return Ok(true);
            }
            if self.shared.is_closed() {
                return Err(link_closed(py));
            }
            py.check_signals()?;
            if step == Step::TimedOut {
                self.shared.after_wait();
                return Ok(false);
            }
        }
    }

    /// Hands everything submitted to the socket, waiting where it is full.
    pub(super) fn flush_fully(&self, py: Python<'_>) -> PyResult<()> {
        match self.shared.flush() {
            Ok(true) => return Ok(()),
            Ok(false) => {}
            Err(error) => return self.on_lost(py, &error),
        }
        let mut incoming = Incoming::default();
        let drained = py.detach(|| self.shared.drain(&mut incoming));
        tell(py, &self.hooks, incoming);
        drained.or_else(|error| self.on_lost(py, &error))
    }

    /// Takes in what has arrived, without waiting.
    fn read_once(&self, py: Python<'_>) {
        let mut incoming = Incoming::default();
        if let Err(error) = self.shared.try_read(&mut incoming) {
            self.shared.on_lost(&error, &mut incoming);
        }
        tell(py, &self.hooks, incoming);
    }

    fn on_lost(&self, py: Python<'_>, error: &LinkError) -> PyResult<()> {
        let mut incoming = Incoming::default();
        self.shared.on_lost(error, &mut incoming);
        tell(py, &self.hooks, incoming);
        Err(link_error(py, error))
    }
}

fn deadline_after(seconds: f64) -> PyResult<Instant> {
    let duration = Duration::try_from_secs_f64(seconds.max(0.0))
        .map_err(|_| PyValueError::new_err("timeout must be a finite number of seconds"))?;
    Instant::now()
        .checked_add(duration)
        .ok_or_else(|| PyValueError::new_err("timeout is too long"))
}

/// Passes news to Python; an exception in a callback is reported as unraisable, as for any destructor.
pub fn tell(py: Python<'_>, hooks: &Py<PyAny>, incoming: Incoming) {
    if incoming.is_empty() {
        return;
    }
    let hooks = hooks.bind(py);
    for notice in incoming.notices {
        if let Err(error) = hooks.call_method1(intern!(py, "on_event"), (notice.kind, notice.body))
        {
            error.write_unraisable(py, Some(hooks));
        }
    }
    for (request, part, record) in incoming.output {
        let data = PyBytes::new(py, &record.bytes);
        if let Err(error) = hooks.call_method1(
            intern!(py, "on_output"),
            (request.base, part, record.stream, data),
        ) {
            error.write_unraisable(py, Some(hooks));
        }
    }
    for callback in incoming.callbacks {
        if let Err(error) = callback.call0(py) {
            error.write_unraisable(py, Some(callback.bind(py)));
        }
    }
}

#[pymethods]
impl Link {
    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.hooks)?;
        if let Ok(functions) = self.functions.try_lock() {
            for (function, _) in functions.by_identity.values() {
                visit.call(function)?;
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
        let role = Role::Client { name };
        let hello = connection.hello(py, role);
        let (link, welcome, _) = py
            .detach(|| -> Result<_, crate::connect::ConnectError> {
                let link = dial(&connection, deadline)?;
                handshake(link, &hello, &[], deadline)
            })
            .map_err(|error| error.into_py(py))?;
        let tuning = Tuning {
            linger: Duration::from_micros(connection.options.client_linger_us),
            spin: Duration::from_micros(connection.options.client_spin_us),
            flush_bytes: connection.options.client_flush_bytes,
            max_tasks: welcome.max_outstanding_tasks,
            max_bytes: welcome.max_outstanding_bytes,
        };
        let data = DataPlane::new(
            welcome.segment_token,
            connection.inline_limit_bytes(link.is_local()),
            connection.options.pool_max_bytes,
        );
        let shared = Arc::new(Shared::new(link, &welcome, data, tuning)?);
        let mut incoming = Incoming::default();
        shared
            .take_frames(&mut incoming)
            .map_err(|error| link_error(py, &error))?;
        tell(py, &hooks, incoming);
        let background = {
            let (shared, hooks) = (Arc::clone(&shared), hooks.clone_ref(py));
            std::thread::Builder::new()
                .name("broadleaf-link".to_owned())
                .spawn(move || {
                    shared.run_background(&|incoming| {
                        // Without an interpreter left to tell, the news is of no use to anyone.
                        let _ = Python::try_attach(|py| tell(py, &hooks, incoming));
                    });
                })?
        };
        Ok(Self {
            shared,
            hooks,
            client_id: welcome.client.0,
            functions: Mutex::default(),
            options: Mutex::default(),
            background: Mutex::new(Some(background)),
            close_started: AtomicBool::new(false),
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
    fn max_outstanding_tasks(&self) -> u64 {
        self.shared.tuning.max_tasks
    }

    #[getter]
    fn get_live_output(&self) -> bool {
        self.shared.live_output.load(Ordering::Relaxed)
    }

    #[setter]
    fn set_live_output(&self, on: bool) {
        self.shared.live_output.store(on, Ordering::Relaxed);
    }

    fn define_options(&self, py: Python<'_>, options: &str) -> PyResult<u32> {
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
        self.shared
            .queue(FrameKind::Options, &body, &[])
            .map_err(|error| link_error(py, &error))?;
        known.insert(options.to_owned(), id);
        Ok(id.0)
    }

    fn engines(&self) -> Vec<(u32, String, u32, String)> {
        self.shared
            .engines()
            .into_iter()
            .map(|e| (e.engine.0, e.uuid, e.pid, e.host))
            .collect()
    }

    fn wait_for_engines(&self, py: Python<'_>, n: usize, timeout_s: Option<f64>) -> PyResult<bool> {
        // Engines known from before the link closed are of no use to anyone.
        let there = || !self.shared.is_closed() && self.shared.engines().len() >= n;
        if self.wait_until(py, timeout_s, &there)? {
            return Ok(true);
        }
        // The news that the link is gone may lie in the socket still.
        self.read_once(py);
        if self.shared.is_closed() {
            return Err(link_closed(py));
        }
        Ok(there())
    }

    #[pyo3(signature = (request, timeout_s = Some(10.0)))]
    fn request(&self, py: Python<'_>, request: &str, timeout_s: Option<f64>) -> PyResult<String> {
        let request: ControlRequest = serde_json::from_str(request)
            .map_err(|e| PyValueError::new_err(format!("request: {e}")))?;
        if self.shared.is_closed() {
            return Err(link_closed(py));
        }
        let number = self
            .shared
            .start_request(&request)
            .map_err(|error| link_error(py, &error))?;
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

    fn flush(&self, py: Python<'_>) -> PyResult<()> {
        self.flush_fully(py)
    }

    fn outstanding(&self) -> u64 {
        self.shared.outstanding.load(Ordering::Acquire)
    }

    fn outstanding_seqs(&self) -> Vec<u64> {
        self.shared.outstanding_seqs()
    }

    fn wait_all(&self, py: Python<'_>, timeout_s: Option<f64>) -> PyResult<bool> {
        self.wait_until(py, timeout_s, &|| {
            self.shared.outstanding.load(Ordering::Acquire) == 0
        })
    }

    fn wait_tasks(
        &self,
        py: Python<'_>,
        mut seqs: Vec<u64>,
        timeout_s: Option<f64>,
    ) -> PyResult<bool> {
        seqs.sort_unstable();
        let left = Mutex::new(seqs);
        self.shared.register_submissions();
        self.wait_until(py, timeout_s, &|| {
            self.shared.drop_resolved(&mut lock(&left))
        })
    }

    fn counters<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let dict = PyDict::new(py);
        let counters = &self.shared.counters;
        dict.set_item("submitted", counters.submitted.load(Ordering::Relaxed))?;
        dict.set_item("resolved", counters.resolved.load(Ordering::Relaxed))?;
        dict.set_item(
            "background_wakeups",
            counters.wakeups.load(Ordering::Relaxed),
        )?;
        dict.set_item("throttled", counters.throttled.load(Ordering::Relaxed))?;
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
        if self.close_started.swap(true, Ordering::AcqRel) {
            return;
        }
        let mut incoming = Incoming::default();
        let background = lock(&self.background).take();
        py.detach(|| {
            self.shared.close(&mut incoming);
            // A callback running on that very thread may close the link; it cannot wait for itself.
            if let Some(thread) =
                background.filter(|t| t.thread().id() != std::thread::current().id())
            {
                let _ = thread.join();
            }
        });
        tell(py, &self.hooks, incoming);
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.shared.close(&mut Incoming::default());
    }
}

fn dial(
    connection: &Connection,
    deadline: Instant,
) -> Result<broadleaf_net::Link, crate::connect::ConnectError> {
    if let Some(path) = connection
        .unix_path
        .as_deref()
        .filter(|_| connection.transport.as_deref() != Some("tcp"))
    {
        return Ok(broadleaf_net::Link::unix(UnixStream::connect(path)?)?);
    }
    let Some(address) = &connection.tcp else {
        return Err(crate::connect::ConnectError::NoAddress);
    };
    let left = deadline
        .saturating_duration_since(Instant::now())
        .max(Duration::from_millis(1));
    let socket_address = address.resolve()?;
    let stream = TcpStream::connect_timeout(&socket_address, left)?;
    if !connection.tls {
        return Ok(broadleaf_net::Link::tcp(stream)?);
    }
    Ok(broadleaf_net::Link::tls_client(
        stream,
        &connection.client_tls()?,
    )?)
}
