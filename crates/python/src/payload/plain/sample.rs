//! A look at some of a container's items, before all are encoded: most values that must be left to pickle show it there.

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyTuple};

use crate::buffer::Entries;
use crate::payload::arrays;

/// Containers with fewer items are not sampled: what cannot be encoded is found soon.
pub const MIN_ITEMS: usize = 256;
/// Number of items that are looked at in a container, in those in it, and so on.
const N_SAMPLES: [usize; 4] = [64, 16, 8, 4];

/// Whether the first item, the last one, and some between can be encoded, as far as their types show.
pub fn is_promising(value: &Bound<'_, PyAny>) -> bool {
    is_promising_at(value, 0)
}

fn is_promising_at(value: &Bound<'_, PyAny>, depth: usize) -> bool {
    if super::is_leaf(value) {
        return true;
    }
    let Some(&n_samples) = N_SAMPLES.get(depth) else {
        return true;
    };
    let holds =
        |item: PyResult<Bound<'_, PyAny>>| item.is_ok_and(|item| is_promising_at(&item, depth + 1));
    if let Ok(list) = value.cast_exact::<PyList>() {
        positions(list.len(), n_samples).all(|i| holds(list.get_item(i)))
    } else if let Ok(tuple) = value.cast_exact::<PyTuple>() {
        positions(tuple.len(), n_samples).all(|i| holds(tuple.get_item(i)))
    } else if let Ok(dict) = value.cast_exact::<PyDict>() {
        Entries::of(dict)
            .take(n_samples)
            .all(|(key, value)| super::is_leaf_or_tuple(&key) && is_promising_at(&value, depth + 1))
            && (dict.len() <= n_samples || holds(last_value(dict)))
    } else {
        arrays::is_array(value)
    }
}

/// Positions of samples among `n` items, at equal distances.
fn positions(n: usize, n_samples: usize) -> impl Iterator<Item = usize> {
    let n_samples = n_samples.min(n);
    (0..n_samples).map(move |i| i * (n - 1) / (n_samples - 1).max(1))
}

fn last_value<'py>(dict: &Bound<'py, PyDict>) -> PyResult<Bound<'py, PyAny>> {
    let mut backwards = dict.call_method0("__reversed__")?.try_iter()?;
    match backwards.next() {
        Some(key) => dict.as_any().get_item(key?),
        None => Ok(dict.py().None().into_bound(dict.py())),
    }
}
