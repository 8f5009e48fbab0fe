//! From values to their compact encoding.

use broadleaf_proto::compact::{MAX_DEPTH, MAX_NAMED_KEYS, Token};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBytes, PyDict, PyList, PyRange, PyString, PyTuple, PyType};

use super::sample::{self, is_promising};
use super::seen::{Keys, Known, Seen};
use crate::buffer::{Entries, Item, all_items, all_of_tuple, values_of};
use crate::payload::{arrays, numbers};

/// Longer text and bytes travel out of band.
const MAX_LEN: usize = 16 * 1024;
/// Maximum number of buffers of one value; with more of them it is left to pickle.
const MAX_BUFFERS: usize = 32;

/// What a value in the compact encoding has besides its bytes.
#[derive(Default)]
pub struct OutOfBand<'py> {
    /// Buffers of its arrays, long text and long bytes, in order.
    pub buffers: Vec<Bound<'py, PyAny>>,
    /// How many are of text or bytes.
    n_texts: usize,
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

    /// Adds a buffer; false if there are too many.
    fn add(&mut self, buffer: Bound<'py, PyAny>) -> bool {
        self.buffers.push(buffer);
        self.buffers.len() <= MAX_BUFFERS
    }

    /// Adds the bytes of a text or of a `bytes`; false if there are too many, or they cannot be had.
    fn add_text(&mut self, bytes: &Bound<'py, PyBytes>) -> bool {
        static PICKLE_BUFFER: PyOnceLock<Py<PyType>> = PyOnceLock::new();
        let buffer = PICKLE_BUFFER
            .import(bytes.py(), "pickle", "PickleBuffer")
            .and_then(|buffer| buffer.call1((bytes,)));
        let Ok(buffer) = buffer else { return false };
        self.n_texts += 1;
        self.add(buffer)
    }
}

/// Appends `value`, and its out-of-band data; on `false` the outputs hold a partial encoding, which the caller must
/// drop.
pub fn encode<'py>(
    value: &Bound<'py, PyAny>,
    out: &mut Vec<u8>,
    out_of_band: &mut OutOfBand<'py>,
) -> bool {
    Encoder::new(out, out_of_band).value(value.clone(), 0)
}

/// Appends a call's arguments: the positional tuple, then name and value of each keyword. As [`encode`].
pub fn encode_call<'py>(
    args: &Bound<'py, PyTuple>,
    kwargs: Option<&Bound<'py, PyDict>>,
    out: &mut Vec<u8>,
    out_of_band: &mut OutOfBand<'py>,
) -> bool {
    let mut encoder = Encoder::new(out, out_of_band);
    Token::Tuple(args.len()).write(false, encoder.out);
    all_of_tuple(args, |item| encoder.item(&item, 1))
        && kwargs.is_none_or(|kwargs| {
            Entries::of(kwargs)
                .all(|(name, value)| encoder.value(name, 1) && encoder.value(value, 1))
        })
}

struct Encoder<'a, 'py> {
    out: &'a mut Vec<u8>,
    out_of_band: &'a mut OutOfBand<'py>,
    seen: Seen<'py>,
    /// A sample was taken of a container that is being encoded.
    is_sampled: bool,
}

impl<'a, 'py> Encoder<'a, 'py> {
    fn new(out: &'a mut Vec<u8>, out_of_band: &'a mut OutOfBand<'py>) -> Self {
        Self {
            out,
            out_of_band,
            seen: Seen::default(),
            is_sampled: false,
        }
    }

    /// Each method is false for what is left to pickle. Code that runs while an array is read may change a list or a
    /// dict, which then does not have as many items as it had.
    fn value(&mut self, value: Bound<'py, PyAny>, depth: u8) -> bool {
        self.item(&Item::from(value), depth)
    }

    fn item(&mut self, item: &Item<'py>, depth: u8) -> bool {
        match item {
            Item::None => Token::None.write(false, self.out),
            Item::Bool(flag) => Token::Bool(*flag).write(false, self.out),
            Item::Int(int) => Token::Int(*int).write(false, self.out),
            Item::Float(float) => Token::Float(*float).write(false, self.out),
            Item::Other(object) => {
                return match object.cast_exact() {
                    Ok(text) => self.text(text),
                    Err(_) => self.object(object, depth),
                };
            }
        }
        true
    }

    fn text(&mut self, text: &Bound<'py, PyString>) -> bool {
        let is_remembered = match self.seen.look_up(text.as_any()) {
            Known::As(number) => {
                Token::Again(number).write(false, self.out);
                return true;
            }
            Known::Remembered => true,
            Known::Once => false,
        };
        let Ok(utf8) = text.to_str() else {
            return false;
        };
        if utf8.len() <= MAX_LEN {
            Token::Text(utf8.as_bytes()).write(is_remembered, self.out);
            return true;
        }
        Token::TextApart.write(is_remembered, self.out);
        let bytes = PyBytes::new(text.py(), utf8.as_bytes());
        self.out_of_band.add_text(&bytes)
    }

    /// What may be large, and whose identity can be seen.
    fn object(&mut self, value: &Bound<'py, PyAny>, depth: u8) -> bool {
        let is_remembered = match self.seen.look_up(value) {
            Known::As(number) => {
                Token::Again(number).write(false, self.out);
                return !self.seen.is_open(number);
            }
            Known::Remembered => true,
            Known::Once => false,
        };
        if let Ok(dict) = value.cast_exact::<PyDict>() {
            depth < MAX_DEPTH
                && self.within(value, dict.len(), |encoder| {
                    encoder.dict(dict, is_remembered, depth + 1)
                })
        } else if let Ok(list) = value.cast_exact::<PyList>() {
            if numbers::encode(list, is_remembered, self.out).is_some() {
                return true;
            }
            depth < MAX_DEPTH
                && self.within(value, list.len(), |encoder| {
                    encoder.list(list, is_remembered, depth + 1)
                })
        } else if let Ok(tuple) = value.cast_exact::<PyTuple>() {
            depth < MAX_DEPTH
                && self.within(value, tuple.len(), |encoder| {
                    encoder.tuple(tuple, is_remembered, depth + 1)
                })
        } else if let Ok(bytes) = value.cast_exact::<PyBytes>() {
            let data = bytes.as_bytes();
            if data.len() <= MAX_LEN {
                Token::Bytes(data).write(is_remembered, self.out);
                return true;
            }
            Token::BytesApart.write(is_remembered, self.out);
            self.out_of_band.add_text(bytes)
        } else if let Ok(range) = value.cast_exact::<PyRange>() {
            numbers::encode_range(range, is_remembered, self.out)
        } else {
            let buffer = arrays::encode(value, is_remembered, self.out);
            buffer.is_some_and(|buffer| self.out_of_band.add(buffer))
        }
    }

    /// Encodes a container of `n` items, if a sample of it, taken unless it is part of another's, shows nothing against
    /// it.
    fn within(
        &mut self,
        container: &Bound<'py, PyAny>,
        n: usize,
        encode: impl FnOnce(&mut Self) -> bool,
    ) -> bool {
        if n < sample::MIN_ITEMS || self.is_sampled {
            return encode(self);
        }
        if !is_promising(container) {
            return false;
        }
        self.is_sampled = true;
        let is_whole = encode(self);
        self.is_sampled = false;
        is_whole
    }

    fn list(&mut self, list: &Bound<'py, PyList>, is_remembered: bool, depth: u8) -> bool {
        let n = list.len();
        Token::List(n).write(is_remembered, self.out);
        let mut n_encoded = 0;
        all_items(list, |item| {
            n_encoded += 1;
            self.item(&item, depth)
        }) && n_encoded == n
    }

    fn tuple(&mut self, tuple: &Bound<'py, PyTuple>, is_remembered: bool, depth: u8) -> bool {
        Token::Tuple(tuple.len()).write(is_remembered, self.out);
        if is_remembered {
            self.seen.open_tuple();
        }
        let is_whole = all_of_tuple(tuple, |item| self.item(&item, depth));
        if is_remembered {
            self.seen.close_tuple();
        }
        is_whole
    }

    fn dict(&mut self, dict: &Bound<'py, PyDict>, is_remembered: bool, depth: u8) -> bool {
        let n = dict.len();
        if n > MAX_NAMED_KEYS {
            return self.entries(dict, is_remembered, depth);
        }
        let values = values_of(dict);
        match self.seen.look_up_keys(dict, &values) {
            Keys::Same(number) => Token::SameKeys(number).write(is_remembered, self.out),
            Keys::New(number) => {
                Token::NewKeys(n).write(is_remembered, self.out);
                if !self.seen.keys(number).iter().all(|key| self.text(key)) {
                    return false;
                }
            }
            Keys::Own => return self.entries(dict, is_remembered, depth),
        }
        values.iter().all(|(_, value)| self.item(value, depth))
    }

    fn entries(&mut self, dict: &Bound<'py, PyDict>, is_remembered: bool, depth: u8) -> bool {
        let n = dict.len();
        Token::Dict(n).write(is_remembered, self.out);
        let mut n_encoded = 0;
        Entries::of(dict).all(|(key, value)| {
            n_encoded += 1;
            self.value(key, depth) && self.value(value, depth)
        }) && n_encoded == n
    }
}
