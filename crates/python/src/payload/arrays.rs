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

use crate::payload::lock;
use crate::payload::plain::{malformed, take, take_8};

const C_ORDER: u8 = 0;
const FORTRAN_ORDER: u8 = 1;

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

/// Appends the description from which `value` can be rebuilt, and returns its buffer. Returns `None` and appends
/// nothing unless it is a contiguous array of a plain dtype.
pub fn encode<'py>(value: &Bound<'py, PyAny>, out: &mut Vec<u8>) -> Option<Bound<'py, PyAny>> {
    if !value.get_type().is(array_type(value.py())?) {
        return None;
    }
    encode_array(value, out).unwrap_or_default()
}

fn encode_array<'py>(
    array: &Bound<'py, PyAny>,
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
    let (order, source) = if flags.getattr("c_contiguous")?.is_truthy()? {
        (C_ORDER, array.clone())
    } else if flags.getattr("f_contiguous")?.is_truthy()? {
        (FORTRAN_ORDER, array.getattr("T")?)
    } else {
        return Ok(None);
    };
    let name = dtype.getattr("str")?.extract::<String>()?;
    let shape = array.getattr("shape")?.extract::<Vec<u64>>()?;
    let name_bytes = u8::try_from(name.len())?;
    let n_dims = u8::try_from(shape.len())?;
    let buffer = PICKLE_BUFFER
        .import(py, "pickle", "PickleBuffer")?
        .call1((source,))?;
    out.extend_from_slice(&[order, name_bytes]);
    out.extend_from_slice(name.as_bytes());
    out.push(n_dims);
    for length in shape {
        out.extend_from_slice(&length.to_le_bytes());
    }
    Ok(Some(buffer))
}

/// Reads what [`encode`] wrote, and makes the array of `buffer`.
///
/// # Errors
/// `ValueError` if it is not such an encoding; whatever importing `NumPy` or making the array raises.
pub fn decode<'py>(bytes: &mut &[u8], buffer: Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    let py = buffer.py();
    let head = take(bytes, 2)?;
    let (order, name_bytes) = (head[0], usize::from(head[1]));
    let dtype = dtype(py, take(bytes, name_bytes)?)?;
    let n_dims = usize::from(take(bytes, 1)?[0]);
    let shape = (0..n_dims)
        .map(|_| Ok(u64::from_le_bytes(take_8(bytes)?)))
        .collect::<PyResult<Vec<_>>>()?;
    let shape = PyTuple::new(py, shape)?;
    let array = ARRAY.import(py, "numpy", "ndarray")?;
    match order {
        C_ORDER => array.call1((shape, dtype, buffer)),
        FORTRAN_ORDER => array.call1((shape, dtype, buffer, 0, py.None(), "F")),
        _ => Err(malformed("not a memory order of arrays")),
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
