//! Finds values that are too large to send before they are pickled, which would take seconds and as much memory again.

use broadleaf_proto::limits::MAX_INLINE_PAYLOAD_BYTES;
use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyBytes, PyDict, PyList, PyString, PyTuple};
use rustc_hash::FxHashSet;

use super::{DataPlane, LargeBuffers, lock, shm_error};

/// Smaller objects are not checked.
const MIN_BYTES: usize = 1024 * 1024;
/// Number of items of a container that are checked.
const MAX_ITEMS: usize = 1024;
/// Without text or bytes among its first items, a list is taken to have none.
const FIRST_ITEMS: usize = 16;

/// The large objects that a pickle would copy, each once.
#[derive(Default)]
struct Large {
    seen: FxHashSet<usize>,
    bytes: u64,
}

impl Large {
    fn add(&mut self, value: &Bound<'_, PyAny>) -> bool {
        let len_bytes = if let Ok(bytes) = value.cast_exact::<PyBytes>() {
            bytes.as_bytes().len()
        } else if let Ok(text) = value.cast_exact::<PyString>() {
            // Its number of characters: it may take more bytes, never fewer.
            text.len().unwrap_or_default()
        } else if let Ok(array) = value.cast_exact::<PyByteArray>() {
            array.len()
        } else {
            return false;
        };
        if len_bytes >= MIN_BYTES && self.seen.insert(value.as_ptr() as usize) {
            self.bytes += len_bytes as u64;
        }
        true
    }

    fn add_items(&mut self, value: &Bound<'_, PyAny>) {
        if let Ok(items) = value.cast_exact::<PyTuple>() {
            items.iter().take(MAX_ITEMS).for_each(|item| {
                self.add(&item);
            });
        } else if let Ok(items) = value.cast_exact::<PyList>() {
            let mut has_any = false;
            for (i, item) in items.iter().take(MAX_ITEMS).enumerate() {
                has_any |= self.add(&item);
                if i + 1 == FIRST_ITEMS && !has_any {
                    break;
                }
            }
        } else if let Ok(items) = value.cast_exact::<PyDict>() {
            items.iter().take(MAX_ITEMS).for_each(|(_, item)| {
                self.add(&item);
            });
        }
    }
}

impl DataPlane {
    /// Refuses a value before it is pickled if its bytes and text, or those of containers in it, are more than can be
    /// sent.
    ///
    /// # Errors
    /// `PayloadTooLarge` if it has to fit into a message, `MemoryError` if it has to fit into this process's
    /// shared memory.
    pub fn check_size<'py>(&self, values: impl Iterator<Item = Bound<'py, PyAny>>) -> PyResult<()> {
        let mut large = Large::default();
        for value in values.take(MAX_ITEMS) {
            if !large.add(&value) {
                large.add_items(&value);
            }
        }
        if large.bytes == 0 {
            return Ok(());
        }
        match self.large {
            LargeBuffers::Segment => {
                return lock(&self.pool).check_cap(large.bytes).map_err(shm_error);
            }
            LargeBuffers::Upload => return Ok(()),
            LargeBuffers::Inline => {}
        }
        if large.bytes > MAX_INLINE_PAYLOAD_BYTES as u64 {
            return Err(self.too_large(large.bytes as usize));
        }
        Ok(())
    }
}
