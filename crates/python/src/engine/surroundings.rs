//! What a task may leave behind in its process: Python's streams, filters of warnings, levels of loggers.
//!
//! Whether anything is left is checked after every task, so this only compares identities; `EngineHooks.restore` does
//! the rest.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use pyo3::exceptions::PyAttributeError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};

use super::{Engine, Function};
use crate::buffer::{Entry, begins_with};
use crate::payload::lock;

/// What was there when it was last looked at.
struct Known {
    /// The names of the streams and of the list of filters in their modules.
    names: [Entry; 4],
    filters: Py<PyList>,
    n_filters: usize,
    first_filter: Option<Py<PyAny>>,
    /// All that are imported, and how many: a module may set filters and levels when it is imported.
    modules: Py<PyDict>,
    n_modules: usize,
}

#[derive(Default)]
pub(super) struct Surroundings {
    known: Mutex<Option<Known>>,
    has_new_levels: AtomicBool,
}

fn first_of<'py>(list: &Bound<'py, PyList>) -> Option<Bound<'py, PyAny>> {
    list.get_item(0).ok()
}

impl Known {
    fn read(py: Python<'_>) -> PyResult<Self> {
        let sys = py.import(intern!(py, "sys"))?;
        let warnings = py.import(intern!(py, "warnings"))?;
        let filters = warnings
            .getattr(intern!(py, "filters"))?
            .cast_into::<PyList>()?;
        let modules = sys.getattr(intern!(py, "modules"))?.cast_into::<PyDict>()?;
        let entry = |module: &Bound<'_, PyModule>, name| {
            let entry = Entry::of(&module.dict(), name);
            entry.ok_or_else(|| PyAttributeError::new_err(name.clone().unbind()))
        };
        Ok(Self {
            n_modules: modules.len(),
            modules: modules.unbind(),
            names: [
                entry(&sys, intern!(py, "stdout"))?,
                entry(&sys, intern!(py, "stderr"))?,
                entry(&sys, intern!(py, "stdin"))?,
                entry(&warnings, intern!(py, "filters"))?,
            ],
            n_filters: filters.len(),
            first_filter: first_of(&filters).map(Bound::unbind),
            filters: filters.unbind(),
        })
    }

    fn holds(&self, py: Python<'_>) -> bool {
        let filters = self.filters.bind(py);
        let first = self.first_filter.as_ref().map(|first| first.bind(py));
        begins_with(filters, first)
            && self.modules.bind(py).len() == self.n_modules
            && filters.len() == self.n_filters
            && self.names.iter().all(|entry| entry.holds(py))
    }
}

impl Engine {
    /// Takes what is there now as what every task finds.
    pub(super) fn settle(&self, py: Python<'_>) {
        self.surroundings
            .has_new_levels
            .store(false, Ordering::Release);
        let known = Known::read(py);
        if let Err(error) = &known {
            error.clone_ref(py).write_unraisable(py, None);
        }
        let before = std::mem::replace(&mut *lock(&self.surroundings.known), known.ok());
        // Dropped without the lock, because Python code may run then.
        drop(before);
    }

    /// Somebody has set the level of a logger.
    pub(super) fn on_new_level(&self) {
        self.surroundings
            .has_new_levels
            .store(true, Ordering::Release);
    }

    /// After a task that called a function: has Python restore what the task has changed.
    pub(super) fn restore_surroundings(&self, py: Python<'_>, function: u32) {
        let holds = match &*lock(&self.surroundings.known) {
            Some(known) => known.holds(py),
            None => true,
        };
        if holds && !self.surroundings.has_new_levels.load(Ordering::Relaxed) {
            return;
        }
        let function = match lock(&self.functions).get(&function) {
            Some(Function::Loaded(function)) => Some(function.clone_ref(py)),
            _ => None,
        };
        let restored = self
            .hooks
            .bind(py)
            .call_method1(intern!(py, "restore"), (function,));
        if let Err(error) = restored {
            error.write_unraisable(py, None);
        }
        self.settle(py);
    }
}
