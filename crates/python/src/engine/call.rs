//! The call that a task is: its function, its arguments, and what came of it.

use broadleaf_proto::Status;
use broadleaf_proto::layout::{COMPOUND, Delivery, PLAIN};
use broadleaf_proto::task::AssignRecord;
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};

use super::{Engine, Function};
use crate::payload::{Encoded, lock};
use crate::plain;

impl Engine {
    fn function(&self, py: Python<'_>, id: u32) -> PyResult<Py<PyAny>> {
        let body = match lock(&self.work).functions.get(&id) {
            Some(Function::Loaded(function)) => return Ok(function.clone_ref(py)),
            Some(Function::Failed(error)) => return Err(PyErr::from_value(error.bind(py).clone())),
            Some(Function::Unloaded(body)) => body.clone(),
            None => {
                return Err(PyRuntimeError::new_err(
                    "the task names a function never sent",
                ));
            }
        };
        let loaded = self
            .hooks
            .bind(py)
            .call_method1(intern!(py, "load_function"), (PyBytes::new(py, &body),));
        let (entry, result) = match loaded {
            Ok(function) => (
                Function::Loaded(function.clone().unbind()),
                Ok(function.unbind()),
            ),
            Err(error) => (
                Function::Failed(error.value(py).clone().into_any().unbind()),
                Err(error),
            ),
        };
        lock(&self.work).functions.insert(id, entry);
        result
    }

    pub(super) fn call<'py>(
        &self,
        py: Python<'py>,
        task: &AssignRecord,
    ) -> PyResult<Bound<'py, PyAny>> {
        let function = self.function(py, task.function.0)?;
        let function = function.bind(py);
        match task.payload.bytes.split_first() {
            None => function.call0(),
            Some((&PLAIN, rest)) => {
                let (args, kwargs) = plain::decode_call(py, rest, Vec::new())?;
                function.call(args, kwargs.as_ref())
            }
            Some((&COMPOUND, _)) => {
                let (args, kwargs) = self.compound_call(py, task)?;
                let value = function.call(args.clone(), kwargs.as_ref());
                // The arguments are dropped here, and the caller need not wait for that.
                self.io.data.received().retire();
                value
            }
            Some(_) => Err(PyValueError::new_err("malformed arguments")),
        }
    }

    /// The arguments of a call that has buffers, or is pickled.
    fn compound_call<'py>(
        &self,
        py: Python<'py>,
        task: &AssignRecord,
    ) -> PyResult<plain::Call<'py>> {
        let (value, buffers) = self.io.data.decode_compound(py, &task.payload)?;
        if let Some((&PLAIN, rest)) = value.split_first() {
            return plain::decode_call(py, rest, buffers);
        }
        let call = self.hooks.bind(py).call_method1(
            intern!(py, "load_args"),
            (PyBytes::new(py, value), PyList::new(py, buffers)?),
        )?;
        call.extract()
    }

    pub(super) fn encode_value(&self, value: &Bound<'_, PyAny>) -> PyResult<Encoded> {
        if value.is_none() {
            return Ok(Encoded::default());
        }
        let mut bytes = vec![PLAIN];
        let mut apart = plain::Apart::default();
        if plain::encode(value, &mut bytes, &mut apart) {
            if apart.buffers.is_empty() {
                return Ok(Encoded {
                    bytes,
                    ..Encoded::default()
                });
            }
            return self
                .io
                .data
                .encode_compound(&bytes, &apart.buffers, Delivery::Private);
        }
        let dumped = self
            .hooks
            .bind(value.py())
            .call_method1(intern!(value.py(), "dump_value"), (value,))?;
        let (pickle, buffers): (Bound<'_, PyBytes>, Vec<Bound<'_, PyAny>>) = dumped.extract()?;
        self.io
            .data
            .encode_compound(pickle.as_bytes(), &buffers, Delivery::Private)
    }

    pub(super) fn encode_error(&self, py: Python<'_>, error: &PyErr) -> (Status, Encoded) {
        let hooks = self.hooks.bind(py);
        let unmet = hooks
            .getattr(intern!(py, "unmet_type"))
            .is_ok_and(|unmet| error.is_instance(py, &unmet));
        if unmet {
            return (Status::Unmet, Encoded::default());
        }
        let value = error.value(py);
        // Before Python 3.12 an exception on its way does not carry its traceback itself.
        if let Some(traceback) = error.traceback(py)
            && let Err(second) = value.setattr("__traceback__", traceback)
        {
            second.write_unraisable(py, None);
        }
        let record = hooks
            .call_method1(intern!(py, "dump_error"), (value,))
            .and_then(|r| r.extract::<Vec<u8>>());
        let bytes = record.unwrap_or_else(|second| {
            second.write_unraisable(py, None);
            Vec::new()
        });
        (
            Status::Error,
            Encoded {
                bytes,
                ..Encoded::default()
            },
        )
    }
}
