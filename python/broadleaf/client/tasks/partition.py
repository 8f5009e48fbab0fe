"""Cutting sequences into parts, and joining parts again."""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any

from broadleaf.client.tasks.rows import join_rows, rows_of

# Even with few chunks, each engine gets several, so that nobody waits long for the last ones.
AUTO_CHUNKS_PER_ENGINE = 8
AUTO_CHUNK_ITEMS_MAX = 16_384

# A type made of one of these may have another.
_ITERATIONS = (list.__iter__, tuple.__iter__, range.__iter__, str.__iter__, bytes.__iter__)


def automatic_chunk_items(n_items: int, n_engines: int, chunk_target: int) -> int:
    """Items per chunk if the user does not say.

    Up to `chunk_target` items go one by one: balance is worth more than a few milliseconds of overhead. Longer
    sequences are cut into `chunk_target` chunks, or 8 per engine if that is more, of at most 16,384 items.
    """
    chunks = max(chunk_target, AUTO_CHUNKS_PER_ENGINE * n_engines)
    return max(1, min(math.ceil(n_items / chunks), AUTO_CHUNK_ITEMS_MAX))


def as_sequence(items: Any) -> Any:
    """`items` if it has a length, and slices that show what iterating over it does, or else a list of it."""
    if isinstance(items, list | tuple | range | str | bytes):
        return items if type(items).__iter__ in _ITERATIONS else list(items)
    if is_array(items):
        return items
    if isinstance(items, Sequence):
        try:
            items[:0]
        except Exception:
            # A deque, or one that somebody wrote without slices in mind.
            return list(items)
        return items
    return list(items)


def as_rows(items: Any) -> Any:
    """`items` as something that can be cut into parts: tables and matrices by rows, everything else as with
    `as_sequence`."""
    rows = rows_of(items)
    return as_sequence(items) if rows is None else rows


def is_array(value: Any) -> bool:
    """Whether `value` is a numpy array; numpy is not imported for this."""
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, numpy.ndarray)


def chunks(sequences: Sequence[Any], n_items: int, chunk_items: int) -> Iterator[tuple[Any, ...]]:
    """Tuples of slices of all sequences, `chunk_items` long except for the last."""
    if len(sequences) == 1:
        only = sequences[0]
        for low in range(0, n_items, chunk_items):
            yield (only[low : min(low + chunk_items, n_items)],)
        return
    for low in range(0, n_items, chunk_items):
        high = min(low + chunk_items, n_items)
        yield tuple(sequence[low:high] for sequence in sequences)


def part_bounds(n_items: int, part: int, n_parts: int) -> tuple[int, int]:
    """First index, and index after the last, of a part when parts are as equal as can be, larger ones first."""
    size, larger = divmod(n_items, n_parts)
    low = part * size + min(part, larger)
    return low, low + size + (part < larger)


def part_of(sequence: Any, part: int, n_parts: int, n_items: int, dist: str = "b") -> Any:
    """One of `n_parts` parts of the first `n_items` of `sequence`: contiguous ('b') or every n-th ('r')."""
    if dist == "r":
        return sequence[part:n_items:n_parts]
    low, high = part_bounds(n_items, part, n_parts)
    return sequence[low:high]


def join_parts(parts: Sequence[Any], dist: str = "b") -> Any:
    """Joins parts made by `part_of`; scalars are returned as a list."""
    if not parts:
        return []
    if is_array(parts[0]) and parts[0].ndim > 0:
        return _join_arrays(parts, dist)
    rows = join_rows(parts, dist)
    if rows is not None:
        return rows
    if not isinstance(parts[0], list | tuple | range | str):
        return list(parts)
    if dist == "b":
        return list(chain.from_iterable(parts))
    rows = max(len(part) for part in parts)
    return [part[i] for i in range(rows) for part in parts if i < len(part)]


def _join_arrays(parts: Sequence[Any], dist: str) -> Any:
    """One array of the kind of the parts. NumPy's own `concatenate` forgets masks and types."""
    import numpy

    masked = [part for part in parts if isinstance(part, numpy.ma.MaskedArray)]
    whole = _join_data([numpy.asarray(part) for part in parts], dist)
    if masked:
        mask: Any = numpy.ma.nomask
        if any(part.mask is not numpy.ma.nomask for part in masked):
            mask = _join_data([numpy.ma.getmaskarray(part) for part in parts], dist)
        fill_value = masked[0].fill_value if masked[0].dtype == whole.dtype else None
        return numpy.ma.MaskedArray(whole, mask, fill_value=fill_value, hard_mask=masked[0].hardmask)
    kind = type(parts[0])
    if kind is not numpy.ndarray and all(type(part) is kind for part in parts):
        whole = whole.view(kind)
        # With the attributes that a part has of the array it was cut from.
        whole.__array_finalize__(parts[0])
    return whole


def _join_data(parts: list[Any], dist: str) -> Any:
    import numpy

    if dist == "b":
        return numpy.concatenate(parts)
    dtype = functools.reduce(numpy.promote_types, {part.dtype: None for part in parts})
    whole = numpy.empty((sum(map(len, parts)), *parts[0].shape[1:]), dtype)
    for i, part in enumerate(parts):
        whole[i :: len(parts)] = part
    return whole


def check_dist(dist: str) -> None:
    """Raises `ValueError` unless `dist` is 'b' or 'r'."""
    if dist not in ("b", "r"):
        raise ValueError(f"dist must be 'b' (contiguous parts) or 'r' (every n-th item), not {dist!r}")
