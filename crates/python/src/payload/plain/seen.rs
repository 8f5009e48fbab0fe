//! What a value in the compact encoding has named: objects that can occur again, and keys that dicts have in common.

use std::rc::Rc;

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString};
use rustc_hash::FxHashMap;

use broadleaf_proto::compact::MAX_KEYS;

use crate::buffer::{Entries, Item, is_in_one_place};

/// What was encoded so far.
#[derive(Default)]
pub struct Seen<'py> {
    /// Numbers of remembered objects by their addresses.
    numbers: FxHashMap<usize, usize>,
    /// Keeps them alive, and so their addresses their own.
    objects: Vec<Bound<'py, PyAny>>,
    /// Keys that dicts have in common.
    keys: Vec<Rc<[Bound<'py, PyString>]>>,
    /// The latest number of keys with the same first one, by its address.
    keys_by_first: FxHashMap<usize, usize>,
    /// Numbers of the tuples that are being encoded.
    open_tuples: Vec<usize>,
}

/// What is known of an object that is about to be encoded.
pub enum Known {
    /// It has occurred: as this number.
    As(usize),
    /// It may occur again.
    Remembered,
    /// It is nowhere else.
    Once,
}

/// How a dict names its keys.
pub enum Keys {
    /// They are those of this number.
    Same(usize),
    /// They get this number.
    New(usize),
    /// One by one.
    Own,
}

impl<'py> Seen<'py> {
    /// Looks up an object, which the caller holds once, and remembers it if others hold it than the container in
    /// which it was found: only then can it occur again.
    pub fn look_up(&mut self, object: &Bound<'py, PyAny>) -> Known {
        if is_in_one_place(object) {
            return Known::Once;
        }
        let number = self.objects.len();
        let known = *self
            .numbers
            .entry(object.as_ptr() as usize)
            .or_insert(number);
        if known < number {
            return Known::As(known);
        }
        self.objects.push(object.clone());
        Known::Remembered
    }

    /// A tuple begins, whose reader has it only when it has all items.
    pub fn open_tuple(&mut self) {
        self.open_tuples.push(self.objects.len() - 1);
    }

    /// The tuple that began last is complete.
    pub fn close_tuple(&mut self) {
        self.open_tuples.pop();
    }

    /// Whether this number is that of a tuple which is not complete.
    pub fn is_open(&self, number: usize) -> bool {
        self.open_tuples.contains(&number)
    }

    /// How a dict with these values names its keys; [`Self::keys`] has new ones.
    pub fn look_up_keys(
        &mut self,
        dict: &Bound<'py, PyDict>,
        values: &[(usize, Item<'py>)],
    ) -> Keys {
        let Some(&(first, _)) = values.first() else {
            return Keys::Own;
        };
        if let Some(&number) = self.keys_by_first.get(&first) {
            let known = &self.keys[number];
            let mut pairs = known.iter().zip(values);
            if known.len() == values.len() && pairs.all(|(key, v)| key.as_ptr() as usize == v.0) {
                return Keys::Same(number);
            }
        }
        if self.keys.len() == MAX_KEYS {
            return Keys::Own;
        }
        let mut keys = Vec::with_capacity(values.len());
        for (key, _) in Entries::of(dict) {
            // Only keys that others hold can be another dict's too.
            let key = key
                .cast_into_exact::<PyString>()
                .ok()
                .filter(|key| !is_in_one_place(key.as_any()));
            let Some(key) = key else { return Keys::Own };
            keys.push(key);
        }
        let number = self.keys.len();
        self.keys_by_first.insert(first, number);
        self.keys.push(keys.into());
        Keys::New(number)
    }

    /// The keys of this number.
    pub fn keys(&self, number: usize) -> Rc<[Bound<'py, PyString>]> {
        Rc::clone(&self.keys[number])
    }
}
