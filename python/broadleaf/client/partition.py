"""Cutting sequences, arrays and tables into parts and blocks, and joining the parts."""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import Any

from broadleaf.after_import import imported

# Tables, series and sparse matrices of other libraries, cut by rows and joined again.
#
# The types of the values identify the libraries, which are never imported here.


# Formats of SciPy's sparse matrices that can be sliced.
_SLICED_FORMATS = ("csr", "csc", "lil", "dok")


class Rows(Sequence[Any]):
    """A value as a sequence of its rows, which can be sliced."""

    __slots__ = ("_cut", "_n_rows")

    def __init__(self, n_rows: int, cut: Callable[[slice], Any]) -> None:
        self._n_rows = n_rows
        self._cut = cut

    def __len__(self) -> int:
        return self._n_rows

    def __getitem__(self, rows: Any) -> Any:
        return self._cut(rows if isinstance(rows, slice) else slice(rows, rows + 1))


def rows_of(value: Any) -> Rows | None:
    """`value` as rows if it has rows, or else None."""
    library = _library(value)
    if library == "scipy":
        matrix = value if value.format in _SLICED_FORMATS else value.tocsr()
        return Rows(matrix.shape[0], lambda rows: matrix[rows])
    if library == "pandas" and hasattr(value, "iloc"):
        return Rows(len(value), lambda rows: value.iloc[rows])
    if library == "pyarrow":
        # Uses take instead of a slice: the pickle of an Arrow slice holds all of the sliced array.
        return Rows(len(value), lambda rows: _take(value, range(*rows.indices(len(value)))))
    if library is not None:
        return Rows(len(value), lambda rows: value[rows])
    return None


def only_item(part: Any) -> Any:
    """The only item of a part, or `part` if it has several. One row of an Arrow or Polars table, or of a matrix, stays
    a table or matrix."""
    library = _library(part)
    if library is not None and any(hasattr(part, name) for name in ("tocsr", "num_columns")):
        return part
    if library == "polars" and hasattr(part, "columns"):
        return part
    if len(part) != 1:
        return part
    return part.iloc[0] if hasattr(part, "iloc") else part[0]


def join_rows(parts: Sequence[Any], dist: str) -> Any:
    """Joins parts that are tables, series or matrices of one library; None if they are something else."""
    library = _library(parts[0])
    if library is None or any(_library(part) != library for part in parts):
        return None
    whole = _concatenate(library, parts)
    if dist == "b":
        return whole
    lengths = [part.shape[0] if library == "scipy" else len(part) for part in parts]
    starts = [sum(lengths[:i]) for i in range(len(lengths))]
    # Row i of the whole is row i // n of part i % n.
    order = [starts[i % len(parts)] + i // len(parts) for i in range(sum(lengths))]
    if library == "pyarrow":
        return _take(whole, order)
    return whole.iloc[order] if hasattr(whole, "iloc") else whole[order]


def _library(value: Any) -> str | None:
    """The library that the rows of `value` come from."""
    if isinstance(value, list | tuple | str | bytes | range):
        return None
    for kind in type(value).__mro__:
        root = kind.__module__.partition(".")[0]
        if root == "scipy":
            return root if hasattr(value, "tocsr") else None
        if root in ("pandas", "pyarrow", "polars"):
            return root if hasattr(value, "__len__") and hasattr(value, "__getitem__") else None
    return None


def _take(value: Any, rows: Sequence[int]) -> Any:
    numpy = sys.modules.get("numpy")
    if numpy is None:
        return value.take(sys.modules["pyarrow"].array(rows))
    indices = numpy.arange(rows.start, rows.stop, rows.step) if isinstance(rows, range) else numpy.array(rows, "int64")
    return value.take(indices)


def _concatenate(library: str, parts: Sequence[Any]) -> Any:
    first = parts[0]
    if library == "scipy":
        sparse: Any = sys.modules["scipy.sparse"]
        stack = sparse.vstack if len(first.shape) == 2 else sparse.hstack
        return stack(parts, format=first.format)
    module: Any = sys.modules[library]
    if library == "polars":
        return module.concat(parts)
    if library == "pyarrow":
        return _concatenate_arrow(module, parts)
    if hasattr(first, "iloc"):
        return module.concat(parts)
    if hasattr(first, "append"):
        return first.append(list(parts[1:]))
    return module.concat([module.Series(part) for part in parts]).array


def _concatenate_arrow(pyarrow: Any, parts: Sequence[Any]) -> Any:
    first = parts[0]
    if isinstance(first, pyarrow.Table):
        return pyarrow.concat_tables(parts)
    if isinstance(first, pyarrow.RecordBatch):
        return pyarrow.concat_batches(parts)
    if isinstance(first, pyarrow.ChunkedArray):
        return pyarrow.chunked_array([chunk for part in parts for chunk in part.chunks], first.type)
    return pyarrow.concat_arrays(parts)


# Cutting sequences into parts, and joining parts again.


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
    numpy = imported("numpy", "ndarray")
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


def as_columns(calls: Sequence[tuple[Any, ...]]) -> list[list[Any]]:
    """The arguments of calls by position. Empty if the calls differ in how many they have, or have none."""
    if len(set(map(len, calls))) != 1:
        return []
    return [list(column) for column in zip(*calls, strict=True)]


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


# Iterators, taken in blocks: what they yield in total need not fit into memory.


# Items that are taken before their sizes are looked at.
_MAX_TAKEN = 16_384
# How deep, and into how many items of a container, an estimate looks.
_MAX_DEPTH = 4
_MAX_SAMPLED = 64
_SCALARS = frozenset({int, float, bool, complex, type(None)})
_SCALAR_BYTES = 32
_TEXTS = frozenset({str, bytes, bytearray})


def in_blocks(sequences: Sequence[Iterable[Any]], max_bytes: int) -> Iterator[list[list[Any]]]:
    """Blocks of items of several iterables taken together, cut to the shortest.

    Args:
        sequences: The iterables.
        max_bytes: A block ends with the item that makes it larger than this, by `estimated_bytes`.

    Yields:
        A list for each iterable, all of the same length. The first block may be empty.
    """
    take = _taker(sequences)
    block: list[list[Any]] = [[] for _ in sequences]
    block_bytes = 0
    is_first = True
    n_next = 1
    while True:
        columns = take(n_next)
        n_taken = len(columns[0])
        for column, taken in zip(block, columns, strict=True):
            column += taken
        taken_bytes = sum(map(_column_bytes, columns))
        block_bytes += taken_bytes
        is_last = n_taken < n_next
        if block_bytes >= max_bytes or (is_last and (block[0] or is_first)):
            yield block
            block, block_bytes, is_first = [[] for _ in sequences], 0, False
        if is_last:
            return
        item_bytes = max(1, taken_bytes // n_taken)
        n_next = max(1, min(2 * n_next, _MAX_TAKEN, (max_bytes - block_bytes) // item_bytes))


def _taker(sequences: Sequence[Iterable[Any]]) -> Callable[[int], list[list[Any]]]:
    """Takes at most so many items of several iterables: a list for each, of the same length."""
    if len(sequences) == 1:
        # Without a tuple around each item.
        only = iter(sequences[0])
        return lambda n: [list(islice(only, n))]
    items = zip(*sequences, strict=False)

    def take(n: int) -> list[list[Any]]:
        taken = list(islice(items, n))
        return [list(column) for column in zip(*taken, strict=True)] or [[] for _ in sequences]

    return take


def _column_bytes(column: list[Any]) -> int:
    types = set(map(type, column))
    if types <= _SCALARS:
        return _SCALAR_BYTES * len(column)
    if types <= _TEXTS:
        return sum(map(len, column)) + _SCALAR_BYTES * len(column)
    return sum(map(estimated_bytes, column))


def estimated_bytes(value: Any, depth: int = _MAX_DEPTH) -> int:
    """How much memory a value takes, about: exact for arrays, bytes and text, and by a few of its items for others."""
    kind = type(value)
    if kind in _SCALARS:
        return _SCALAR_BYTES
    if kind in _TEXTS:
        return len(value) + _SCALAR_BYTES
    n_bytes = getattr(value, "nbytes", None)
    if isinstance(n_bytes, int):
        return n_bytes + _SCALAR_BYTES
    own_bytes = sys.getsizeof(value, _SCALAR_BYTES)
    if not depth:
        return own_bytes
    inside: Any
    if isinstance(value, dict):
        inside = value.values()
    elif isinstance(value, list | tuple | set | frozenset):
        inside = value
    else:
        inside = getattr(value, "__dict__", {}).values()
    sampled = list(islice(inside, _MAX_SAMPLED))
    if not sampled:
        return own_bytes
    sampled_bytes = sum(estimated_bytes(item, depth - 1) for item in sampled)
    return own_bytes + sampled_bytes * len(inside) // len(sampled)
