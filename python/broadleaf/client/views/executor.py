"""Views as `concurrent.futures.Executor`s."""

from __future__ import annotations

import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Executor
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

from broadleaf.client.results.maps import LazyMapIterator, MapIterator
from broadleaf.serialize.callables import check_map
from broadleaf.serialize.once import Once

if TYPE_CHECKING:
    from broadleaf.client.protocols import Client, ViewSide
    from broadleaf.client.results.async_result import AsyncResult

Returned = TypeVar("Returned")


def initialize(view: ViewSide, initializer: Callable[..., object], initargs: tuple[Any, ...]) -> None:
    """Has each engine call `initializer(*initargs)` once, those that join later when they do.

    Raises what it raised on engines of `view`.
    """
    if not callable(initializer):
        raise TypeError("initializer must be a callable")
    once = Once(initializer, initargs)
    view.client.on_join(once)
    if len(view):
        # Where it raised, an engine has only logged that.
        view.client.direct_view(view.targets).apply_sync(once)


class ViewExecutor(Executor):
    """`submit` and `map` on a view. Shutting it down waits for its tasks and leaves the engines running.

    Ctrl-C in a `with` block aborts all calls made in it that are not done, and the block ends.

    Like those of `ProcessPoolExecutor`, its futures and iterators raise what the tasks raised, with the remote
    traceback as the cause; they raise `RemoteError` only for exceptions that cannot be loaded or raised here.

    Args:
        view: The view; `view.executor` and `Client.executor` make executors.
        initializer: A function that each engine calls before its first task for this executor: existing engines
            when the executor is created, and engines that join while the client is connected when they join.
        initargs: Its arguments.

    Raises:
        RemoteError: The initializer raised an exception on an engine; a `CompositeError` if it did so on several.

    Example:
        >>> with rc.load_balanced_view().executor as pool:
        ...     pool.submit(pow, 2, 8).result()
        256
    """

    def __init__(
        self, view: ViewSide, initializer: Callable[..., object] | None = None, initargs: tuple[Any, ...] = ()
    ) -> None:
        if initializer is not None:
            initialize(view, initializer, initargs)
        self.view = view
        self._max_workers = len(view)
        self._shut_down = False
        self._lock = threading.Lock()
        # Enough to hold all its tasks that are not done.
        self._history = view.client.native.History(view.client.link.max_outstanding_tasks)

    @property
    def client(self) -> Client:
        """The client of the view."""
        return self.view.client

    def __repr__(self) -> str:
        unfinished = 0 if self.client.closed else len(self._unfinished_seqs())
        state = "shut down" if self._shut_down else "open"
        calls = f", {unfinished:,} call{'' if unfinished == 1 else 's'} not done" if unfinished else ""
        return f"<ViewExecutor over {self.view!r}: {state}{calls}>"

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> AsyncResult:
        """Calls `fn(*args, **kwargs)` on the view.

        Args:
            fn: The function to call.
            *args: Its positional arguments.
            **kwargs: Its keyword arguments.

        Returns:
            A future for its value, which is an `AsyncResult`.

        Raises:
            RuntimeError: The executor has been shut down.
            SerializationError: The function or an argument cannot be pickled.
            LinkLost: The connection is closed or was lost.
        """
        with self._lock:
            if self._shut_down:
                raise RuntimeError("cannot schedule new futures after shutdown")
            self.client.link.start_call()
            try:
                result: AsyncResult = self.view.apply_async(fn, *args, **kwargs)
                self._history.record(result.seq, result.n_parts)
            except KeyboardInterrupt:
                self.client.abort_begun()
                raise
            result.raises_original = True
            return result

    @overload
    def map(
        self,
        fn: Callable[..., Coroutine[Any, Any, Returned]],
        *iterables: Any,
        timeout: float | None = None,
        chunksize: int | None = 1,
        buffersize: int | None = None,
        return_exceptions: Literal[False] = False,
        **options: Any,
    ) -> Iterator[Returned]: ...

    @overload
    def map(
        self,
        fn: Callable[..., Returned],
        *iterables: Any,
        timeout: float | None = None,
        chunksize: int | None = 1,
        buffersize: int | None = None,
        return_exceptions: Literal[False] = False,
        **options: Any,
    ) -> Iterator[Returned]: ...

    @overload
    def map(
        self,
        fn: Callable[..., Any],
        *iterables: Any,
        timeout: float | None = None,
        chunksize: int | None = 1,
        buffersize: int | None = None,
        return_exceptions: bool,
        **options: Any,
    ) -> Iterator[Any]: ...

    def map(
        self,
        fn: Callable[..., Any],
        *iterables: Any,
        timeout: float | None = None,
        chunksize: int | None = 1,
        buffersize: int | None = None,
        **options: Any,
    ) -> Iterator[Any]:
        """Calls `fn` on each item. Everything is submitted at once, unless `buffersize` is given.

        Args:
            fn: The function to call with an item of each iterable.
            *iterables: The items, cut to the shortest.
            timeout: Maximum number of seconds, from this call on, until a value arrives; None means forever.
            chunksize: On a load-balanced view, items per task; None: as `LoadBalancedView.map` chooses.
            buffersize: On a load-balanced view, the maximum number of tasks whose values were not taken: further items
                are taken from the iterables as values are taken from the iterator, so the iterables may be endless.
            **options: Options of the view's `map`, such as `return_exceptions`.

        Returns:
            An iterator over the values, in order. Its `next` raises `TimeoutError` when time is over.

        Raises:
            RuntimeError: The executor has been shut down.
            ValueError: `chunksize` or `buffersize` is less than 1.
            TypeError: `buffersize` is not an int, or the view is not a load-balanced one.
            SerializationError: The function or an item cannot be pickled.
            LinkLost: The connection is closed or was lost.
        """
        if chunksize is not None and chunksize < 1:
            raise ValueError("chunksize must be >= 1.")
        self._check_buffersize(buffersize)
        with self._lock:
            if self._shut_down:
                raise RuntimeError("cannot schedule new futures after shutdown")
        if hasattr(self.view, "map_chunks"):
            if buffersize is not None or (timeout is None and chunksize == 1):
                return self._map_lazily(fn, iterables, timeout, chunksize or 1, buffersize or 0, options)
            options["chunksize"] = chunksize
        result = self.view.map_async(fn, *iterables, **options)
        result.raises_original = True
        for first, n_tasks in result.task_ranges():
            self._history.record(first, n_tasks)
        values = MapIterator(result, timeout)
        values.is_wanted = False
        return values

    def _check_buffersize(self, buffersize: Any) -> None:
        if buffersize is None:
            return
        if not isinstance(buffersize, int):
            raise TypeError("buffersize must be an integer or None")
        if buffersize < 1:
            raise ValueError("buffersize must be None or > 0")
        if not hasattr(self.view, "map_chunks"):
            raise TypeError(
                "buffersize needs a load-balanced view: a direct view sends each engine its whole part at once"
            )

    def _map_lazily(
        self,
        fn: Callable[..., Any],
        iterables: tuple[Any, ...],
        timeout: float | None,
        chunksize: int,
        buffersize: int,
        options: dict[str, Any],
    ) -> Iterator[Any]:
        check_map(fn, iterables)
        options.setdefault("max_outstanding", buffersize)
        view: Any = self.view
        lazy: LazyMapIterator[Any] = view.lazy_map(
            fn,
            zip(*iterables, strict=False),
            chunksize=chunksize,
            history=self._history,
            timeout_s=timeout,
            **options,
        )
        lazy.raises_original = True
        # As by other executors: a map that nobody iterates over is run.
        lazy.is_wanted = False
        return lazy

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Accepts no more calls.

        Args:
            wait: Whether to wait for the calls under way.
            cancel_futures: Whether to abort those that do not run yet.
        """
        with self._lock:
            self._shut_down = True
        if cancel_futures:
            self.client.cancel_tasks(self.client.hub.not_running(self._unfinished_seqs()))
        if wait:
            self.client.wait_for_tasks(self._unfinished_seqs(), None)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if isinstance(error, KeyboardInterrupt):
            with self._lock:
                self._shut_down = True
            self.client.abort_interrupted(self._unfinished_seqs())
        self.shutdown(wait=True)

    def _unfinished_seqs(self) -> list[int]:
        """Numbers of its tasks that are not done."""
        with self.client.link_errors():
            unfinished: list[int] = self._history.select(self.client.link.outstanding_seqs())
        return unfinished
