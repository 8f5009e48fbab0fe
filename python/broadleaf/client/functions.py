"""Functions bound to a view: `@view.remote()` and `@view.parallel()`."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from broadleaf.client.ctrl_c import ends_with_ctrl_c
from broadleaf.errors import hides_frames
from broadleaf.serialize.callables import check_callable
from broadleaf.serialize.functions import function_name

if TYPE_CHECKING:
    from broadleaf.client.protocols import Client, ViewSide


__tracebackhide__ = hides_frames


class RemoteFunction:
    """A function whose calls run on a view; `view.remote()` and `remote` create them.

    Args:
        view: The view.
        function: The function to call.
        block: Whether calls wait for their value; by default, the view's flag `block` decides at each call.
        **flags: Flags of the view that apply to these calls.

    Raises:
        TypeError: `function` cannot be called.
    """

    def __init__(self, view: ViewSide, function: Callable[..., Any], block: bool | None = None, **flags: Any) -> None:
        check_callable(function)
        self.view = view
        self.func = function
        self.block = block
        self.flags = flags
        self.__name__: str = function_name(function)
        if getattr(function, "__doc__", None):
            self.__doc__ = f"{type(self).__name__} wrapping:\n{function.__doc__}"
        try:
            self.__signature__: inspect.Signature = inspect.signature(function)
        except (TypeError, ValueError):
            # Builtins may not have one.
            pass

    @property
    def client(self) -> Client:
        """The client of the view."""
        return self.view.client

    def _blocking(self) -> bool:
        return bool(self.view.block if self.block is None else self.block)

    @ends_with_ctrl_c
    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        with self.view.temp_flags(**self.flags):
            result = self.view.apply_async(self.func, *args, **kwargs)
        return result.get() if self._blocking() else result


class ParallelFunction(RemoteFunction):
    """A function whose calls receive parts of sequences: one part on each engine, or chunks on free engines.

    `pf(seq)` calls the function with parts, `pf.map(seq)` with items. `view.parallel()` and `parallel` create them.

    Args:
        view: The view.
        function: The function to call.
        dist: How a direct view cuts sequences: 'b' for contiguous parts, 'r' for every n-th item.
        block: Whether calls wait for their value; by default, the view's flag `block` decides at each call.
        chunksize: On a load-balanced view, items per task; by default 1 for `pf(seq)`, and whatever `map` chooses for
            `pf.map(seq)`.
        ordered: On a load-balanced view, whether iterating yields values in the order of the sequences.
        return_exceptions: Whether the exceptions of calls that failed appear in the result.
        **flags: Flags of the view that apply to these calls.
    """

    def __init__(
        self,
        view: ViewSide,
        function: Callable[..., Any],
        dist: str = "b",
        block: bool | None = None,
        chunksize: int | None = None,
        ordered: bool = True,
        return_exceptions: bool = False,
        **flags: Any,
    ) -> None:
        super().__init__(view, function, block, **flags)
        self.dist = dist
        self.chunksize = chunksize
        self.ordered = ordered
        self.return_exceptions = return_exceptions

    @ends_with_ctrl_c
    def __call__(self, *sequences: Any) -> Any:
        """Calls the function with parts of the sequences, and joins the parts' values.

        Args:
            *sequences: Sequences of equal length.

        Returns:
            An `AsyncMapResult`; with `block`, its value: the values of the parts as one list, array or table.

        Raises:
            ValueError: The sequences are not equally long.
        """
        from broadleaf.client.partition import as_rows, join_parts

        cut = tuple(as_rows(sequence) for sequence in sequences)
        lengths = [len(sequence) for sequence in cut]
        if len(set(lengths)) > 1:
            raise ValueError(f"all sequences must have equal length, but have {lengths}")
        with self.view.temp_flags(**self.flags):
            result = self._submit_parts(cut)
        result._join = lambda values: join_parts(values, self.dist)
        result.ordered = self.ordered
        result._return_exceptions = self.return_exceptions
        return result.get() if self._blocking() else result

    def _submit_parts(self, sequences: tuple[Any, ...]) -> Any:
        view: Any = self.view
        if hasattr(view, "map_chunks"):
            return view.map_chunks(self.func, sequences, self.chunksize or 1, whole_parts=True)
        return view.map_parts(self.func, sequences, self.dist, whole_parts=True)

    @ends_with_ctrl_c
    def map(self, *sequences: Any) -> Any:
        """Calls the function with each item of the sequences.

        Args:
            *sequences: Sequences or other iterables, cut to the shortest.

        Returns:
            An `AsyncMapResult`; with `block`, the list of values in the order of the sequences.

        Raises:
            CompositeError: With `block`: the function raised an exception for some item.
            TypeError: There are no sequences, or the function cannot be called.
        """
        options: dict[str, Any] = {"return_exceptions": self.return_exceptions}
        if hasattr(self.view, "map_chunks"):
            options.update(chunksize=self.chunksize, ordered=self.ordered)
        with self.view.temp_flags(**self.flags):
            return self.view.map(self.func, *sequences, block=self._blocking(), **options)


def remote(view: ViewSide, block: bool | None = None, **flags: Any) -> Callable[[Callable[..., Any]], RemoteFunction]:
    """Decorator: calls of the function run on a view.

    Args:
        view: The view.
        block: Whether calls wait for their value; by default, the view's flag `block` decides at each call.
        **flags: Flags of the view that apply to these calls.

    Returns:
        A decorator that makes a function a `RemoteFunction`.

    Example:
        >>> @ipp.remote(rc[0], block=True)
        ... def cube(x):
        ...     return x**3
        >>> cube(2)
        8
    """
    return lambda function: RemoteFunction(view, function, block, **flags)


def parallel(
    view: ViewSide, dist: str = "b", block: bool | None = None, ordered: bool = True, **flags: Any
) -> Callable[[Callable[..., Any]], ParallelFunction]:
    """Decorator: a call of the function gives each engine of a view a part of the sequences.

    Args:
        view: The view.
        dist: How a direct view cuts sequences: 'b' for contiguous parts, 'r' for every n-th item.
        block: Whether calls wait for their value; by default, the view's flag `block` decides at each call.
        ordered: On a load-balanced view, whether iterating yields values in the order of the sequences.
        **flags: `chunksize` and `return_exceptions` of `ParallelFunction`, and flags of the view that apply to these
            calls.

    Returns:
        A decorator that makes a function a `ParallelFunction`.

    Example:
        >>> @ipp.parallel(rc[:], block=True)
        ... def squares(part):
        ...     return [x * x for x in part]
        >>> squares(range(5))
        [0, 1, 4, 9, 16]
    """
    return lambda function: ParallelFunction(view, function, dist, block, ordered=ordered, **flags)
