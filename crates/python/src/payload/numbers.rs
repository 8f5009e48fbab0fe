//! Lists of numbers in the compact encoding: the chunks of maps, and what most maps return.

use pyo3::prelude::*;
use pyo3::types::{PyList, PyRange, PyRangeMethods};

use crate::buffer::{Numbers, numbers_of};
use crate::payload::plain::{malformed, take, take_8, take_len};

/// Longer lists are left to pickle: an encoding that becomes too large is made in vain.
const MAX_ITEMS: usize = 64 * 1024;

// What a list holds. Integers have as many bytes as the largest needs.
const NONES: u8 = 0;
const BOOLS: u8 = 1;
const FLOATS: u8 = 2;
const INTS_1: u8 = 3;
const INTS_2: u8 = 4;
const INTS_4: u8 = 5;
const INTS_8: u8 = 6;

/// Appends the items of a list of `None`, `bool`, 64-bit `int` or `float`, all of one of these types: their kind, their
/// number, and their values. False for other lists.
pub fn encode(list: &Bound<'_, PyList>, out: &mut Vec<u8>) -> bool {
    if list.len() > MAX_ITEMS {
        return false;
    }
    let Some(numbers) = numbers_of(list) else {
        return false;
    };
    let mut begin = |kind: u8, n: usize| {
        out.push(kind);
        out.extend_from_slice(&(n as u32).to_le_bytes());
    };
    match numbers {
        Numbers::Nones(n) => begin(NONES, n),
        Numbers::Bools(flags) => {
            begin(BOOLS, flags.len());
            out.extend_from_slice(&flags);
        }
        Numbers::Floats(values) => {
            begin(FLOATS, values.len());
            out.extend(values.iter().flat_map(|value| value.to_le_bytes()));
        }
        Numbers::Ints(values) => {
            let (low, high) = values.iter().fold((0, 0), |(low, high): (i64, i64), &n| {
                (low.min(n), high.max(n))
            });
            let fits = |min: i64, max: i64| low >= min && high <= max;
            if fits(i8::MIN.into(), i8::MAX.into()) {
                begin(INTS_1, values.len());
                out.extend(values.iter().map(|&n| (n as i8).cast_unsigned()));
            } else if fits(i16::MIN.into(), i16::MAX.into()) {
                begin(INTS_2, values.len());
                out.extend(values.iter().flat_map(|&n| (n as i16).to_le_bytes()));
            } else if fits(i32::MIN.into(), i32::MAX.into()) {
                begin(INTS_4, values.len());
                out.extend(values.iter().flat_map(|&n| (n as i32).to_le_bytes()));
            } else {
                begin(INTS_8, values.len());
                out.extend(values.iter().flat_map(|&n| n.to_le_bytes()));
            }
        }
    }
    true
}

/// Reads what [`encode`] wrote.
///
/// # Errors
/// `ValueError` if it is something else.
pub fn decode<'py>(py: Python<'py>, bytes: &mut &[u8]) -> PyResult<Bound<'py, PyList>> {
    let kind = take(bytes, 1)?[0];
    let n = take_len(bytes)?;
    if n > MAX_ITEMS {
        return Err(malformed("a list is too long"));
    }
    let mut items = |item_bytes: usize| take(bytes, n * item_bytes);
    match kind {
        NONES => PyList::new(py, (0..n).map(|_| py.None())),
        BOOLS => PyList::new(py, items(1)?.iter().map(|&flag| flag != 0)),
        FLOATS => PyList::new(py, each(items(8)?).map(f64::from_le_bytes)),
        INTS_1 => PyList::new(py, items(1)?.iter().map(|&n| n as i8)),
        INTS_2 => PyList::new(py, each(items(2)?).map(i16::from_le_bytes)),
        INTS_4 => PyList::new(py, each(items(4)?).map(i32::from_le_bytes)),
        INTS_8 => PyList::new(py, each(items(8)?).map(i64::from_le_bytes)),
        _ => Err(malformed("unknown kind of numbers")),
    }
}

/// The items of this many bytes, one after the other.
fn each<const N: usize>(bytes: &[u8]) -> impl ExactSizeIterator<Item = [u8; N]> + '_ {
    bytes.as_chunks::<N>().0.iter().copied()
}

/// Appends start, stop and step of a range; false if one of them has more than 64 bits.
pub fn encode_range(range: &Bound<'_, PyRange>, out: &mut Vec<u8>) -> bool {
    let parts = [range.start(), range.stop(), range.step()];
    parts.into_iter().all(|part| {
        let part = part.map(|part| out.extend_from_slice(&(part as i64).to_le_bytes()));
        part.is_ok()
    })
}

/// Reads what [`encode_range`] wrote.
///
/// # Errors
/// `ValueError` if it is something else.
pub fn decode_range<'py>(py: Python<'py>, bytes: &mut &[u8]) -> PyResult<Bound<'py, PyRange>> {
    let mut part = || take_8(bytes).map(|part| i64::from_le_bytes(part) as isize);
    let (first, end) = (part()?, part()?);
    PyRange::new_with_step(py, first, end, part()?)
}
