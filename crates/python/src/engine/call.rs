//! A task's call: its function, its arguments, and its outcome.

use broadleaf_net::LinkError;
use broadleaf_proto::layout::{COMPOUND, Delivery, PLAIN};
use broadleaf_proto::task::{AssignRecord, DoneRecord};
use broadleaf_proto::{FrameKind, Payload, Status, TaskKey};
use pyo3::exceptions::{PyBaseException, PyRuntimeError, PyValueError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBytes, PyList, PyTuple, PyType};

use super::{Engine, Function};
use crate::client::split_announce;
use crate::clock::wall_ns;
use crate::errors::PayloadTooLarge;
use crate::payload::plain;
use crate::payload::{Decoded, Encoded, Value, Way, lock};

/// A longer error record travels as a value does: that of a chunk has the values of the items that did not raise.
const MAX_INLINE_RECORD_BYTES: usize = 4 * 1024 * 1024;

static COROUTINE_TYPE: PyOnceLock<Py<PyType>> = PyOnceLock::new();

/// Why a task has no value: what it raised, and the arguments it was called with, if it got that far.
pub(super) struct Failure<'py> {
    error: PyErr,
    args: Option<Bound<'py, PyTuple>>,
}

impl Failure<'_> {
    /// What the task raised.
    pub(super) fn error(&self) -> &PyErr {
        &self.error
    }
}

impl From<PyErr> for Failure<'_> {
    fn from(error: PyErr) -> Self {
        Self { error, args: None }
    }
}

impl Engine {
    /// Runs one claimed task; its outcome is queued for sending.
    pub(super) fn run_task(&self, py: Python<'_>, task: AssignRecord) -> Result<(), LinkError> {
        let outer = self.stack.enter(task.key, task.depth);
        let started_ns = wall_ns();
        let begun = self.processor.begin(started_ns, self.is_short(&task));
        // Filled in place: it is large, and moving it costs as much as everything else here.
        let mut encoded = Encoded::default();
        let outcome = self
            .call(py, &task)
            .and_then(|value| Ok(self.awaited(value)?))
            .and_then(|value| {
                self.end_child(py, None);
                let encoding = self.encode_value(&value, &mut encoded);
                Ok(encoding.map_err(|error| self.explain_too_large(error, &value))?)
            });
        self.end_child(py, outcome.as_ref().err().map(Failure::error));
        // An interrupt meant for this task ends with the task.
        self.board.finish(self.stack.level());
        let completed_ns = wall_ns();
        let status = match outcome {
            Ok(()) => Status::Ok,
            Err(error) => self.encode_error(py, error, &mut encoded),
        };
        let task_ns = completed_ns.saturating_sub(started_ns);
        let cpu_ns = self.processor.end(&begun, completed_ns, task_ns);
        self.leave(&outer, task_ns);
        self.last_task.on_ended(task.function, task_ns);
        if self.unfit.get().is_some() {
            // No result: its client is told how the engine ended.
            return Err(LinkError::Closed);
        }
        let (key, function) = (task.key, task.function.0);
        // The arguments' segments are released before the reply is sent, so that both travel together.
        drop(task);
        let times = (started_ns, completed_ns, cpu_ns);
        self.queue_done(key, status, times, &mut encoded)?;
        self.restore_surroundings(py, function);
        Ok(())
    }

    fn queue_done(
        &self,
        key: TaskKey,
        status: Status,
        (started_ns, completed_ns, cpu_ns): (u64, u64, u64),
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
            cpu_ns,
            payload,
        };
        let task_ns = completed_ns.saturating_sub(started_ns);
        if announcements.is_empty()
            && self.io.flushing.is_short(task_ns)
            && self.answer_on_lane(&record)
        {
            return self.count_answer(key);
        }
        let queued_bytes = {
            let mut link = lock(&self.io.link);
            for announcement in announcements {
                let fds = announcement.fds();
                link.send(FrameKind::SegmentAnnounce, &announcement.body, &fds)?;
                self.io.data.on_announced(&announcement.ids);
            }
            link.append(FrameKind::Done, |frame| record.encode(frame));
            link.queued_bytes()
        };
        self.io.on_reply(queued_bytes, task_ns, completed_ns)?;
        self.count_answer(key)
    }

    fn function(&self, py: Python<'_>, id: u32) -> PyResult<Py<PyAny>> {
        let body = match lock(&self.functions).get(&id) {
            Some(Function::Loaded(function)) => return Ok(function.clone_ref(py)),
            Some(Function::Unloaded(body)) => body.clone(),
            None => {
                return Err(PyRuntimeError::new_err(
                    "the task names a function that was never sent",
                ));
            }
        };
        // A function that cannot be loaded may load another time: a module it needs can arrive later.
        let function = self
            .hooks
            .bind(py)
            .call_method1(intern!(py, "load_function"), (PyBytes::new(py, &body),))?
            .unbind();
        let loaded = Function::Loaded(function.clone_ref(py));
        lock(&self.functions).insert(id, loaded);
        Ok(function)
    }

    pub(super) fn call<'py>(
        &self,
        py: Python<'py>,
        task: &AssignRecord,
    ) -> Result<Bound<'py, PyAny>, Failure<'py>> {
        let function = self.function(py, task.function.0)?;
        let function = function.bind(py);
        match task.payload.bytes.split_first() {
            None => Ok(function.call0()?),
            Some((&PLAIN, rest)) => {
                let (args, kwargs) = plain::decode_call(py, rest, &[])?;
                let called = function.call(&args, kwargs.as_ref());
                called.map_err(|error| Failure {
                    error,
                    args: Some(args),
                })
            }
            Some((&COMPOUND, _)) => {
                let (captured, (args, kwargs)) = self.compound_call(py, task)?;
                let bound = if captured.is_empty() {
                    function.clone()
                } else {
                    function.call_method1(intern!(py, "bind"), (captured,))?
                };
                let called = bound.call(&args, kwargs.as_ref());
                // The arguments are dropped here, so the caller need not wait for that.
                self.io.data.received().retire();
                called.map_err(|error| Failure {
                    error,
                    args: Some(args),
                })
            }
            Some(_) => Err(PyValueError::new_err("malformed arguments").into()),
        }
    }

    /// The captured values of a call's function, and the arguments of a call with buffers or a pickle.
    fn compound_call<'py>(
        &self,
        py: Python<'py>,
        task: &AssignRecord,
    ) -> PyResult<(Vec<Bound<'py, PyAny>>, plain::Call<'py>)> {
        let Decoded {
            value,
            captured,
            buffers,
        } = self.io.data.decode_compound(py, &task.payload)?;
        if let Some(call) = value.read_plain(|rest| plain::decode_call(py, rest, &buffers))? {
            return Ok((captured, call));
        }
        if matches!(value, Value::Inline(&[])) {
            return Ok((captured, (PyTuple::empty(py), None)));
        }
        let call = self.hooks.bind(py).call_method1(
            intern!(py, "load_args"),
            (value.into_pickle(py), PyList::new(py, buffers)?),
        )?;
        Ok((captured, call.extract()?))
    }

    /// The value that a task returned: the coroutine's, if it is one.
    pub(super) fn awaited<'py>(&self, value: Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        let py = value.py();
        let coroutine_type = COROUTINE_TYPE.import(py, "types", "CoroutineType")?;
        if !value.get_type().is(coroutine_type) {
            return Ok(value);
        }
        self.hooks
            .bind(py)
            .call_method1(intern!(py, "run_coroutine"), (value,))
    }

    fn encode_value(&self, value: &Bound<'_, PyAny>, encoded: &mut Encoded) -> PyResult<()> {
        if value.is_none() {
            return Ok(());
        }
        let mut bytes = vec![PLAIN];
        let mut out_of_band = plain::OutOfBand::default();
        if plain::encode(value, &mut bytes, &mut out_of_band) {
            if out_of_band.buffers.is_empty() && !self.io.data.is_apart(bytes.len()) {
                encoded.bytes = bytes;
                return Ok(());
            }
            let mut way = Way::default();
            if out_of_band.is_text() {
                way.delivery = Delivery::Readonly;
            }
            *encoded = (self.io.data).encode_compound(&bytes, &out_of_band.buffers, way, None)?;
            return Ok(());
        }
        // What was encoded in vain.
        drop(bytes);
        self.io.data.check_size(std::iter::once(value.clone()))?;
        let dumped = self
            .hooks
            .bind(value.py())
            .call_method1(intern!(value.py(), "dump_value"), (value,))?;
        let (pickle, buffers): (Bound<'_, PyBytes>, Vec<Bound<'_, PyAny>>) = dumped.extract()?;
        *encoded =
            self.io
                .data
                .encode_compound(pickle.as_bytes(), &buffers, Way::default(), None)?;
        Ok(())
    }

    /// The exception for a result that cannot be sent: if it does not fit into a message, one that says so.
    fn explain_too_large(&self, error: PyErr, value: &Bound<'_, PyAny>) -> PyErr {
        let py = value.py();
        if !error.is_instance_of::<PayloadTooLarge>(py) {
            return error;
        }
        let explained = error.value(py).getattr("args").and_then(|sizes| {
            let hooks = self.hooks.bind(py);
            hooks.call_method1(intern!(py, "explain_too_large"), (value, sizes))
        });
        explained.map_or_else(|_| error, PyErr::from_value)
    }

    /// Puts the record of a failure into `encoded`.
    fn encode_error(&self, py: Python<'_>, failure: Failure<'_>, encoded: &mut Encoded) -> Status {
        let Failure { error, args } = failure;
        let hooks = self.hooks.bind(py);
        let unmet = hooks
            .getattr(intern!(py, "unmet_type"))
            .is_ok_and(|unmet| error.is_instance(py, &unmet));
        if unmet {
            let said = error.value(py).str().map(|text| text.to_string());
            encoded.bytes = said.unwrap_or_default().into();
            return Status::Unmet;
        }
        let value = error.value(py);
        // Before Python 3.12 an exception in flight does not carry its traceback itself. Its type may forbid setting
        // attributes.
        if let Some(traceback) = error.traceback(py)
            && let Err(second) = py.get_type::<PyBaseException>().call_method1(
                intern!(py, "__setattr__"),
                (value, intern!(py, "__traceback__"), traceback),
            )
        {
            second.write_unraisable(py, None);
        }
        let arguments = args.unwrap_or_else(|| PyTuple::empty(py));
        let encoding = self.encode_record(value, &arguments, encoded);
        // The outcomes of a chunk's items may not fit into memory: then the record says so.
        let encoding = encoding
            .or_else(|second| self.encode_record(second.value(py), &PyTuple::empty(py), encoded));
        if let Err(second) = encoding {
            self.note_unfit(py, &second);
            second.write_unraisable(py, None);
            *encoded = Encoded::default();
        }
        Status::Error
    }

    /// Puts the record of what a task raised into `encoded`: inline, or as a value if it has buffers or is long.
    fn encode_record(
        &self,
        error: &Bound<'_, PyBaseException>,
        arguments: &Bound<'_, PyTuple>,
        encoded: &mut Encoded,
    ) -> PyResult<()> {
        let py = error.py();
        let dumped = self
            .hooks
            .bind(py)
            .call_method1(intern!(py, "dump_error"), (error, arguments))?;
        let (record, buffers): (Bound<'_, PyBytes>, Vec<Bound<'_, PyAny>>) = dumped.extract()?;
        let bytes = record.as_bytes();
        if buffers.is_empty() && bytes.len() <= MAX_INLINE_RECORD_BYTES {
            encoded.bytes = bytes.to_vec();
            return Ok(());
        }
        *encoded = self
            .io
            .data
            .encode_compound(bytes, &buffers, Way::default(), None)?;
        Ok(())
    }
}
