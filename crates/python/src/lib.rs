//! The native module `broadleaf._native`.
#![allow(missing_docs)] // the module's contract, with its documentation, is `_native.pyi`

mod buffer;
mod client;
mod clock;
mod engine;
mod errors;
mod forks;
mod held_key;
mod memory;
mod node;
mod payload;

use broadleaf_shm::PoolCounters;
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};

pub(crate) fn pool_counters_into(
    dict: &Bound<'_, PyDict>,
    counters: &PoolCounters,
) -> PyResult<()> {
    dict.set_item("segments", counters.segments)?;
    dict.set_item("segment_bytes", counters.bytes)?;
    dict.set_item("warm_bytes", counters.warm_bytes)?;
    dict.set_item("copies", counters.copies)?;
    dict.set_item("copied_bytes", counters.copied_bytes)?;
    dict.set_item("mappings", counters.mappings)
}

/// The compact encoding of a value, or `None` if it does not apply, or only with buffers.
#[pyfunction]
fn encode_plain<'py>(py: Python<'py>, value: &Bound<'py, PyAny>) -> Option<Bound<'py, PyBytes>> {
    let mut out = Vec::new();
    let mut out_of_band = payload::plain::OutOfBand::default();
    let is_whole =
        payload::plain::encode(value, &mut out, &mut out_of_band) && out_of_band.buffers.is_empty();
    is_whole.then(|| PyBytes::new(py, &out))
}

#[pyfunction]
fn decode_plain<'py>(py: Python<'py>, data: &[u8]) -> PyResult<Bound<'py, PyAny>> {
    payload::plain::decode(py, data, &[])
}

#[pyfunction]
fn wall_ns() -> u64 {
    clock::wall_ns()
}

#[pyfunction]
fn submitted_depth() -> u16 {
    engine::submitted_depth()
}

#[pyfunction]
fn generate_keys() -> PyResult<String> {
    let keys =
        broadleaf_node::generate_keys().map_err(|e| PyRuntimeError::new_err(e.to_string()))?;
    Ok(broadleaf_node::keys_json(&keys))
}

#[pyfunction]
fn derive_keys(secret: &[u8], context: &str) -> PyResult<String> {
    let keys = broadleaf_node::derive_keys(secret, context)
        .map_err(|e| PyRuntimeError::new_err(e.to_string()))?;
    Ok(broadleaf_node::keys_json(&keys))
}

#[pyfunction]
fn run_node(py: Python<'_>, config: &str) -> PyResult<i32> {
    let config = broadleaf_node::NodeConfig::parse(config)
        .map_err(|e| PyValueError::new_err(e.to_string()))?;
    py.detach(|| broadleaf_node::run(config))
        .map_err(|e| PyRuntimeError::new_err(e.to_string()))
}

#[pymodule]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let py = module.py();
    forks::watch(module)?;
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add("PROTOCOL_VERSION", broadleaf_proto::PROTOCOL_VERSION)?;
    for (name, value) in [
        ("STATUS_PENDING", -1),
        ("STATUS_OK", 0),
        ("STATUS_ERROR", 1),
        ("STATUS_CANCELLED", 2),
        ("STATUS_TIMEOUT", 3),
        ("STATUS_REFUSED", 4),
        ("STATUS_LOST", 5),
    ] {
        module.add(name, value)?;
    }
    module.add(
        "ConnectionRefused",
        py.get_type::<errors::ConnectionRefused>(),
    )?;
    module.add("LinkClosed", py.get_type::<errors::LinkClosed>())?;
    module.add_class::<client::History>()?;
    module.add_class::<client::Link>()?;
    module.add_class::<client::Submitter>()?;
    module.add_class::<client::Pending>()?;
    module.add_class::<engine::Engine>()?;
    module.add_class::<node::fork_server::ForkServer>()?;
    module.add_class::<node::mover::Mover>()?;
    module.add_class::<buffer::Buffer>()?;
    module.add_class::<buffer::SharedMemory>()?;
    module.add_function(wrap_pyfunction!(encode_plain, module)?)?;
    module.add_function(wrap_pyfunction!(decode_plain, module)?)?;
    module.add_function(wrap_pyfunction!(wall_ns, module)?)?;
    module.add_function(wrap_pyfunction!(submitted_depth, module)?)?;
    module.add_function(wrap_pyfunction!(generate_keys, module)?)?;
    module.add_function(wrap_pyfunction!(derive_keys, module)?)?;
    module.add_function(wrap_pyfunction!(held_key::hold_key, module)?)?;
    module.add_function(wrap_pyfunction!(held_key::give_key, module)?)?;
    module.add_function(wrap_pyfunction!(run_node, module)?)
}
