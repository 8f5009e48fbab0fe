"""Arrays allocated in shared memory: sending one to engines on this host copies nothing."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Literal, overload

if TYPE_CHECKING:
    from typing import TypeVar

    import numpy as np
    from numpy.typing import ArrayLike, DTypeLike, NDArray

    Scalar = TypeVar("Scalar", bound=np.generic)

Order = Literal["C", "F"]


@overload
def empty(shape: int | tuple[int, ...], *, order: Order = "C") -> NDArray[np.float64]: ...


@overload
def empty(
    shape: int | tuple[int, ...], dtype: type[Scalar] | np.dtype[Scalar], order: Order = "C"
) -> NDArray[Scalar]: ...


@overload
def empty(shape: int | tuple[int, ...], dtype: DTypeLike = float, order: Order = "C") -> NDArray[Any]: ...


def empty(shape: int | tuple[int, ...], dtype: DTypeLike = float, order: Order = "C") -> NDArray[Any]:
    """An array with arbitrary content, like `numpy.empty`, whose memory engines on this host can map.

    It is an ordinary array. The first time it is sent (`push`, `apply`, a result) nothing is copied. After that, what
    you write to it stays private, and sending it again costs one copy. In mode 'shared', you and the engines continue
    to write to the same memory.

    Args:
        shape: Its length, or the lengths of its axes.
        dtype: The type of its items, as for numpy.
        order: 'C' for rows one after the other in memory, 'F' for columns.

    Returns:
        An array of that shape, with arbitrary content.

    Raises:
        ValueError: The dtype holds Python objects, or a length is negative.
        MemoryError: There is not enough shared memory.

    Example:
        >>> table = ipp.empty((1000, 3), dtype="float32")
        >>> table[:] = 1
        >>> rc[0].apply_sync(lambda a: float(a.sum()), table)
        3000.0
    """
    return _make(shape, dtype, order, zeroed=False)


@overload
def zeros(shape: int | tuple[int, ...], *, order: Order = "C") -> NDArray[np.float64]: ...


@overload
def zeros(
    shape: int | tuple[int, ...], dtype: type[Scalar] | np.dtype[Scalar], order: Order = "C"
) -> NDArray[Scalar]: ...


@overload
def zeros(shape: int | tuple[int, ...], dtype: DTypeLike = float, order: Order = "C") -> NDArray[Any]: ...


def zeros(shape: int | tuple[int, ...], dtype: DTypeLike = float, order: Order = "C") -> NDArray[Any]:
    """An array of zeros, like `numpy.zeros`, whose memory engines on this host can map; see `empty`.

    Args:
        shape: Its length, or the lengths of its axes.
        dtype: The type of its items, as for numpy.
        order: 'C' for rows one after the other in memory, 'F' for columns.

    Returns:
        An array of that shape.

    Raises:
        ValueError: The dtype holds Python objects, or a length is negative.
        MemoryError: There is not enough shared memory.
    """
    return _make(shape, dtype, order, zeroed=True)


@overload
def asarray(values: NDArray[Scalar], *, order: Order = "C") -> NDArray[Scalar]: ...


@overload
def asarray(values: ArrayLike, dtype: type[Scalar] | np.dtype[Scalar], order: Order = "C") -> NDArray[Scalar]: ...


@overload
def asarray(values: ArrayLike, dtype: DTypeLike | None = None, order: Order = "C") -> NDArray[Any]: ...


def asarray(values: ArrayLike, dtype: DTypeLike | None = None, order: Order = "C") -> NDArray[Any]:
    """Values as an array whose memory engines on this host can map; see `empty`.

    Args:
        values: An array, or anything that `numpy.asarray` accepts.
        dtype: The type of its items; by default, that of the values.
        order: 'C' for rows one after the other in memory, 'F' for columns.

    Returns:
        A copy, of the same shape. The array itself if it is already such an array, in this order and dtype.

    Raises:
        ValueError: The dtype holds Python objects.
        MemoryError: There is not enough shared memory.
    """
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
