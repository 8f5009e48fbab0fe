//! Passes on to Python what has arrived.

use pyo3::exceptions::PyKeyboardInterrupt;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::client::shared::{Incoming, Shared};

/// Passes events to Python; an exception in a callback is reported as unraisable, as for any destructor.
pub fn tell(py: Python<'_>, hooks: &Py<PyAny>, incoming: Incoming) {
    if incoming.is_empty() {
        return;
    }
    let hooks = hooks.bind(py);
    for notice in incoming.notices {
        if let Err(error) = hooks.call_method1(intern!(py, "on_event"), (notice.kind, notice.body))
        {
            report(py, error, hooks);
        }
    }
    for (request, part, record) in incoming.output {
        let data = PyBytes::new(py, &record.bytes);
        if let Err(error) = hooks.call_method1(
            intern!(py, "on_output"),
            (request.base, part, record.stream, data),
        ) {
            report(py, error, hooks);
        }
    }
    if incoming.is_to_show
        && let Err(error) = hooks.call_method0(intern!(py, "show_output"))
    {
        report(py, error, hooks);
    }
    for callback in incoming.callbacks {
        if let Err(error) = callback.call0(py) {
            report(py, error, callback.bind(py));
        }
    }
}

impl Shared {
    /// As [`tell`], in the middle of a wait: callbacks may take long, or wait for others.
    pub fn tell_amid_wait(&self, py: Python<'_>, hooks: &Py<PyAny>, incoming: Incoming) {
        if !incoming.is_empty() {
            self.leave_to_others();
            tell(py, hooks, incoming);
        }
    }
}

/// Reports what a callback raised. Ctrl-C does not belong to the callback: it is raised again in whatever waits for the
/// link.
pub fn report(py: Python<'_>, error: PyErr, callback: &Bound<'_, PyAny>) {
    let error = if error.is_instance_of::<PyKeyboardInterrupt>(py) {
        match py
            .import(intern!(py, "_thread"))
            .and_then(|thread| thread.call_method0(intern!(py, "interrupt_main")))
        {
            Ok(_) => return,
            Err(second) => second,
        }
    } else {
        error
    };
    error.write_unraisable(py, Some(callback));
}
