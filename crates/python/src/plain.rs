//! The fast encoding of small values: exact `None`, `bool`, 64-bit `int`, `float`, `str`, `bytes` and
//! tuples of them. About ten times cheaper than pickling them, and a task has two of these.
//!
//! Only immutable types: for them identity and aliasing cannot be observed, so decoding a copy is
//! indistinguishable from what pickle would give.

use pyo3::prelude::*;
use pyo3::types::{PyBool, PyBytes, PyDict, PyFloat, PyInt, PyString, PyTuple};

const NONE: u8 = 0;
const TRUE: u8 = 1;
const FALSE: u8 = 2;
const INT: u8 = 3;
const SMALL_INT: u8 = 4;
const FLOAT: u8 = 5;
const STR: u8 = 6;
const BYTES: u8 = 7;
const TUPLE: u8 = 8;

/// Deepest nesting of tuples that takes the fast encoding.
const MAX_DEPTH: u8 = 8;
/// Longest text, bytes or tuple that takes the fast encoding.
const MAX_LEN: usize = 16 * 1024;

/// The bytes are not a plain encoding.
#[derive(Debug, PartialEq, Eq)]
pub struct Malformed;

/// Appends `value`; on `false` the output holds a partial encoding to be truncated by the caller.
pub fn encode(value: &Bound<'_, PyAny>, out: &mut Vec<u8>) -> bool {
    encode_nested(value, out, 0)
}

fn encode_nested(value: &Bound<'_, PyAny>, out: &mut Vec<u8>, depth: u8) -> bool {
    if value.is_none() {
        out.push(NONE);
    } else if let Ok(text) = value.cast_exact::<PyString>() {
        match text.to_str() {
            Ok(text) if text.len() <= MAX_LEN => put_bytes(STR, text.as_bytes(), out),
            _ => return false,
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
        return depth < MAX_DEPTH && encode_items(tuple, out, depth + 1);
    } else if let Ok(bytes) = value.cast_exact::<PyBytes>() {
        if bytes.as_bytes().len() > MAX_LEN {
            return false;
        }
        put_bytes(BYTES, bytes.as_bytes(), out);
    } else {
        return false;
    }
    true
}

fn encode_items(tuple: &Bound<'_, PyTuple>, out: &mut Vec<u8>, depth: u8) -> bool {
    if tuple.len() > MAX_LEN {
        return false;
    }
    out.push(TUPLE);
    out.extend_from_slice(&(tuple.len() as u32).to_le_bytes());
    tuple
        .iter_borrowed()
        .all(|item| encode_nested(&item, out, depth))
}

fn put_bytes(tag: u8, bytes: &[u8], out: &mut Vec<u8>) {
    out.push(tag);
    out.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
    out.extend_from_slice(bytes);
}

/// Appends a call's arguments: the positional tuple, then name and value of each keyword.
pub fn encode_call(
    args: &Bound<'_, PyTuple>,
    kwargs: Option<&Bound<'_, PyDict>>,
    out: &mut Vec<u8>,
) -> bool {
    if !encode_items(args, out, 1) {
        return false;
    }
    let Some(kwargs) = kwargs else { return true };
    kwargs
        .iter()
        .all(|(name, value)| encode(&name, out) && encode(&value, out))
}

fn take<'a>(bytes: &mut &'a [u8], n: usize) -> Result<&'a [u8], Malformed> {
    bytes.split_off(..n).ok_or(Malformed)
}

fn take_len(bytes: &mut &[u8]) -> Result<usize, Malformed> {
    let raw = take(bytes, 4)?;
    Ok(u32::from_le_bytes([raw[0], raw[1], raw[2], raw[3]]) as usize)
}

fn take_8(bytes: &mut &[u8]) -> Result<[u8; 8], Malformed> {
    take(bytes, 8)?.try_into().map_err(|_| Malformed)
}

/// Reads one value and advances `bytes` past it.
pub fn decode<'py>(py: Python<'py>, bytes: &mut &[u8]) -> Result<Bound<'py, PyAny>, Malformed> {
    decode_nested(py, bytes, 0)
}

fn decode_nested<'py>(
    py: Python<'py>,
    bytes: &mut &[u8],
    depth: u8,
) -> Result<Bound<'py, PyAny>, Malformed> {
    Ok(match take(bytes, 1)?[0] {
        NONE => py.None().into_bound(py),
        TRUE => PyBool::new(py, true).to_owned().into_any(),
        FALSE => PyBool::new(py, false).to_owned().into_any(),
        INT => PyInt::new(py, i64::from_le_bytes(take_8(bytes)?)).into_any(),
        SMALL_INT => PyInt::new(py, take(bytes, 1)?[0] as i8).into_any(),
        FLOAT => PyFloat::new(py, f64::from_le_bytes(take_8(bytes)?)).into_any(),
        STR => {
            let len = take_len(bytes)?;
            let text = std::str::from_utf8(take(bytes, len)?).map_err(|_| Malformed)?;
            PyString::new(py, text).into_any()
        }
        BYTES => {
            let len = take_len(bytes)?;
            PyBytes::new(py, take(bytes, len)?).into_any()
        }
        TUPLE if depth <= MAX_DEPTH => decode_items(py, bytes, depth + 1)?.into_any(),
        _ => return Err(Malformed),
    })
}

fn decode_items<'py>(
    py: Python<'py>,
    bytes: &mut &[u8],
    depth: u8,
) -> Result<Bound<'py, PyTuple>, Malformed> {
    let n = take_len(bytes)?;
    if n > bytes.len() {
        return Err(Malformed); // every item takes a byte at least
    }
    match n {
        0 => Ok(PyTuple::empty(py)),
        1 => {
            let only = decode_nested(py, bytes, depth)?;
            PyTuple::new(py, [only]).map_err(|_| Malformed)
        }
        _ => {
            let items = (0..n)
                .map(|_| decode_nested(py, bytes, depth))
                .collect::<Result<Vec<_>, _>>()?;
            PyTuple::new(py, items).map_err(|_| Malformed)
        }
    }
}

/// A call's positional and keyword arguments.
pub type Call<'py> = (Bound<'py, PyTuple>, Option<Bound<'py, PyDict>>);

/// Reads what [`encode_call`] wrote.
pub fn decode_call<'py>(py: Python<'py>, mut bytes: &[u8]) -> Result<Call<'py>, Malformed> {
    if take(&mut bytes, 1)? != [TUPLE] {
        return Err(Malformed);
    }
    let args = decode_items(py, &mut bytes, 1)?;
    if bytes.is_empty() {
        return Ok((args, None));
    }
    let kwargs = PyDict::new(py);
    while !bytes.is_empty() {
        let name = decode(py, &mut bytes)?;
        let value = decode(py, &mut bytes)?;
        kwargs.set_item(name, value).map_err(|_| Malformed)?;
    }
    Ok((args, Some(kwargs)))
}
