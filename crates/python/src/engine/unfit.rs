//! Engines whose Python no longer works because a task has damaged it.

use pyo3::exceptions::{PyMemoryError, PyRuntimeError};
use pyo3::prelude::*;

use super::Engine;

impl Engine {
    /// An exception of a task could not even be described, for this reason. Python's own modules may be gone, and then
    /// no later task works either. Running out of memory is different, because it may be temporary.
    pub(super) fn note_unfit(&self, py: Python<'_>, error: &PyErr) {
        if !error.is_instance_of::<PyMemoryError>(py) {
            // The first reason is the one to report.
            let _ = self.unfit.set(error.to_string());
        }
    }

    /// The end of an engine that can no longer run tasks.
    ///
    /// # Errors
    /// `RuntimeError`, once `note_unfit` was called.
    pub(super) fn check_fit(&self) -> PyResult<()> {
        self.unfit.get().map_or(Ok(()), |reason| {
            Err(PyRuntimeError::new_err(format!(
                "the engine ends because it cannot report what its task raised: {reason}. A task may have deleted modules that \
                 Python needs (sys.modules)"
            )))
        })
    }
}
