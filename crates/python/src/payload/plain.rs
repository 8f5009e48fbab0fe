//! The compact encoding of small values: exact `None`, `bool`, 64-bit `int`, `float`, `str`, `bytes`, `range`, tuples of
//! them, and dicts from `str` to them; also lists of numbers, and plain arrays of `NumPy`. Arrays, long text and long
//! bytes travel out of band. It is about ten times cheaper than pickling, and a task needs it twice.
//!
//! Identity and aliasing of immutable values cannot be observed, so a decoded copy is indistinguishable from what
//! pickle would return. A dict, a list, an array or another value with a buffer that occurs twice is left to pickle.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{
    PyBool, PyBytes, PyDict, PyFloat, PyInt, PyList, PyRange, PyString, PyTuple, PyType,
};
use smallvec::SmallVec;

use crate::buffer::with_bytes;
use crate::payload::{arrays, numbers};

const NONE: u8 = 0;
const TRUE: u8 = 1;
const FALSE: u8 = 2;
const INT: u8 = 3;
const SMALL_INT: u8 = 4;
const FLOAT: u8 = 5;
const STR: u8 = 6;
const BYTES: u8 = 7;
const TUPLE: u8 = 8;
const DICT: u8 = 9;
const ARRAY: u8 = 10;
const STR_APART: u8 = 11;
const BYTES_APART: u8 = 12;
const NUMBERS: u8 = 13;
const RANGE: u8 = 14;

/// Maximum nesting of tuples and dicts in the compact encoding.
const MAX_DEPTH: u8 = 8;
/// Maximum length of tuples and dicts in the compact encoding; longer text and bytes travel out of band.
const MAX_LEN: usize = 16 * 1024;
/// A tuple or a dict whose encoding exceeds this before its last item is left to pickle, which detects what is too
/// large.
const MAX_BYTES: usize = 1024 * 1024;

/// Maximum number of dicts, lists and values with a buffer in one value in the compact encoding.
const MAX_SEEN: usize = 32;

/// What a value in the compact encoding has besides its bytes.
#[derive(Default)]
pub struct OutOfBand<'py> {
    /// Buffers of its arrays, long text and long bytes, in order.
    pub buffers: Vec<Bound<'py, PyAny>>,
    /// How many are of text or bytes.
    n_texts: usize,
    /// Addresses of its dicts, its lists and what has a buffer, all alive while it is encoded.
    seen: SmallVec<[usize; 4]>,
}

impl<'py> OutOfBand<'py> {
    /// Whether some buffers are of text or bytes.
    pub fn has_text(&self) -> bool {
        self.n_texts > 0
    }

    /// Whether all are: nobody writes to them.
    pub fn is_text(&self) -> bool {
        self.has_text() && self.n_texts == self.buffers.len()
    }

    /// Whether a value occurs for the first time, and there were not too many before it.
    fn is_first(&mut self, value: &Bound<'_, PyAny>) -> bool {
        let address = value.as_ptr() as usize;
        let is_first = self.seen.len() < MAX_SEEN && !self.seen.contains(&address);
        self.seen.push(address);
        is_first
    }

    /// Adds the bytes of `value`; false if it occurs again, or they cannot be had.
    fn add(&mut self, value: &Bound<'py, PyAny>, bytes: &Bound<'py, PyBytes>) -> bool {
        static PICKLE_BUFFER: PyOnceLock<Py<PyType>> = PyOnceLock::new();
        let py = value.py();
        let buffer = PICKLE_BUFFER
            .import(py, "pickle", "PickleBuffer")
            .and_then(|buffer| buffer.call1((bytes,)));
        let Ok(buffer) = buffer else { return false };
        self.n_texts += 1;
        self.buffers.push(buffer);
        self.is_first(value)
    }
}

/// Appends `value`, and its out-of-band data; on `false` the outputs hold a partial encoding, which the caller must
/// drop.
pub fn encode<'py>(
    value: &Bound<'py, PyAny>,
    out: &mut Vec<u8>,
    out_of_band: &mut OutOfBand<'py>,
) -> bool {
    encode_nested(value, out, out_of_band, 0)
}

fn encode_nested<'py>(
    value: &Bound<'py, PyAny>,
    out: &mut Vec<u8>,
    out_of_band: &mut OutOfBand<'py>,
    depth: u8,
) -> bool {
    if value.is_none() {
        out.push(NONE);
    } else if let Ok(text) = value.cast_exact::<PyString>() {
        match text.to_str() {
            Ok(text) if text.len() <= MAX_LEN => put_bytes(STR, text.as_bytes(), out),
            Ok(text) => {
                out.push(STR_APART);
                let bytes = PyBytes::new(value.py(), text.as_bytes());
                return out_of_band.add(value, &bytes);
            }
            Err(_) => return false,
        }
    } else if let Ok(int) = value.cast_exact::<PyInt>() {
        match int.extract::<i64>() {
            Ok(small @ -128..=127) => {
                out.extend_from_slice(&[SMALL_INT, (small as i8).cast_unsigned()]);
            }
            Ok(int) => {
                out.push(INT);
                out.extend_from_slice(&int.to_le_bytes());
            }
            Err(_) => return false,
        }
    } else if let Ok(float) = value.cast_exact::<PyFloat>() {
        out.push(FLOAT);
        out.extend_from_slice(&float.value().to_le_bytes());
    } else if let Ok(flag) = value.cast_exact::<PyBool>() {
        out.push(if flag.is_true() { TRUE } else { FALSE });
    } else if let Ok(tuple) = value.cast_exact::<PyTuple>() {
        return depth < MAX_DEPTH && encode_items(tuple, out, out_of_band, depth + 1);
    } else if let Ok(bytes) = value.cast_exact::<PyBytes>() {
        if bytes.as_bytes().len() > MAX_LEN {
            out.push(BYTES_APART);
            return out_of_band.add(value, bytes);
        }
        put_bytes(BYTES, bytes.as_bytes(), out);
    } else if let Ok(dict) = value.cast_exact::<PyDict>() {
        return depth < MAX_DEPTH
            && out_of_band.is_first(value)
            && encode_dict(dict, out, out_of_band, depth + 1);
    } else if let Ok(list) = value.cast_exact::<PyList>() {
        out.push(NUMBERS);
        return out_of_band.is_first(value) && numbers::encode(list, out);
    } else if let Ok(range) = value.cast_exact::<PyRange>() {
        out.push(RANGE);
        return numbers::encode_range(range, out);
    } else {
        out.push(ARRAY);
        let Some(buffer) = arrays::encode(value, out) else {
            return false;
        };
        out_of_band.buffers.push(buffer);
        return out_of_band.is_first(value);
    }
    true
}

fn encode_items<'py>(
    tuple: &Bound<'py, PyTuple>,
    out: &mut Vec<u8>,
    out_of_band: &mut OutOfBand<'py>,
    depth: u8,
) -> bool {
    if tuple.len() > MAX_LEN {
        return false;
    }
    out.push(TUPLE);
    out.extend_from_slice(&(tuple.len() as u32).to_le_bytes());
    tuple
        .iter_borrowed()
        .all(|item| out.len() <= MAX_BYTES && encode_nested(&item, out, out_of_band, depth))
}

fn encode_dict<'py>(
    dict: &Bound<'py, PyDict>,
    out: &mut Vec<u8>,
    out_of_band: &mut OutOfBand<'py>,
    depth: u8,
) -> bool {
    if dict.len() > MAX_LEN {
        return false;
    }
    out.push(DICT);
    out.extend_from_slice(&(dict.len() as u32).to_le_bytes());
    // A copy: code that runs while an array is read may let another thread change the dict.
    dict.items().iter().all(|entry| {
        let Ok((key, value)) = entry.extract::<(Bound<'py, PyAny>, Bound<'py, PyAny>)>() else {
            return false;
        };
        key.is_exact_instance_of::<PyString>()
            && out.len() <= MAX_BYTES
            && encode_nested(&key, out, out_of_band, depth)
            && encode_nested(&value, out, out_of_band, depth)
    })
}

fn put_bytes(tag: u8, bytes: &[u8], out: &mut Vec<u8>) {
    out.push(tag);
    out.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
    out.extend_from_slice(bytes);
}

/// Whether nobody can tell a value that was decoded here from another like it: neither is it a list, a dict or an array,
/// nor does it hold one.
pub fn is_immutable(value: &Bound<'_, PyAny>) -> bool {
    match value.cast_exact::<PyTuple>() {
        Ok(tuple) => tuple.iter_borrowed().all(|item| is_immutable(&item)),
        Err(_) => {
            value.is_none()
                || value.is_exact_instance_of::<PyInt>()
                || value.is_exact_instance_of::<PyFloat>()
                || value.is_exact_instance_of::<PyBool>()
                || value.is_exact_instance_of::<PyString>()
                || value.is_exact_instance_of::<PyBytes>()
                || value.is_exact_instance_of::<PyRange>()
        }
    }
}

/// Appends a call's arguments: the positional tuple, then name and value of each keyword. As [`encode`].
pub fn encode_call<'py>(
    args: &Bound<'py, PyTuple>,
    kwargs: Option<&Bound<'py, PyDict>>,
    out: &mut Vec<u8>,
    out_of_band: &mut OutOfBand<'py>,
) -> bool {
    if !encode_items(args, out, out_of_band, 1) {
        return false;
    }
    let Some(kwargs) = kwargs else { return true };
    kwargs.iter().all(|(name, value)| {
        out.len() <= MAX_BYTES
            && encode(&name, out, out_of_band)
            && encode(&value, out, out_of_band)
    })
}

/// `ValueError` for bytes that are not a compact encoding, with the reason.
pub fn malformed(why: &str) -> PyErr {
    PyValueError::new_err(format!("malformed compact encoding: {why}"))
}

/// The next `n` bytes.
pub fn take<'a>(bytes: &mut &'a [u8], n: usize) -> PyResult<&'a [u8]> {
    bytes
        .split_off(..n)
        .ok_or_else(|| malformed("it is cut short"))
}

/// The next eight bytes.
pub fn take_8(bytes: &mut &[u8]) -> PyResult<[u8; 8]> {
    let mut taken = [0; 8];
    taken.copy_from_slice(take(bytes, 8)?);
    Ok(taken)
}

/// A length.
pub fn take_len(bytes: &mut &[u8]) -> PyResult<usize> {
    let mut raw = [0; 4];
    raw.copy_from_slice(take(bytes, 4)?);
    Ok(u32::from_le_bytes(raw) as usize)
}

fn next_buffer<'py>(
    buffers: &mut std::slice::Iter<'_, Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    let buffer = buffers.next().cloned();
    buffer.ok_or_else(|| malformed("a buffer is missing"))
}

/// An encoding that is being read.
struct Source<'a, 'py> {
    py: Python<'py>,
    bytes: &'a [u8],
    /// Its out-of-band data.
    buffers: std::slice::Iter<'a, Bound<'py, PyAny>>,
}

/// Reads one value with these out-of-band buffers.
///
/// # Errors
/// `ValueError` if it is not a compact encoding, or if there are trailing bytes; whatever making an array
/// raises.
pub fn decode<'py>(
    py: Python<'py>,
    bytes: &[u8],
    buffers: &[Bound<'py, PyAny>],
) -> PyResult<Bound<'py, PyAny>> {
    let buffers = buffers.iter();
    let mut source = Source { py, bytes, buffers };
    let value = source.value(0)?;
    if source.bytes.is_empty() {
        Ok(value)
    } else {
        Err(malformed("there are trailing bytes"))
    }
}

/// A call's positional and keyword arguments.
pub type Call<'py> = (Bound<'py, PyTuple>, Option<Bound<'py, PyDict>>);

/// Reads what [`encode_call`] wrote.
///
/// # Errors
/// As [`decode`].
pub fn decode_call<'py>(
    py: Python<'py>,
    bytes: &[u8],
    buffers: &[Bound<'py, PyAny>],
) -> PyResult<Call<'py>> {
    let buffers = buffers.iter();
    let mut source = Source { py, bytes, buffers };
    if take(&mut source.bytes, 1)? != [TUPLE] {
        return Err(malformed("no arguments"));
    }
    let args = source.items(1)?;
    if source.bytes.is_empty() {
        return Ok((args, None));
    }
    let kwargs = PyDict::new(py);
    while !source.bytes.is_empty() {
        let name = source.value(0)?;
        let value = source.value(0)?;
        kwargs.set_item(name, value)?;
    }
    Ok((args, Some(kwargs)))
}

impl<'py> Source<'_, 'py> {
    fn value(&mut self, depth: u8) -> PyResult<Bound<'py, PyAny>> {
        let py = self.py;
        let bytes = &mut self.bytes;
        Ok(match take(bytes, 1)?[0] {
            NONE => py.None().into_bound(py),
            TRUE => PyBool::new(py, true).to_owned().into_any(),
            FALSE => PyBool::new(py, false).to_owned().into_any(),
            INT => PyInt::new(py, i64::from_le_bytes(take_8(bytes)?)).into_any(),
            SMALL_INT => PyInt::new(py, take(bytes, 1)?[0] as i8).into_any(),
            FLOAT => PyFloat::new(py, f64::from_le_bytes(take_8(bytes)?)).into_any(),
            STR => {
                let len = take_len(bytes)?;
                let text = std::str::from_utf8(take(bytes, len)?);
                let text = text.map_err(|_| malformed("text is not UTF-8"))?;
                PyString::new(py, text).into_any()
            }
            BYTES => {
                let len = take_len(bytes)?;
                PyBytes::new(py, take(bytes, len)?).into_any()
            }
            TUPLE if depth <= MAX_DEPTH => self.items(depth + 1)?.into_any(),
            DICT if depth <= MAX_DEPTH => self.entries(depth + 1)?.into_any(),
            NUMBERS => numbers::decode(py, bytes)?.into_any(),
            RANGE => numbers::decode_range(py, bytes)?.into_any(),
            ARRAY => {
                let buffer = next_buffer(&mut self.buffers)?;
                arrays::decode(bytes, buffer)?
            }
            STR_APART => with_bytes(&next_buffer(&mut self.buffers)?, |bytes| {
                let text = std::str::from_utf8(bytes);
                let text = text.map_err(|_| malformed("text is not UTF-8"))?;
                PyResult::Ok(PyString::new(py, text).into_any())
            })??,
            BYTES_APART => with_bytes(&next_buffer(&mut self.buffers)?, |bytes| {
                PyBytes::new(py, bytes).into_any()
            })?,
            _ => return Err(malformed("unknown kind of value")),
        })
    }

    /// A length of something that takes at least one byte per item.
    fn count(&mut self) -> PyResult<usize> {
        let n = take_len(&mut self.bytes)?;
        if n > self.bytes.len() {
            return Err(malformed("it is cut short"));
        }
        Ok(n)
    }

    fn items(&mut self, depth: u8) -> PyResult<Bound<'py, PyTuple>> {
        let py = self.py;
        match self.count()? {
            0 => Ok(PyTuple::empty(py)),
            1 => PyTuple::new(py, [self.value(depth)?]),
            n => {
                let items = (0..n).map(|_| self.value(depth));
                PyTuple::new(py, items.collect::<PyResult<Vec<_>>>()?)
            }
        }
    }

    fn entries(&mut self, depth: u8) -> PyResult<Bound<'py, PyDict>> {
        let dict = PyDict::new(self.py);
        for _ in 0..self.count()? {
            let key = self.value(depth)?;
            let key = key.cast_into_exact::<PyString>();
            let key = key.map_err(|_| malformed("a key is not text"))?;
            dict.set_item(key, self.value(depth)?)?;
        }
        Ok(dict)
    }
}
