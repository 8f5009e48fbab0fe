//! The compact encoding: what JSON could say, tuples, bytes and ranges, and plain arrays of `NumPy`. Types are matched
//! exactly. It takes a fraction of the time of a pickle, and a task needs it twice.
//!
//! What is decoded is what pickle would return: an object that occurs several times occurs several times there, and a
//! list or dict may contain itself. Arrays, long text and long bytes travel out of band.
//! [`broadleaf_proto::compact`] describes the bytes.

mod decode;
mod encode;
mod sample;
mod seen;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyBytes, PyFloat, PyInt, PyRange, PyString, PyTuple};

pub use self::decode::{Call, decode, decode_call};
pub use self::encode::{OutOfBand, encode, encode_call};

/// Whether nobody can tell a value that was decoded here from another like it: neither is it a list, a dict or an array,
/// nor does it hold one.
pub fn is_immutable(value: &Bound<'_, PyAny>) -> bool {
    match value.cast_exact::<PyTuple>() {
        Ok(tuple) => tuple.iter_borrowed().all(|item| is_immutable(&item)),
        Err(_) => is_leaf(value),
    }
}

/// Whether a value is encoded whatever it is, but for large numbers and text that is not UTF-8, and holds no others.
fn is_leaf(value: &Bound<'_, PyAny>) -> bool {
    value.is_none()
        || value.is_exact_instance_of::<PyString>()
        || value.is_exact_instance_of::<PyInt>()
        || value.is_exact_instance_of::<PyFloat>()
        || value.is_exact_instance_of::<PyBool>()
        || value.is_exact_instance_of::<PyBytes>()
        || value.is_exact_instance_of::<PyRange>()
}

/// Whether a value may be a dict's key, as far as its type shows.
fn is_leaf_or_tuple(value: &Bound<'_, PyAny>) -> bool {
    is_leaf(value) || value.is_exact_instance_of::<PyTuple>()
}

/// `ValueError` for bytes that are not a compact encoding, with the reason.
pub fn malformed(why: impl std::fmt::Display) -> PyErr {
    PyValueError::new_err(format!("malformed compact encoding: {why}"))
}
