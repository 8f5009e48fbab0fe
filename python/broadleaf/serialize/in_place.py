"""Which values can be overwritten in place, and the arrays they are made of."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from broadleaf.errors import InPlaceMismatch

# The arrays of SciPy's sparse formats.
_SPARSE_PARTS = {
    "csr": ("data", "indices", "indptr"),
    "csc": ("data", "indices", "indptr"),
    "bsr": ("data", "indices", "indptr"),
    "coo": ("data", "row", "col"),
    "dia": ("data", "offsets"),
}


def form_of(value: Any, name: str) -> Any:
    """What another value must match to replace this one: types, keys, shapes, dtypes and orders.

    `name` is what messages call the value. Raises `InPlaceMismatch` when the value cannot be overwritten at all.
    """
    if isinstance(value, dict):
        return ("dict", {key: form_of(item, f"{name}[{key!r}]") for key, item in value.items()})
    if isinstance(value, list | tuple):
        return (type(value).__name__, [form_of(item, f"{name}[{i}]") for i, item in enumerate(value)])
    parts = _sparse_parts(value)
    if parts is not None:
        forms = [form_of(getattr(value, part), f"{name}.{part}") for part in parts]
        return (type(value).__name__, value.shape, forms)
    if hasattr(value, "dtype") and hasattr(value, "flags"):
        return _array_form(value, name)
    raise InPlaceMismatch(f"{name} is a {type(value).__name__}, which cannot be overwritten in place: push it")


def _array_form(array: Any, name: str) -> Any:
    if array.dtype.hasobject:
        raise InPlaceMismatch(f"{name} holds Python objects, which cannot be overwritten in place: push it")
    flags = array.flags
    if not (flags.c_contiguous or flags.f_contiguous):
        raise InPlaceMismatch(f"{name} is not contiguous: push it, or a contiguous copy")
    return (type(array).__name__, array.shape, array.dtype, "C" if flags.c_contiguous else "F")


def _sparse_parts(value: Any) -> tuple[str, ...] | None:
    if not type(value).__module__.startswith("scipy.sparse"):
        return None
    return _SPARSE_PARTS.get(getattr(value, "format", ""))


def arrays_of(value: Any) -> Iterator[Any]:
    """The arrays a value is made of, in the order of its form."""
    if isinstance(value, dict):
        for item in value.values():
            yield from arrays_of(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from arrays_of(item)
    else:
        parts = _sparse_parts(value)
        if parts is None:
            yield value
        else:
            yield from (getattr(value, part) for part in parts)


def n_bytes(value: Any) -> int:
    """Bytes of the arrays a value is made of."""
    return sum(array.nbytes for array in arrays_of(value))
