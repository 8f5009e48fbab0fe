//! The children that tasks fork.

use pyo3::intern;
use pyo3::prelude::*;

use super::Engine;

impl Engine {
    /// A child that a task has forked, and that comes back from the task with or without an error, ends here: it is no
    /// engine.
    pub(super) fn end_child(&self, py: Python<'_>, error: Option<&PyErr>) {
        if !self.owner.is_elsewhere() {
            return;
        }
        let error = error.map(|error| error.value(py));
        let ended = self
            .hooks
            .bind(py)
            .call_method1(intern!(py, "end_child"), (error,));
        if let Err(error) = ended {
            error.write_unraisable(py, None);
        }
        // A hook that fails, for instance because it was interrupted, does not let two processes be one engine.
        if let Ok(os) = py.import(intern!(py, "os")) {
            drop(os.call_method1(intern!(py, "_exit"), (1,)));
        }
        std::process::abort();
    }
}
