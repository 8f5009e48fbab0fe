//! Functions on their way to the controller: their templates once per connection, and their captured values with each
//! call.

use std::sync::Arc;

use broadleaf_proto::task::FunctionRecord;
use broadleaf_proto::{FrameKind, FunctionHash, FunctionId};
use bytes::Bytes;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyFrozenSet, PySet, PyTuple};
use ring::digest::{SHA256, digest};
use rustc_hash::FxHashMap;

use crate::client::session::Session;
use crate::payload::lock;

/// Number of functions cached by identity before the cache is cleared.
const MAX_CACHED_FUNCTIONS: usize = 10_000;

/// Names given to functions on this connection. No Python code may run while they are locked, and nothing of Python's may
/// be dropped or looked up by name: another thread could have the interpreter and wait for them.
#[derive(Default)]
pub struct Functions {
    pub(in crate::client) by_identity: FxHashMap<usize, Arc<Cached>>,
    by_hash: FxHashMap<FunctionHash, FunctionId>,
    modules: Option<Arc<Modules>>,
}

/// What decides whether a function is sent by its name: the modules that are loaded, and those that the user registered
/// with cloudpickle to be sent by value.
struct Modules {
    loaded: Py<PyDict>,
    n_loaded: usize,
    /// cloudpickle's own set, and what was in it; `None` while cloudpickle is not loaded.
    by_value: Option<(Py<PySet>, Py<PyFrozenSet>)>,
}

impl Modules {
    /// As they are now. `None` while another thread imports cloudpickle.
    fn read(py: Python<'_>) -> PyResult<Option<Self>> {
        let loaded = py.import(intern!(py, "sys"))?;
        let loaded = loaded
            .getattr(intern!(py, "modules"))?
            .cast_into::<PyDict>()?;
        let by_value = match loaded.get_item(intern!(py, "cloudpickle.cloudpickle"))? {
            Some(cloudpickle) => {
                let set = cloudpickle.getattr_opt(intern!(py, "_PICKLE_BY_VALUE_MODULES"))?;
                let Some(set) = set else { return Ok(None) };
                let set = set.cast_into::<PySet>()?;
                let before = PyFrozenSet::new(py, &set)?.unbind();
                Some((set.unbind(), before))
            }
            None => None,
        };
        Ok(Some(Self {
            n_loaded: loaded.len(),
            loaded: loaded.unbind(),
            by_value,
        }))
    }

    fn are_as_before(&self, py: Python<'_>) -> bool {
        self.loaded.bind(py).len() == self.n_loaded
            && self.by_value.as_ref().is_none_or(|(set, before)| {
                let (set, before) = (set.bind(py), before.bind(py));
                set.len() == before.len() && (set.is_empty() || set.eq(before).unwrap_or(false))
            })
    }
}

/// A function that need not be pickled again.
pub(in crate::client) struct Cached {
    pub(in crate::client) function: Py<PyAny>,
    id: FunctionId,
    /// As long as it has this code and these defaults; without them for good.
    parts: Option<(Py<PyAny>, Py<PyAny>)>,
}

impl Cached {
    fn holds(&self, function: &Bound<'_, PyAny>) -> PyResult<bool> {
        let py = function.py();
        let Some((code, defaults)) = &self.parts else {
            return Ok(true);
        };
        Ok(function.getattr(intern!(py, "__code__"))?.is(code)
            && function.getattr(intern!(py, "__defaults__"))?.is(defaults))
    }
}

impl Session {
    /// The id of a function on this connection, and the buffers that travel with each call of it. Its template is sent
    /// before the first task that names it. There are no buffers if they would be sent to another host `many` times.
    pub(in crate::client) fn resolve_function<'py>(
        &self,
        py: Python<'py>,
        function: &Bound<'py, PyAny>,
        many: bool,
    ) -> PyResult<(FunctionId, Vec<Bound<'py, PyAny>>)> {
        let identity = function.as_ptr() as usize;
        let (modules, cached) = {
            let functions = lock(&self.functions);
            let cached = functions.by_identity.get(&identity).cloned();
            (functions.modules.clone(), cached)
        };
        let is_current = (modules.as_ref()).is_some_and(|modules| modules.are_as_before(py));
        if is_current
            && let Some(cached) = cached
            && cached.holds(function)?
        {
            return Ok((cached.id, Vec::new()));
        }
        let modules = if is_current {
            modules
        } else {
            self.follow_modules(py)?
        };
        let out_of_band = !many || self.shared.data.on_this_host();
        let resolved = self
            .hooks
            .bind(py)
            .call_method1(intern!(py, "resolve_function"), (function, out_of_band))?;
        let (body, cacheable, buffers): (
            Bound<'_, PyBytes>,
            Bound<'_, PyAny>,
            Vec<Bound<'py, PyAny>>,
        ) = resolved.extract()?;
        let id = match self.known_function(body.as_bytes()) {
            (_, Some(id)) => id,
            (hash, None) => {
                // Engines may need something else first, which is sent before the body.
                self.hooks
                    .bind(py)
                    .call_method0(intern!(py, "on_new_function"))?;
                let name = self.hooks.bind(py);
                let name = name.call_method1(intern!(py, "function_name"), (function,))?;
                self.define_function(py, hash, &name.extract::<String>()?, body.as_bytes())?
            }
        };
        if cacheable.is_truthy()? {
            let parts = cacheable.extract().ok();
            let cached = Cached {
                function: function.clone().unbind(),
                id,
                parts,
            };
            self.keep_function(identity, Arc::new(cached), modules.as_ref());
        }
        Ok((id, buffers))
    }

    /// Forgets the functions that have been sent: some of them might now be sent in another way. Returns what decides that
    /// now.
    fn follow_modules(&self, py: Python<'_>) -> PyResult<Option<Arc<Modules>>> {
        let modules = Modules::read(py)?.map(Arc::new);
        let mut functions = lock(&self.functions);
        let before = std::mem::replace(&mut functions.modules, modules.clone());
        let forgotten = std::mem::take(&mut functions.by_identity);
        drop(functions);
        drop((before, forgotten));
        Ok(modules)
    }

    /// Remembers a function that was pickled with these modules, if they still decide.
    fn keep_function(&self, identity: usize, cached: Arc<Cached>, modules: Option<&Arc<Modules>>) {
        let mut forgotten = FxHashMap::default();
        let mut functions = lock(&self.functions);
        let is_current = match (&functions.modules, modules) {
            (Some(now), Some(then)) => Arc::ptr_eq(now, then),
            _ => false,
        };
        if !is_current {
            return;
        }
        if functions.by_identity.len() >= MAX_CACHED_FUNCTIONS {
            forgotten = std::mem::take(&mut functions.by_identity);
        }
        let before = functions.by_identity.insert(identity, cached);
        drop(functions);
        drop((before, forgotten));
    }

    /// The exception for a call that does not fit into a message, which names what is large about it.
    pub(in crate::client) fn explain_too_large(
        &self,
        error: &PyErr,
        function: &Bound<'_, PyAny>,
        args: &Bound<'_, PyTuple>,
        kwargs: Option<&Bound<'_, PyDict>>,
    ) -> PyErr {
        let py = function.py();
        let explained = error.value(py).getattr("args").and_then(|sizes| {
            let hooks = self.hooks.bind(py);
            hooks.call_method1("explain_too_large", (function, args, kwargs, sizes))
        });
        explained.map_or_else(|error| error, PyErr::from_value)
    }

    /// The name of a body, and its id if it was sent.
    pub(in crate::client) fn known_function(
        &self,
        body: &[u8],
    ) -> (FunctionHash, Option<FunctionId>) {
        let mut hash = [0; 16];
        hash.copy_from_slice(&digest(&SHA256, body).as_ref()[..16]);
        let hash = FunctionHash(hash);
        (hash, lock(&self.functions).by_hash.get(&hash).copied())
    }

    pub(in crate::client) fn define_function(
        &self,
        py: Python<'_>,
        hash: FunctionHash,
        name: &str,
        body: &[u8],
    ) -> PyResult<FunctionId> {
        let mut functions = lock(&self.functions);
        if let Some(id) = functions.by_hash.get(&hash) {
            return Ok(*id);
        }
        let id = FunctionId(functions.by_hash.len() as u32);
        let record = FunctionRecord {
            function: id,
            hash,
            name: Bytes::copy_from_slice(name.as_bytes()),
            body: Bytes::copy_from_slice(body),
        };
        let mut frame = Vec::with_capacity(body.len() + 32);
        record.encode(&mut frame);
        if let Err(error) = self.shared.queue(FrameKind::Function, &frame, &[]) {
            // What hears of the lost connection may ask for a function.
            drop(functions);
            return Err(self.send_failed(py, &error));
        }
        functions.by_hash.insert(hash, id);
        Ok(id)
    }
}
