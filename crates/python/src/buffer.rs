//! Bytes that cross the border to Python without a copy: the one file here with `unsafe`.
#![allow(unsafe_code)]
#![expect(
    clippy::needless_pass_by_value,
    reason = "the signature is the protocol's"
)]

use std::ffi::{c_int, c_void};
use std::sync::Arc;

use pyo3::buffer::PyBuffer;
use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;

use crate::received::{Received, ReceivedTable};

/// Bytes received out of band: a private mapping of a shared segment. Writable; writes stay here.
#[pyclass(frozen, module = "broadleaf._native")]
pub struct Buffer {
    received: Arc<Received>,
    table: Arc<ReceivedTable>,
}

impl Buffer {
    /// Wraps received bytes; they leave `table`, and their segment is given back, when the last view is gone.
    pub fn new(received: Arc<Received>, table: Arc<ReceivedTable>) -> Self {
        Self { received, table }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        self.table.remove(&self.received);
    }
}

#[pymethods]
impl Buffer {
    fn __len__(&self) -> usize {
        self.received.mapping.len()
    }

    unsafe fn __getbuffer__(
        slf: Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        if view.is_null() {
            return Err(PyBufferError::new_err("view is null"));
        }
        let mapping = &slf.get().received.mapping;
        // SAFETY: the mapping lives as long as `slf`, of which the view takes a reference, and is private and
        // writable, so handing out a mutable pointer aliases no Rust reference that is used while views exist.
        let code = unsafe {
            ffi::PyBuffer_FillInfo(
                view,
                slf.as_ptr(),
                mapping.as_mut_ptr().cast::<c_void>(),
                mapping.len() as isize,
                0,
                flags,
            )
        };
        if code == 0 {
            Ok(())
        } else {
            Err(PyErr::fetch(slf.py()))
        }
    }
}

/// Calls `read` with the bytes of a C-contiguous buffer of unsigned bytes.
///
/// # Errors
/// What asking the object for its buffer raises.
pub fn with_bytes<R>(object: &Bound<'_, PyAny>, read: impl FnOnce(&[u8]) -> R) -> PyResult<R> {
    let buffer = PyBuffer::<u8>::get(object)?;
    if !buffer.is_c_contiguous() {
        return Err(PyBufferError::new_err(
            "an out-of-band buffer must be contiguous",
        ));
    }
    if buffer.len_bytes() == 0 {
        return Ok(read(&[]));
    }
    // SAFETY: the buffer is contiguous, held for the duration of the call, and the interpreter lock is held, so
    // only code that ignores it (another process, or a C extension) could change the bytes while they are read.
    let bytes =
        unsafe { std::slice::from_raw_parts(buffer.buf_ptr().cast::<u8>(), buffer.len_bytes()) };
    Ok(read(bytes))
}
