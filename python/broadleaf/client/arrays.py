"""Arrays allocated in shared memory: sending one to the engines of this host copies nothing."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import ArrayLike, DTypeLike, NDArray

Order = Literal["C", "F"]


def empty(shape: int | tuple[int, ...], dtype: DTypeLike = float, order: Order = "C") -> NDArray[Any]:
    """An array of any content, like `numpy.empty`, whose memory engines of this host can map.

    It is an ordinary array. The first time it is sent (`push`, `apply`, a result) nothing is copied; from then on what
    you write to it is yours alone, and sending it again after that costs one copy. In mode 'shared' you and the engines
    go on writing to the same memory. Raises `ValueError` for a dtype of Python objects, and `MemoryError`.
    """
    return _make(shape, dtype, order, zeroed=False)


def zeros(shape: int | tuple[int, ...], dtype: DTypeLike = float, order: Order = "C") -> NDArray[Any]:
    """As `empty`, filled with zeros."""
    return _make(shape, dtype, order, zeroed=True)


def asarray(values: ArrayLike, dtype: DTypeLike | None = None, order: Order = "C") -> NDArray[Any]:
    """The values as an array in shared memory: they are copied unless they already are one."""
    import numpy as np

    given = np.asarray(values, dtype)
    if _is_born(given) and (given.flags.c_contiguous if order == "C" else given.flags.f_contiguous):
        return given
    array = empty(given.shape, given.dtype, order)
    array[...] = given
    return array


def _make(shape: int | tuple[int, ...], dtype: DTypeLike, order: Order, zeroed: bool) -> NDArray[Any]:
    import numpy as np

    from broadleaf import _native

    kind = np.dtype(dtype)
    if kind.hasobject:
        raise ValueError(f"an array of {kind} holds Python objects, which cannot be in shared memory")
    dimensions = (shape,) if isinstance(shape, int) else tuple(shape)
    if any(length < 0 for length in dimensions):
        raise ValueError("negative dimensions are not allowed")
    n_bytes = math.prod(dimensions) * kind.itemsize
    if n_bytes == 0:
        return np.empty(dimensions, kind, order)
    memory: Any = _native.SharedMemory(n_bytes, zeroed)
    return np.ndarray(dimensions, kind, memory, order=order)


def _is_born(array: np.ndarray[Any, Any]) -> bool:
    from broadleaf import _native

    base: Any = array.base
    return isinstance(base, _native.SharedMemory) and len(base) == array.nbytes
