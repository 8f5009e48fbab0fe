//! Children that tasks fork.

use pyo3::intern;
use pyo3::prelude::*;

use super::Engine;

impl Engine {
    /// A child that a task forked and that returns from the task, with or without an error, ends here: it is not an
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
        // It was interrupted. Interrupting it again does not keep it from ending: two processes cannot be one engine.
        let end_unheard = || -> PyResult<()> {
            let signal = py.import(intern!(py, "_signal"))?;
            let how = signal.getattr(intern!(py, "SIG_BLOCK"))?;
            let interrupt = signal.getattr(intern!(py, "SIGINT"))?;
            // It raises an earlier interrupt once.
            let blocked = signal.call_method1(intern!(py, "pthread_sigmask"), (how, (interrupt,)));
            drop(blocked);
            py.import(intern!(py, "os"))?
                .call_method1(intern!(py, "_exit"), (1,))
                .map(drop)
        };
        if let Err(error) = end_unheard() {
            error.write_unraisable(py, None);
        }
        std::process::abort();
    }
}
