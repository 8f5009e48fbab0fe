//! `_native.Pending`: a request as Python sees it; the base of `AsyncResult`.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, OnceLock};

use broadleaf_client::Part;
use broadleaf_proto::control::{DeathCertificate, RefusalReason};
use broadleaf_proto::layout::{COMPOUND, PLAIN};
use broadleaf_proto::{Status, control};
use pyo3::exceptions::{PyIndexError, PyRuntimeError, PyTimeoutError, PyValueError};
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyBytes, PyFloat, PyInt, PyList, PyString};
use smallvec::SmallVec;

use crate::buffer::{track, untrack};
use crate::client::incoming::tell::tell;
use crate::client::link::Link;
use crate::client::requests::begun;
use crate::client::requests::request::Request;
use crate::client::session::Session;
use crate::client::shared::Incoming;
use crate::clock::wall_ns;
use crate::payload::lock;
use crate::payload::plain;

type Outcome = Result<Py<PyAny>, Py<PyAny>>;

struct Inner {
    request: Arc<Request>,
    link: Py<Link>,
    /// The connection that it was submitted over.
    session: Arc<Session>,
    origin: Py<PyAny>,
    function: Py<PyAny>,
    outcomes: Mutex<SmallVec<[Option<Outcome>; 1]>>,
}

/// A request of one or more parts that are resolved one by one. Subclassed by `AsyncResult`.
#[pyclass(subclass, frozen, weakref, module = "broadleaf._native")]
pub struct Pending {
    inner: OnceLock<Inner>,
}

impl Pending {
    /// Attaches it to a request.
    ///
    /// Hundreds of thousands of results are made, and the collector would traverse all of them repeatedly. The objects
    /// that a new one refers to (link, view, function) do not refer back, so it is hidden from the collector until it
    /// holds a value that may.
    pub(in crate::client) fn fill(
        slf: &Bound<'_, Self>,
        request: Arc<Request>,
        link: &Py<Link>,
        session: &Arc<Session>,
        origin: &Py<PyAny>,
        function: &Bound<'_, PyAny>,
    ) {
        let py = slf.py();
        begun::note(&session.shared, &request);
        let inner = Inner {
            request,
            link: link.clone_ref(py),
            session: Arc::clone(session),
            origin: origin.clone_ref(py),
            function: function.clone().unbind(),
            outcomes: Mutex::default(),
        };
        assert!(
            slf.get().inner.set(inner).is_ok(),
            "invariant: a fresh Pending is filled once"
        );
        untrack(slf);
    }

    fn inner(&self) -> PyResult<&Inner> {
        self.inner
            .get()
            .ok_or_else(|| PyRuntimeError::new_err("only views create results"))
    }

    pub(in crate::client) fn request(&self) -> PyResult<&Arc<Request>> {
        Ok(&self.inner()?.request)
    }

    fn part(&self, part: usize) -> PyResult<Part> {
        self.inner()?
            .request
            .part(part)
            .ok_or_else(|| PyIndexError::new_err("no such part"))
    }

    fn wait(
        &self,
        py: Python<'_>,
        timeout_s: Option<f64>,
        is_done: &(dyn Fn() -> bool + Sync),
    ) -> PyResult<bool> {
        let session = &self.inner()?.session;
        session.wait_for_tasks(py, timeout_s, is_done)
    }

    /// The value or the exception of a resolved part; decoded once.
    fn outcome(slf: &Bound<'_, Self>, index: usize) -> PyResult<Outcome> {
        let py = slf.py();
        let inner = slf.get().inner()?;
        if let Some(Some(outcome)) = lock(&inner.outcomes).get(index) {
            return Ok(clone_outcome(py, outcome));
        }
        let part = slf.get().part(index)?;
        let Some(status) = part.status else {
            return Err(PyRuntimeError::new_err("the part is not resolved yet"));
        };
        let outcome = if status == Status::Ok {
            match decode_value(py, inner, &part) {
                Ok(value) => Ok(value.unbind()),
                Err(error) => Err(error.into_value(py).into_any()),
            }
        } else {
            Err(decode_failure(slf, inner, index, status, &part)?.unbind())
        };
        inner.request.forget_payload(index);
        drop(part);
        let mut outcomes = lock(&inner.outcomes);
        // No further than needed: equal outcomes of many parts are stored with the first.
        if outcomes.len() <= index {
            outcomes.resize_with(index + 1, || None);
        }
        // Another thread may have decoded it as well. What is not kept is dropped without the lock: that may run code.
        let (kept, spare) = match &mut outcomes[index] {
            Some(kept) => (clone_outcome(py, kept), Some(outcome)),
            empty => (clone_outcome(py, empty.insert(outcome)), None),
        };
        drop(outcomes);
        drop(spare);
        if !is_atom(py, &kept) {
            track(slf);
        }
        Ok(kept)
    }
}

/// Whether an outcome cannot be part of a reference cycle.
fn is_atom(py: Python<'_>, outcome: &Outcome) -> bool {
    let Ok(value) = outcome else { return false };
    let value = value.bind(py);
    value.is_none()
        || value.is_exact_instance_of::<PyString>()
        || value.is_exact_instance_of::<PyInt>()
        || value.is_exact_instance_of::<PyFloat>()
        || value.is_exact_instance_of::<PyBool>()
        || value.is_exact_instance_of::<PyBytes>()
}

fn clone_outcome(py: Python<'_>, outcome: &Outcome) -> Outcome {
    match outcome {
        Ok(value) => Ok(value.clone_ref(py)),
        Err(error) => Err(error.clone_ref(py)),
    }
}

fn decode_value<'py>(py: Python<'py>, inner: &Inner, part: &Part) -> PyResult<Bound<'py, PyAny>> {
    match part.payload.bytes.split_first() {
        None => Ok(py.None().into_bound(py)),
        Some((&PLAIN, rest)) => plain::decode(py, rest, &[]),
        Some((&COMPOUND, _)) => {
            let session = &inner.session;
            let decoded = session.shared.data.decode_compound(py, &part.payload)?;
            let (value, buffers) = (decoded.value, decoded.buffers);
            if let Some(value) = value.read_plain(|rest| plain::decode(py, rest, &buffers))? {
                return Ok(value);
            }
            session.hooks.bind(py).call_method1(
                intern!(py, "load_value"),
                (value.into_pickle(py), PyList::new(py, buffers)?),
            )
        }
        Some(_) => Err(PyValueError::new_err("malformed result")),
    }
}

/// A list of one value `n` times. Filling a list from outside takes a call for each of them.
fn repeated(value: Bound<'_, PyAny>, n: usize) -> PyResult<Bound<'_, PyList>> {
    let one = PyList::new(value.py(), [value])?;
    Ok(one.as_sequence().repeat(n)?.cast_into()?)
}

fn decode_failure<'py>(
    slf: &Bound<'py, Pending>,
    inner: &Inner,
    index: usize,
    status: Status,
    part: &Part,
) -> PyResult<Bound<'py, PyAny>> {
    let py = slf.py();
    let session = &inner.session;
    let hooks = session.hooks.bind(py);
    let bytes = &part.payload.bytes;
    let text = match status {
        Status::Lost => control::decode::<DeathCertificate>(bytes)
            .ok()
            .and_then(|c| serde_json::to_vec(&c).ok()),
        Status::Refused => control::decode::<RefusalReason>(bytes)
            .ok()
            .and_then(|r| serde_json::to_vec(&r).ok()),
        _ => Some(bytes.to_vec()),
    };
    let engine = if part.engine == u32::MAX {
        -1
    } else {
        i64::from(part.engine)
    };
    // A pickle begins with another byte.
    let (payload, buffers) = if status == Status::Error && bytes.first() == Some(&COMPOUND) {
        let decoded = session.shared.data.decode_compound(py, &part.payload)?;
        (decoded.value.into_pickle(py), decoded.buffers)
    } else {
        let text = PyBytes::new(py, &text.unwrap_or_default());
        (text.into_any(), Vec::new())
    };
    let buffers = PyList::new(py, buffers)?;
    hooks.call_method1(
        intern!(py, "decode_failure"),
        (status as u8, payload, buffers, engine, slf, index),
    )
}

#[pymethods]
impl Pending {
    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        let Some(inner) = self.inner.get() else {
            return Ok(());
        };
        visit.call(&inner.link)?;
        visit.call(&inner.origin)?;
        visit.call(&inner.function)?;
        // The lock is held only while another thread decodes; then the next collection sees the values.
        if let Ok(outcomes) = inner.outcomes.try_lock() {
            for outcome in outcomes.iter().flatten() {
                match outcome {
                    Ok(object) | Err(object) => visit.call(object)?,
                }
            }
        }
        Ok(())
    }

    #[new]
    fn new() -> Self {
        Self {
            inner: OnceLock::new(),
        }
    }

    #[getter]
    fn seq(&self) -> PyResult<u64> {
        Ok(self.inner()?.request.base)
    }

    fn __len__(&self) -> PyResult<usize> {
        Ok(self.inner()?.request.len)
    }

    #[getter]
    fn n_parts(&self) -> PyResult<usize> {
        Ok(self.inner()?.request.len)
    }

    #[getter]
    fn origin(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        Ok(self.inner()?.origin.clone_ref(py))
    }

    #[getter]
    fn function(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        Ok(self.inner()?.function.clone_ref(py))
    }

    #[getter]
    fn link(&self, py: Python<'_>) -> PyResult<Py<Link>> {
        Ok(self.inner()?.link.clone_ref(py))
    }

    #[getter]
    fn submitted_ns(&self) -> PyResult<u64> {
        Ok(self.inner()?.request.submitted_ns)
    }

    fn all_done(&self) -> PyResult<bool> {
        Ok(self.inner()?.request.all_done())
    }

    fn n_done(&self) -> PyResult<usize> {
        Ok(self.inner()?.request.n_done())
    }

    fn part_done(&self, part: usize) -> PyResult<bool> {
        Ok(self.part(part)?.status.is_some())
    }

    fn wait_all_done(&self, py: Python<'_>, timeout_s: Option<f64>) -> PyResult<bool> {
        let request = &self.inner()?.request;
        self.wait(py, timeout_s, &|| request.all_done())
    }

    fn wait_part(&self, py: Python<'_>, part: usize, timeout_s: Option<f64>) -> PyResult<bool> {
        self.part(part)?;
        let request = &self.inner()?.request;
        self.wait(py, timeout_s, &|| request.status(part).is_some())
    }

    fn wait_count(&self, py: Python<'_>, n: usize, timeout_s: Option<f64>) -> PyResult<bool> {
        let request = &self.inner()?.request;
        let n = n.min(request.len);
        self.wait(py, timeout_s, &|| request.n_done() >= n)
    }

    fn completed_part(&self, rank: usize) -> PyResult<usize> {
        let found = self.inner()?.request.completed_part(rank);
        found.ok_or_else(|| PyIndexError::new_err("not that many parts are resolved"))
    }

    fn status(&self, part: usize) -> PyResult<i32> {
        Ok(self
            .part(part)?
            .status
            .map_or(-1, |status| i32::from(status as u8)))
    }

    fn value(slf: &Bound<'_, Self>, part: usize) -> PyResult<Py<PyAny>> {
        Self::outcome(slf, part)?.map_err(|error| PyErr::from_value(error.into_bound(slf.py())))
    }

    fn returned(slf: &Bound<'_, Self>) -> PyResult<Option<Vec<Py<PyAny>>>> {
        let request = &slf.get().inner()?.request;
        if !request.all_done() {
            return Ok(None);
        }
        let mut values = Vec::with_capacity(request.len);
        for part in 0..request.len {
            match Self::outcome(slf, part)? {
                Ok(value) => values.push(value),
                Err(_) => return Ok(None),
            }
        }
        Ok(Some(values))
    }

    /// All values in order, or `None` when a part has no value.
    fn values<'py>(slf: &Bound<'py, Self>) -> PyResult<Option<Bound<'py, PyList>>> {
        let py = slf.py();
        let request = &slf.get().inner()?.request;
        let mut values = Vec::with_capacity(request.len);
        while values.len() < request.len {
            let index = values.len();
            // Checked first: decoding a value drops its payload.
            let plain_until = request.plain_until(index);
            let Ok(value) = Self::outcome(slf, index)? else {
                return Ok(None);
            };
            let value = value.into_bound(py);
            // Equal immutable values share one object.
            let end = plain_until
                .filter(|_| plain::is_immutable(&value))
                .map_or(index + 1, |end| end as usize);
            if end - index == request.len {
                return repeated(value, request.len).map(Some);
            }
            values.resize(end, value);
        }
        PyList::new(py, values).map(Some)
    }

    fn failure(slf: &Bound<'_, Self>, part: usize) -> PyResult<Option<Py<PyAny>>> {
        Ok(Self::outcome(slf, part)?.err())
    }

    fn times(&self, part: usize) -> PyResult<(u64, u64, u64, i64)> {
        let part = self.part(part)?;
        let nowhere = part.status.is_none() || part.engine == u32::MAX;
        let engine = if nowhere { -1 } else { i64::from(part.engine) };
        Ok((part.started_ns, part.completed_ns, part.received_ns, engine))
    }

    fn cpu_ns(&self, part: usize) -> PyResult<u64> {
        Ok(self.part(part)?.cpu_ns)
    }

    fn text_since(
        &self,
        part: usize,
        stream: u8,
        position_bytes: usize,
    ) -> PyResult<(String, usize)> {
        let more_to_come = self.part(part)?.status.is_none();
        let request = &self.inner()?.request;
        Ok(request.read_written(part, |written| {
            written.text_since(stream, position_bytes, more_to_come)
        }))
    }

    fn messages<'py>(&self, py: Python<'py>, part: usize) -> PyResult<Vec<Bound<'py, PyBytes>>> {
        self.part(part)?;
        let request = &self.inner()?.request;
        let messages = request.read_written(part, |written| written.messages().clone());
        Ok(messages.iter().map(|m| PyBytes::new(py, m)).collect())
    }

    fn written_parts(&self) -> PyResult<Vec<usize>> {
        Ok(self.inner()?.request.written_parts())
    }

    /// Marks the unresolved parts among these as cancelled.
    fn abandon(&self, py: Python<'_>, parts: Vec<usize>) -> PyResult<()> {
        let inner = self.inner()?;
        let mut incoming = Incoming::default();
        let session = &inner.session;
        session.check_process(py)?;
        let callbacks = inner.request.abandon(parts, wall_ns());
        session.shared.collect(callbacks, &mut incoming);
        session.shared.on_changed();
        tell(py, &session.hooks, incoming);
        Ok(())
    }

    fn n_failed(&self) -> PyResult<usize> {
        Ok(self.inner()?.request.n_failed())
    }

    fn on_done(&self, py: Python<'_>, callback: Py<PyAny>) -> PyResult<()> {
        let inner = self.inner()?;
        let session = &inner.session;
        session.check_process(py)?;
        session.shared.callbacks.fetch_add(1, Ordering::AcqRel);
        if let Some(callback) = inner.request.on_done(callback) {
            session.shared.callbacks.fetch_sub(1, Ordering::AcqRel);
            callback.call0(py)?;
            return Ok(());
        }
        // The submission may still be waiting in a batch, and the background thread may have left the socket to others.
        session.flush_fully(py)?;
        session.shared.wake_background();
        Ok(())
    }

    fn get_single(slf: &Bound<'_, Self>, timeout_s: Option<f64>) -> PyResult<Py<PyAny>> {
        let py = slf.py();
        let request = &slf.get().inner()?.request;
        if !slf.get().wait(py, timeout_s, &|| request.n_done() > 0)? {
            return Err(PyTimeoutError::new_err("Result not ready."));
        }
        Self::value(slf, 0)
    }
}
