//! `NumPy`'s plain arrays in the compact encoding: order, dtype and shape here, the bytes out of band.
//!
//! A broadcast to a hundred engines builds its array a hundred times, in processes whose caches others have used in the
//! meantime. Pickle would import `NumPy` by name, parse the dtype and keep a memo each time.

use std::sync::Mutex;

use pyo3::exceptions::PyImportError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyString, PyTuple, PyType};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use broadleaf_proto::compact::{Array, Token};

use crate::payload::lock;
use crate::payload::plain::malformed;

/// Bool, signed, unsigned, real, complex, bytes and text: a string describes their dtype completely.
/// `broadleaf.serialize.picklers` applies the same rule to arrays inside pickles.
const PLAIN_KINDS: &str = "biufcSU";
/// Number of cached dtypes; texts of each length have their own.
const KEPT_DTYPES: usize = 64;

/// `NumPy`'s array type.
static ARRAY: PyOnceLock<Py<PyType>> = PyOnceLock::new();

/// [`ARRAY`], if `NumPy` has been imported.
fn array_type(py: Python<'_>) -> Option<&Bound<'_, PyType>> {
    let array = ARRAY.get_or_try_init(py, || {
        let modules = py.import("sys")?.getattr("modules")?;
        let numpy = modules.cast_into::<PyDict>()?.get_item("numpy")?;
        // Another thread may be importing it; then there are no arrays yet.
        let numpy = numpy.ok_or_else(|| PyImportError::new_err("NumPy was not imported"))?;
        PyResult::Ok(numpy.getattr("ndarray")?.cast_into::<PyType>()?.unbind())
    });
    array.ok().map(|array| array.bind(py))
}

/// Whether `value` is an array, of whatever dtype.
pub fn is_array(value: &Bound<'_, PyAny>) -> bool {
    array_type(value.py()).is_some_and(|array| value.get_type().is(array))
}

/// Appends the description from which `value` can be rebuilt, and returns its buffer. Returns `None` and appends
/// nothing unless it is a contiguous array of a plain dtype.
pub fn encode<'py>(
    value: &Bound<'py, PyAny>,
    is_remembered: bool,
    out: &mut Vec<u8>,
) -> Option<Bound<'py, PyAny>> {
    if !is_array(value) {
        return None;
    }
    encode_array(value, is_remembered, out).unwrap_or_default()
}

fn encode_array<'py>(
    array: &Bound<'py, PyAny>,
    is_remembered: bool,
    out: &mut Vec<u8>,
) -> PyResult<Option<Bound<'py, PyAny>>> {
    static PICKLE_BUFFER: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    let py = array.py();
    let dtype = array.getattr("dtype")?;
    let flags = array.getattr("flags")?;
    // A user-defined dtype may claim a kind of NumPy's.
    let is_plain = PLAIN_KINDS.contains(&dtype.getattr("kind")?.extract::<String>()?)
        && dtype.getattr("isbuiltin")?.extract::<u8>()? != 2
        && dtype.getattr("itemsize")?.extract::<usize>()? > 0
        && dtype.getattr("metadata")?.is_none();
    if !is_plain {
        return Ok(None);
    }
    let (fortran_order, source) = if flags.getattr("c_contiguous")?.is_truthy()? {
        (false, array.clone())
    } else if flags.getattr("f_contiguous")?.is_truthy()? {
        (true, array.getattr("T")?)
    } else {
        return Ok(None);
    };
    let name = dtype.getattr("str")?.extract::<String>()?;
    let shape = array.getattr("shape")?.extract::<Vec<u64>>()?;
    let buffer = PICKLE_BUFFER
        .import(py, "pickle", "PickleBuffer")?
        .call1((source,))?;
    let shape: SmallVec<[u8; 32]> = shape.into_iter().flat_map(u64::to_le_bytes).collect();
    let description = Array {
        fortran_order,
        dtype: name.as_bytes(),
        shape: &shape,
    };
    Token::Array(description).write(is_remembered, out);
    Ok(Some(buffer))
}

/// Makes the array of a description and `buffer`.
///
/// # Errors
/// `ValueError` if there is no such array; whatever importing `NumPy` or making the array raises.
pub fn decode<'py>(
    description: Array<'_>,
    buffer: Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyAny>> {
    let py = buffer.py();
    let dtype = dtype(py, description.dtype)?;
    let dimensions = description.shape.as_chunks::<8>().0.iter();
    let shape = PyTuple::new(py, dimensions.map(|n| u64::from_le_bytes(*n)))?;
    let array = ARRAY.import(py, "numpy", "ndarray")?;
    if description.fortran_order {
        array.call1((shape, dtype, buffer, 0, py.None(), "F"))
    } else {
        array.call1((shape, dtype, buffer))
    }
}

/// Dtypes by their names.
type Dtypes = FxHashMap<Box<[u8]>, Py<PyAny>>;

/// The dtype of this name.
fn dtype<'py>(py: Python<'py>, name: &[u8]) -> PyResult<Bound<'py, PyAny>> {
    static KNOWN: Mutex<Option<Dtypes>> = Mutex::new(None);
    static DTYPE: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    if let Some(known) = lock(&KNOWN).get_or_insert_default().get(name) {
        return Ok(known.bind(py).clone());
    }
    let text = std::str::from_utf8(name).map_err(|_| malformed("a dtype is not UTF-8"))?;
    let dtype = DTYPE
        .import(py, "numpy", "dtype")?
        .call1((PyString::new(py, text),))?;
    let mut known = lock(&KNOWN);
    let known = known.get_or_insert_default();
    if known.len() < KEPT_DTYPES {
        known.insert(name.into(), dtype.clone().unbind());
    }
    Ok(dtype)
}
