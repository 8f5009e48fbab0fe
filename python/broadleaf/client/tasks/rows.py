"""Tables, series and sparse matrices of other libraries, cut by rows and joined again.

The types of the values identify the libraries, which are never imported here.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

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
