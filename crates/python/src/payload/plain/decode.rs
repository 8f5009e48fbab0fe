//! From compact encodings to values.

use std::rc::Rc;

use broadleaf_proto::DecodeError;
use broadleaf_proto::compact::{MAX_DEPTH, MAX_KEYS, MAX_NAMED_KEYS, Token};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyBytes, PyDict, PyFloat, PyInt, PyList, PyString, PyTuple};

use super::malformed;
use crate::buffer::with_bytes;
use crate::payload::{arrays, numbers};

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
    let mut source = Source::new(py, bytes, buffers);
    let value = source.value(0)?;
    if source.bytes.is_empty() {
        Ok(value)
    } else {
        Err(malformed("there are trailing bytes"))
    }
}

/// A call's positional and keyword arguments.
pub type Call<'py> = (Bound<'py, PyTuple>, Option<Bound<'py, PyDict>>);

/// Reads what [`super::encode_call`] wrote.
///
/// # Errors
/// As [`decode`].
pub fn decode_call<'py>(
    py: Python<'py>,
    bytes: &[u8],
    buffers: &[Bound<'py, PyAny>],
) -> PyResult<Call<'py>> {
    let mut source = Source::new(py, bytes, buffers);
    let token = Token::read(&mut source.bytes).map_err(|error| undecodable(&error))?;
    let (Token::Tuple(n), false) = token else {
        return Err(malformed("no arguments"));
    };
    let args = source.items(n, 1)?;
    if source.bytes.is_empty() {
        return Ok((args, None));
    }
    let kwargs = PyDict::new(py);
    while !source.bytes.is_empty() {
        let name = source.value(1)?;
        let value = source.value(1)?;
        kwargs.set_item(name, value)?;
    }
    Ok((args, Some(kwargs)))
}

#[cold]
fn undecodable(error: &DecodeError) -> PyErr {
    match error {
        DecodeError::Truncated => malformed("it is cut short"),
        error => malformed(error),
    }
}

/// A dict with the keys of others, and at least this many, is made as a copy: it need not grow key by key, which takes
/// half of the time.
const COPIED_FROM_KEYS: usize = 6;

/// Keys that dicts have in common.
struct Keys<'py> {
    names: Rc<[Bound<'py, PyString>]>,
    /// A dict of them with `None` for each, to copy.
    empty: Option<Bound<'py, PyDict>>,
}

impl<'py> Keys<'py> {
    fn new(py: Python<'py>, names: Rc<[Bound<'py, PyString>]>) -> PyResult<Self> {
        let mut empty = None;
        if names.len() >= COPIED_FROM_KEYS {
            let dict = PyDict::new(py);
            for name in &*names {
                dict.set_item(name, py.None())?;
            }
            empty = Some(dict);
        }
        Ok(Self { names, empty })
    }
}

/// An encoding that is being read.
struct Source<'a, 'py> {
    py: Python<'py>,
    bytes: &'a [u8],
    /// Its out-of-band data.
    buffers: std::slice::Iter<'a, Bound<'py, PyAny>>,
    /// Remembered values in the order in which they began; `None` for a tuple that is not complete.
    remembered: Vec<Option<Bound<'py, PyAny>>>,
    keys: Vec<Keys<'py>>,
    /// Items of lists and tuples that are not complete.
    items: Vec<Bound<'py, PyAny>>,
}

impl<'a, 'py> Source<'a, 'py> {
    fn new(py: Python<'py>, bytes: &'a [u8], buffers: &'a [Bound<'py, PyAny>]) -> Self {
        Self {
            py,
            bytes,
            buffers: buffers.iter(),
            remembered: Vec::new(),
            keys: Vec::new(),
            items: Vec::new(),
        }
    }

    fn next_buffer(&mut self) -> PyResult<Bound<'py, PyAny>> {
        let buffer = self.buffers.next().cloned();
        buffer.ok_or_else(|| malformed("a buffer is missing"))
    }

    fn value(&mut self, depth: u8) -> PyResult<Bound<'py, PyAny>> {
        let py = self.py;
        let (token, is_remembered) = match Token::read(&mut self.bytes) {
            Ok(read) => read,
            Err(error) => return Err(undecodable(&error)),
        };
        let value = match token {
            Token::None => py.None().into_bound(py),
            Token::Bool(flag) => PyBool::new(py, flag).to_owned().into_any(),
            Token::Int(int) => PyInt::new(py, int).into_any(),
            Token::Float(float) => PyFloat::new(py, float).into_any(),
            Token::Text(text) => PyString::from_bytes(py, text)?.into_any(),
            Token::Bytes(bytes) => PyBytes::new(py, bytes).into_any(),
            Token::Numbers(kind, n, data) => numbers::decode(py, kind, n, data)?.into_any(),
            Token::Range(parts) => numbers::decode_range(py, parts)?.into_any(),
            Token::Array(array) => arrays::decode(array, self.next_buffer()?)?,
            Token::TextApart => {
                with_bytes(&self.next_buffer()?, |text| PyString::from_bytes(py, text))??.into_any()
            }
            Token::BytesApart => match self.next_buffer()?.cast_into_exact::<PyBytes>() {
                Ok(bytes) => bytes.into_any(),
                Err(other) => with_bytes(&other.into_inner(), |bytes| {
                    PyBytes::new(py, bytes).into_any()
                })?,
            },
            Token::Again(number) => {
                let known = self.remembered.get(number).cloned().flatten();
                known.ok_or_else(|| malformed("a value that has not occurred"))?
            }
            _ => return self.container(token, is_remembered, depth),
        };
        if is_remembered {
            self.remembered.push(Some(value.clone()));
        }
        Ok(value)
    }

    fn container(
        &mut self,
        token: Token<'_>,
        is_remembered: bool,
        depth: u8,
    ) -> PyResult<Bound<'py, PyAny>> {
        if depth >= MAX_DEPTH {
            return Err(malformed("it is nested too deep"));
        }
        let number = self.remembered.len();
        match token {
            Token::Tuple(n) => {
                if is_remembered {
                    self.remembered.push(None);
                }
                let tuple = self.items(n, depth + 1)?.into_any();
                if is_remembered {
                    self.remembered[number] = Some(tuple.clone());
                }
                Ok(tuple)
            }
            Token::List(n) if is_remembered => {
                // What it holds may name it.
                let list = PyList::empty(self.py);
                self.remembered.push(Some(list.clone().into_any()));
                for _ in 0..n {
                    list.append(self.value(depth + 1)?)?;
                }
                Ok(list.into_any())
            }
            Token::List(n) => {
                let start = self.read(n, depth + 1)?;
                let list = PyList::new(self.py, self.items.drain(start..))?;
                Ok(list.into_any())
            }
            _ => {
                let dict = self.new_dict(token)?;
                if is_remembered {
                    self.remembered.push(Some(dict.clone().into_any()));
                }
                self.entries(token, &dict, depth + 1)?;
                Ok(dict.into_any())
            }
        }
    }

    /// Reads `n` values behind those that wait for others; returns where they begin.
    fn read(&mut self, n: usize, depth: u8) -> PyResult<usize> {
        let start = self.items.len();
        for _ in 0..n {
            let value = self.value(depth)?;
            self.items.push(value);
        }
        Ok(start)
    }

    fn items(&mut self, n: usize, depth: u8) -> PyResult<Bound<'py, PyTuple>> {
        let start = self.read(n, depth)?;
        PyTuple::new(self.py, self.items.drain(start..))
    }

    /// A dict to fill with what a token begins.
    fn new_dict(&self, token: Token<'_>) -> PyResult<Bound<'py, PyDict>> {
        if let Token::SameKeys(number) = token
            && let Some(keys) = self.keys.get(number)
            && let Some(empty) = &keys.empty
        {
            return empty.copy();
        }
        Ok(PyDict::new(self.py))
    }

    fn entries(&mut self, token: Token<'_>, dict: &Bound<'py, PyDict>, depth: u8) -> PyResult<()> {
        let keys = match token {
            Token::NewKeys(n) => {
                if n > MAX_NAMED_KEYS || self.keys.len() == MAX_KEYS {
                    return Err(malformed("too many keys"));
                }
                let key = |_| {
                    let key = self.value(depth)?.cast_into_exact::<PyString>();
                    key.map_err(|_| malformed("a key is not text"))
                };
                let keys = (0..n).map(key).collect::<PyResult<Rc<[_]>>>()?;
                self.keys.push(Keys::new(self.py, Rc::clone(&keys))?);
                keys
            }
            Token::SameKeys(number) => {
                let keys = self.keys.get(number).map(|keys| Rc::clone(&keys.names));
                keys.ok_or_else(|| malformed("keys that have not occurred"))?
            }
            Token::Dict(n) => {
                for _ in 0..n {
                    let key = self.value(depth)?;
                    dict.set_item(key, self.value(depth)?)?;
                }
                return Ok(());
            }
            _ => return Err(malformed("no container")),
        };
        for key in &*keys {
            let value = self.value(depth)?;
            dict.set_item(key, value)?;
        }
        Ok(())
    }
}
