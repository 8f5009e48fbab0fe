//! What a task's dependencies may be.

use broadleaf_client::{Dependencies, dependency_bytes};
use broadleaf_proto::limits::{MAX_DEPENDENCIES, MAX_INLINE_PAYLOAD_BYTES};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

/// `ValueError` for more dependencies than a record may name.
pub fn check_dependencies((after, follow): Dependencies<'_>) -> PyResult<()> {
    let n = after.len() + follow.len();
    if n <= MAX_DEPENDENCIES {
        return Ok(());
    }
    Err(PyValueError::new_err(format!(
        "a task can depend on at most {MAX_DEPENDENCIES} tasks, not on {n}: submit intermediate tasks that each wait for some of them"
    )))
}

/// `ValueError` for a payload that fits into a message, but not together with its dependencies.
pub fn check_together(dependencies: Dependencies<'_>, bytes: &[u8]) -> PyResult<()> {
    if bytes.len() + dependency_bytes(dependencies) <= MAX_INLINE_PAYLOAD_BYTES {
        return Ok(());
    }
    Err(PyValueError::new_err(format!(
        "the arguments of {} bytes and the dependencies of the task are too long for one message",
        bytes.len()
    )))
}
