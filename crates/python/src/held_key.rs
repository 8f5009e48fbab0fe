//! The key of the cluster that this process belongs to, kept where no frame of a task refers to it.
//!
//! A traceback with local variables, a pickled frame or a debugger's dump of an engine would otherwise leak the key. It
//! does not protect against a malicious task, which runs as the same user and can read what the user can.

use std::sync::{Mutex, PoisonError};

use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;

use crate::node::connect::Connection;

struct HeldKey {
    cluster_id: String,
    private_key: String,
    /// Whether tasks run in this process, which then does not reveal the key.
    is_engine: bool,
}

static HELD: Mutex<Option<HeldKey>> = Mutex::new(None);

fn held() -> std::sync::MutexGuard<'static, Option<HeldKey>> {
    HELD.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The key for connections of this process to the cluster.
pub fn held_key(cluster_id: &str) -> Option<String> {
    let held = held();
    let of_cluster = held.as_ref().filter(|key| key.cluster_id == cluster_id);
    of_cluster.map(|key| key.private_key.clone())
}

/// From here on tasks run in this process.
pub fn become_engine() {
    if let Some(key) = held().as_mut() {
        key.is_engine = true;
    }
}

/// A connection file's text without its key, which is kept for connections with the returned text.
#[pyfunction]
pub fn hold_key(connection: &str) -> PyResult<String> {
    let mut content: serde_json::Map<String, serde_json::Value> = serde_json::from_str(connection)
        .map_err(|e| PyValueError::new_err(format!("connection file: {e}")))?;
    let Some((cluster_id, private_key)) = Connection::parse(connection)?.into_key() else {
        return Err(PyValueError::new_err(
            "the connection file has no key; use the one that the cluster wrote",
        ));
    };
    content.remove("private_key");
    *held() = Some(HeldKey {
        cluster_id,
        private_key,
        is_engine: false,
    });
    Ok(serde_json::Value::Object(content).to_string())
}

/// The held key, for a process that this one starts; not in a process that runs tasks.
#[pyfunction]
pub fn give_key() -> PyResult<String> {
    match held().as_ref() {
        Some(key) if !key.is_engine => Ok(key.private_key.clone()),
        _ => Err(PyRuntimeError::new_err("an engine does not reveal its key")),
    }
}
