//! Lists of numbers in the compact encoding: the chunks of maps, and what most maps return.

use broadleaf_proto::compact::{MAX_NONES, NumberKind, Token};
use pyo3::prelude::*;
use pyo3::types::{PyList, PyRange, PyRangeMethods};

use crate::buffer::{Numbers, numbers_of};

/// Appends a list of `None`, `bool`, 64-bit `int` or `float`, all of one of these types. `None` for other lists.
pub fn encode(list: &Bound<'_, PyList>, is_remembered: bool, out: &mut Vec<u8>) -> Option<()> {
    let mut put = |kind: NumberKind, data: &[u8]| {
        Token::Numbers(kind, list.len(), data).write(is_remembered, out);
    };
    match numbers_of(list)? {
        Numbers::Nones(n) if n > MAX_NONES => return None,
        Numbers::Nones(_) => put(NumberKind::None, &[]),
        Numbers::Bools(flags) => put(NumberKind::Bool, &flags),
        Numbers::Floats(values) => put(NumberKind::Float, &bytes_of(&values, f64::to_le_bytes)),
        Numbers::Ints(values) => {
            let (low, high) = values.iter().fold((0, 0), |(low, high): (i64, i64), &n| {
                (low.min(n), high.max(n))
            });
            let fits = |min: i64, max: i64| low >= min && high <= max;
            if fits(i8::MIN.into(), i8::MAX.into()) {
                put(
                    NumberKind::Int1,
                    &bytes_of(&values, |n| (n as i8).to_le_bytes()),
                );
            } else if fits(i16::MIN.into(), i16::MAX.into()) {
                put(
                    NumberKind::Int2,
                    &bytes_of(&values, |n| (n as i16).to_le_bytes()),
                );
            } else if fits(i32::MIN.into(), i32::MAX.into()) {
                put(
                    NumberKind::Int4,
                    &bytes_of(&values, |n| (n as i32).to_le_bytes()),
                );
            } else {
                put(NumberKind::Int8, &bytes_of(&values, i64::to_le_bytes));
            }
        }
    }
    Some(())
}

fn bytes_of<T: Copy, const N: usize>(values: &[T], bytes: impl Fn(T) -> [u8; N]) -> Vec<u8> {
    values.iter().flat_map(|&value| bytes(value)).collect()
}

/// The list of such a token.
///
/// # Errors
/// Whatever making it raises.
pub fn decode<'py>(
    py: Python<'py>,
    kind: NumberKind,
    n: usize,
    data: &[u8],
) -> PyResult<Bound<'py, PyList>> {
    match kind {
        NumberKind::None => PyList::new(py, (0..n).map(|_| py.None())),
        NumberKind::Bool => PyList::new(py, data.iter().map(|&flag| flag != 0)),
        NumberKind::Float => PyList::new(py, each(data).map(f64::from_le_bytes)),
        NumberKind::Int1 => PyList::new(py, each(data).map(i8::from_le_bytes)),
        NumberKind::Int2 => PyList::new(py, each(data).map(i16::from_le_bytes)),
        NumberKind::Int4 => PyList::new(py, each(data).map(i32::from_le_bytes)),
        NumberKind::Int8 => PyList::new(py, each(data).map(i64::from_le_bytes)),
    }
}

/// The items of this many bytes, one after the other.
fn each<const N: usize>(bytes: &[u8]) -> impl ExactSizeIterator<Item = [u8; N]> + '_ {
    bytes.as_chunks::<N>().0.iter().copied()
}

/// Appends a range; false if its start, stop or step has more than 64 bits.
pub fn encode_range(range: &Bound<'_, PyRange>, is_remembered: bool, out: &mut Vec<u8>) -> bool {
    let (Ok(first), Ok(end), Ok(step)) = (range.start(), range.stop(), range.step()) else {
        return false;
    };
    Token::Range([first as i64, end as i64, step as i64]).write(is_remembered, out);
    true
}

/// The range of these start, stop and step.
///
/// # Errors
/// `ValueError` if the step is 0.
pub fn decode_range(py: Python<'_>, [first, end, step]: [i64; 3]) -> PyResult<Bound<'_, PyRange>> {
    PyRange::new_with_step(py, first as isize, end as isize, step as isize)
}
