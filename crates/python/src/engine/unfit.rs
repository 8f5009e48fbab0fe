//! Engines whose Python works no more, because a task has taken it apart.

use pyo3::exceptions::{PyMemoryError, PyRuntimeError};
use pyo3::prelude::*;

use super::Engine;

impl Engine {
    /// What a task raised could not even be described, for this reason. Python's own modules may be gone, and then no
    /// later task works either. Memory that runs out is another matter: it may pass.
    pub(super) fn note_unfit(&self, py: Python<'_>, error: &PyErr) {
        if !error.is_instance_of::<PyMemoryError>(py) {
            // The first reason is the one to tell.
            let _ = self.unfit.set(error.to_string());
        }
    }

    /// The end of an engine that is not fit for tasks any more.
    ///
    /// # Errors
    /// `RuntimeError`, once `note_unfit` was called.
    pub(super) fn check_fit(&self) -> PyResult<()> {
        self.unfit.get().map_or(Ok(()), |reason| {
            Err(PyRuntimeError::new_err(format!(
                "the engine ends, as it cannot say what its task raised: {reason}. A task may have deleted modules that \
                 Python needs (sys.modules)"
            )))
        })
    }
}
