//! Direct calls of Python's C interface; the only file here with `unsafe`: bytes that cross the border without a copy,
//! and objects that the garbage collector tracks.
#![allow(unsafe_code)]
#![expect(
    clippy::needless_pass_by_value,
    reason = "the signature is the protocol's"
)]

use std::ffi::{c_int, c_void};
use std::sync::Arc;

use broadleaf_shm::SharedAllocation;
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::{PyBufferError, PyMemoryError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyList, PyString, PyTuple};
use smallvec::SmallVec;

use crate::memory::allocations;
use crate::memory::received::{Received, ReceivedTable};

/// Bytes received out of band: a view of a shared segment, private, read-only or shared, as they were delivered.
#[pyclass(frozen, module = "broadleaf._native")]
pub struct Buffer {
    received: Arc<Received>,
    table: Arc<ReceivedTable>,
}

impl Buffer {
    /// Wraps received bytes; when the last view is gone, they are removed from `table` and their segment is released.
    pub fn new(received: Arc<Received>, table: Arc<ReceivedTable>) -> Self {
        Self { received, table }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        self.table.remove(&self.received);
    }
}

#[pymethods]
impl Buffer {
    fn __len__(&self) -> usize {
        self.received.mapping.len()
    }

    unsafe fn __getbuffer__(
        slf: Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        if view.is_null() {
            return Err(PyBufferError::new_err("view is null"));
        }
        let mapping = &slf.get().received.mapping;
        let memory = (mapping.as_mut_ptr(), mapping.len(), !mapping.is_writable());
        // SAFETY: the mapping lives as long as `slf`, of which the view takes a reference. Where it is writable no
        // Rust reference to its bytes is used while views exist.
        unsafe { fill_view(view, slf.as_any(), memory, flags) }
    }
}

/// Fills a view of memory (start, length, whether it is read-only).
///
/// # Safety
/// The memory must live as long as `owner`, and `view` be valid to write to.
unsafe fn fill_view(
    view: *mut ffi::Py_buffer,
    owner: &Bound<'_, PyAny>,
    (start, len, readonly): (*mut u8, usize, bool),
    flags: c_int,
) -> PyResult<()> {
    // SAFETY: the caller's promise.
    let code = unsafe {
        ffi::PyBuffer_FillInfo(
            view,
            owner.as_ptr(),
            start.cast::<c_void>(),
            len as isize,
            c_int::from(readonly),
            flags,
        )
    };
    if code == 0 {
        Ok(())
    } else {
        Err(PyErr::fetch(owner.py()))
    }
}

/// Memory for an array that is sent without a copy: see [`SharedAllocation`].
#[pyclass(frozen, module = "broadleaf._native")]
pub struct SharedMemory {
    memory: Arc<SharedAllocation>,
}

impl Drop for SharedMemory {
    fn drop(&mut self) {
        allocations::remove(&self.memory);
    }
}

#[pymethods]
impl SharedMemory {
    #[new]
    fn new(n_bytes: u64, zeroed: bool) -> PyResult<Self> {
        let memory = SharedAllocation::new(n_bytes, zeroed)
            .map_err(|error| PyMemoryError::new_err(error.to_string()))?;
        let memory = Arc::new(memory);
        allocations::enter(&memory);
        Ok(Self { memory })
    }

    fn __len__(&self) -> usize {
        self.memory.len()
    }

    unsafe fn __getbuffer__(
        slf: Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        if view.is_null() {
            return Err(PyBufferError::new_err("view is null"));
        }
        let memory = &slf.get().memory;
        // SAFETY: the memory lives as long as `slf`, of which the view takes a reference; its address never changes.
        unsafe {
            fill_view(
                view,
                slf.as_any(),
                (memory.as_mut_ptr(), memory.len(), false),
                flags,
            )
        }
    }
}

/// Address and length of a C-contiguous buffer.
///
/// # Errors
/// Whatever the object raises when asked for its buffer.
pub fn address_of(object: &Bound<'_, PyAny>) -> PyResult<(usize, usize)> {
    let buffer = PyBuffer::<u8>::get(object)?;
    if !buffer.is_c_contiguous() {
        return Err(PyBufferError::new_err("the buffer must be contiguous"));
    }
    Ok((buffer.buf_ptr() as usize, buffer.len_bytes()))
}

/// Calls `read` with the bytes of a C-contiguous buffer of unsigned bytes.
///
/// # Errors
/// Whatever the object raises when asked for its buffer.
pub fn with_bytes<R>(object: &Bound<'_, PyAny>, read: impl FnOnce(&[u8]) -> R) -> PyResult<R> {
    let buffer = PyBuffer::<u8>::get(object)?;
    if !buffer.is_c_contiguous() {
        return Err(PyBufferError::new_err(
            "an out-of-band buffer must be contiguous",
        ));
    }
    if buffer.len_bytes() == 0 {
        return Ok(read(&[]));
    }
    // SAFETY: the buffer is contiguous, held for the duration of the call, and the interpreter lock is held, so
    // only code that ignores it (another process, or a C extension) could change the bytes while they are read.
    let bytes =
        unsafe { std::slice::from_raw_parts(buffer.buf_ptr().cast::<u8>(), buffer.len_bytes()) };
    Ok(read(bytes))
}

/// An entry of a dict, found without its hash: a look-up takes five times as long.
pub struct Entry {
    dict: Py<PyDict>,
    position: ffi::Py_ssize_t,
    key: Py<PyAny>,
    value: Py<PyAny>,
}

impl Entry {
    /// The entry of a key; `None` if there is none.
    pub fn of(dict: &Bound<'_, PyDict>, key: &Bound<'_, PyString>) -> Option<Self> {
        let mut next = 0;
        loop {
            let position = next;
            let (key_there, value) = next_entry(dict, &mut next)?;
            if key_there.eq(key).unwrap_or(false) {
                return Some(Self {
                    dict: dict.clone().unbind(),
                    position,
                    key: key_there.unbind(),
                    value: value.unbind(),
                });
            }
        }
    }

    /// Whether the dict still has this very value there. It may say no after other entries have been removed.
    pub fn holds(&self, py: Python<'_>) -> bool {
        let mut position = self.position;
        let (mut key, mut value) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: a dict that is alive, under the interpreter lock; for any position there is either an entry or none
        // left. The borrowed results are only compared.
        let has_entry = unsafe {
            ffi::PyDict_Next(
                self.dict.bind(py).as_ptr(),
                &raw mut position,
                &raw mut key,
                &raw mut value,
            )
        };
        has_entry != 0 && key == self.key.as_ptr() && value == self.value.as_ptr()
    }
}

/// The entry at a position, or the first one behind it; `position` becomes that of the next.
fn next_entry<'py>(
    dict: &Bound<'py, PyDict>,
    position: &mut ffi::Py_ssize_t,
) -> Option<(Bound<'py, PyAny>, Bound<'py, PyAny>)> {
    let py = dict.py();
    let (mut key, mut value) = (std::ptr::null_mut(), std::ptr::null_mut());
    // SAFETY: as in `Entry::holds`; of the borrowed results, references are taken at once.
    unsafe {
        let has_entry =
            ffi::PyDict_Next(dict.as_ptr(), position, &raw mut key, &raw mut value) != 0;
        has_entry.then(|| {
            (
                Bound::from_borrowed_ptr(py, key),
                Bound::from_borrowed_ptr(py, value),
            )
        })
    }
}

/// What an encoder needs of an object: a number as such, else the object.
pub enum Item<'py> {
    None,
    Bool(bool),
    /// If it has at most 64 bits.
    Int(i64),
    Float(f64),
    Other(Bound<'py, PyAny>),
}

/// What an object is. Of exact types only: a subclass is an object.
///
/// # Safety
/// The object must be alive.
#[inline]
unsafe fn item_of(py: Python<'_>, object: *mut ffi::PyObject) -> Item<'_> {
    // SAFETY: the caller's promise; each is read as a number of the type that it was found to be.
    unsafe {
        if ffi::PyUnicode_CheckExact(object) != 0 {
            return Item::Other(Bound::from_borrowed_ptr(py, object));
        }
        if ffi::PyLong_CheckExact(object) != 0 {
            let mut overflow = 0;
            let int = ffi::PyLong_AsLongAndOverflow(object, &raw mut overflow);
            if overflow == 0 {
                return Item::Int(int);
            }
        } else if ffi::PyFloat_CheckExact(object) != 0 {
            return Item::Float(ffi::PyFloat_AsDouble(object));
        } else if object == ffi::Py_None() {
            return Item::None;
        } else if ffi::PyBool_Check(object) != 0 {
            return Item::Bool(object == ffi::Py_True());
        }
        Item::Other(Bound::from_borrowed_ptr(py, object))
    }
}

impl<'py> From<Bound<'py, PyAny>> for Item<'py> {
    fn from(object: Bound<'py, PyAny>) -> Self {
        // SAFETY: it is alive.
        unsafe { item_of(object.py(), object.as_ptr()) }
    }
}

/// Calls `each` with the items of a list, until it says false; returns whether it never did. The list may be changed
/// meanwhile.
pub fn all_items<'py>(list: &Bound<'py, PyList>, mut each: impl FnMut(Item<'py>) -> bool) -> bool {
    let mut index = 0;
    while index < list.len() {
        // SAFETY: the index is in the list now, under the interpreter lock, and of the borrowed item a number or a
        // reference is taken at once.
        let item = unsafe {
            let object = ffi::PyList_GetItem(list.as_ptr(), index as ffi::Py_ssize_t);
            item_of(list.py(), object)
        };
        if !each(item) {
            return false;
        }
        index += 1;
    }
    true
}

/// The same for a tuple.
pub fn all_of_tuple<'py>(
    tuple: &Bound<'py, PyTuple>,
    mut each: impl FnMut(Item<'py>) -> bool,
) -> bool {
    tuple.iter_borrowed().all(|item| {
        // SAFETY: a tuple's items live as long as it does.
        each(unsafe { item_of(tuple.py(), item.as_ptr()) })
    })
}

/// The values of a dict, each with the address of its key, which is only for comparing.
pub fn values_of<'py>(dict: &Bound<'py, PyDict>) -> SmallVec<[(usize, Item<'py>); 16]> {
    let mut values = SmallVec::new();
    let mut position = 0;
    let (mut key, mut value) = (std::ptr::null_mut(), std::ptr::null_mut());
    // SAFETY: as in `Entry::holds`; nothing here runs other code, and of the borrowed value a number or a reference is
    // taken at once.
    unsafe {
        while ffi::PyDict_Next(
            dict.as_ptr(),
            &raw mut position,
            &raw mut key,
            &raw mut value,
        ) != 0
        {
            values.push((key as usize, item_of(dict.py(), value)));
        }
    }
    values
}

/// The entries of a dict that other code may change meanwhile: then some may be missing, or come twice.
pub struct Entries<'a, 'py> {
    dict: &'a Bound<'py, PyDict>,
    position: ffi::Py_ssize_t,
}

impl<'a, 'py> Entries<'a, 'py> {
    /// From the first entry on.
    pub fn of(dict: &'a Bound<'py, PyDict>) -> Self {
        Self { dict, position: 0 }
    }
}

impl<'py> Iterator for Entries<'_, 'py> {
    type Item = (Bound<'py, PyAny>, Bound<'py, PyAny>);

    fn next(&mut self) -> Option<Self::Item> {
        next_entry(self.dict, &mut self.position)
    }
}

/// Whether nobody but the caller and one other, such as the container in which it was found, refers to an object.
pub fn is_in_one_place(object: &Bound<'_, PyAny>) -> bool {
    // SAFETY: an object that is alive, under the interpreter lock.
    unsafe { ffi::Py_REFCNT(object.as_ptr()) <= 2 }
}

/// Whether a list begins with this very object, or is empty for `None`; takes no reference.
pub fn begins_with(list: &Bound<'_, PyList>, object: Option<&Bound<'_, PyAny>>) -> bool {
    if list.is_empty() {
        return object.is_none();
    }
    // SAFETY: a list that is not empty, under the interpreter lock. The borrowed result is only compared.
    let first = unsafe { ffi::PyList_GetItem(list.as_ptr(), 0) };
    object.is_some_and(|object| first == object.as_ptr())
}

/// The items of a list that are all of one type.
pub enum Numbers {
    /// This many.
    Nones(usize),
    /// 0 or 1.
    Bools(Vec<u8>),
    Ints(Vec<i64>),
    Floats(Vec<f64>),
}

/// The items of a list if all are `None`, exact `bool`, exact 64-bit `int` or exact `float`, and of the same type.
pub fn numbers_of(list: &Bound<'_, PyList>) -> Option<Numbers> {
    let n = list.len();
    if n == 0 {
        return Some(Numbers::Nones(0));
    }
    // SAFETY: the index is in the list, which no other code can change under the interpreter lock: nothing here calls
    // any. So the borrowed items live until they have been read.
    let item = |index: usize| unsafe { ffi::PyList_GetItem(list.as_ptr(), index as isize) };
    let first = item(0);
    let (none, truth) = (list.py().None(), PyBool::new(list.py(), true));
    // SAFETY: the items are alive, see above, and each is read as a number of a type that it was found to be.
    unsafe {
        if first == none.as_ptr() {
            (1..n)
                .all(|i| item(i) == none.as_ptr())
                .then_some(Numbers::Nones(n))
        } else if ffi::PyLong_CheckExact(first) != 0 {
            let int = |i| {
                let item = item(i);
                let mut overflow = 0;
                let value = (ffi::PyLong_CheckExact(item) != 0)
                    .then(|| ffi::PyLong_AsLongAndOverflow(item, &raw mut overflow));
                value.filter(|_| overflow == 0)
            };
            (0..n).map(int).collect::<Option<_>>().map(Numbers::Ints)
        } else if ffi::PyFloat_CheckExact(first) != 0 {
            let float = |i| {
                let item = item(i);
                (ffi::PyFloat_CheckExact(item) != 0).then(|| ffi::PyFloat_AsDouble(item))
            };
            (0..n)
                .map(float)
                .collect::<Option<_>>()
                .map(Numbers::Floats)
        } else if ffi::PyBool_Check(first) != 0 {
            let flag = |i| {
                let item = item(i);
                (ffi::PyBool_Check(item) != 0).then(|| u8::from(item == truth.as_ptr()))
            };
            (0..n).map(flag).collect::<Option<_>>().map(Numbers::Bools)
        } else {
            None
        }
    }
}

/// Hides an object from the cyclic garbage collector, which then spends no time on it; everything it refers to lives as
/// long as it does.
pub fn untrack(object: &Bound<'_, PyAny>) {
    // SAFETY: a valid object of a type that takes part in collection; untracking what is not tracked does nothing.
    unsafe { ffi::PyObject_GC_UnTrack(object.as_ptr().cast::<c_void>()) }
}

/// Makes the collector track an object again.
pub fn track(object: &Bound<'_, PyAny>) {
    // SAFETY: a valid object of a type that takes part in collection, whole, so it can be traversed, and not tracked.
    unsafe {
        if ffi::PyObject_GC_IsTracked(object.as_ptr()) == 0 {
            ffi::PyObject_GC_Track(object.as_ptr().cast::<c_void>());
        }
    }
}
