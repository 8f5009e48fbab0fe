"""The process pools of the standard library over engines: `multiprocessing.Pool` and `ProcessPoolExecutor`."""

from __future__ import annotations

import multiprocessing
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

from broadleaf.client.results.maps import NotReady
from broadleaf.client.views.executor import ViewExecutor, initialize
from broadleaf.cluster.cluster import Cluster
from broadleaf.errors import ClusterConnectionError

if TYPE_CHECKING:
    from broadleaf.client.client import Client
    from broadleaf.client.results.async_result import AsyncResult
    from broadleaf.client.results.maps import LazyMapIterator
    from broadleaf.client.views.balanced import LoadBalancedView

Returned = TypeVar("Returned")

_RUN, _CLOSE, _TERMINATE = "running", "closed", "terminated"


class PoolResult(Generic[Returned]):
    """What the methods of `Pool` that do not wait return.

    Args:
        async_result: The `AsyncResult` of the call or map.
        callback: Called with the value.
        error_callback: Called with the exception.
        calling: Holds it until its callback has returned.
    """

    def __init__(
        self,
        async_result: AsyncResult[Returned],
        callback: Callable[[Returned], object] | None,
        error_callback: Callable[[BaseException], object] | None,
        calling: set[PoolResult[Any]],
    ) -> None:
        async_result.raises_original = True
        self.async_result: AsyncResult[Returned] = async_result
        """The `AsyncResult`, with all that is known of the tasks."""
        self._callbacks = callback, error_callback
        self._calling = calling
        # It is ready after its callback, as in `multiprocessing`.
        self._called = threading.Event()
        if callback is None and error_callback is None:
            self._called.set()
        else:
            calling.add(self)
            async_result.add_done_callback(self._call)

    def __repr__(self) -> str:
        return f"<PoolResult of {self.async_result!r}>"

    def get(self, timeout: float | None = None) -> Returned:
        """The value, or raises what the function raised.

        Args:
            timeout: Seconds to wait; None means forever.

        Returns:
            What the function returned; of a map, the list of all values.

        Raises:
            TimeoutError: That of `multiprocessing`: it is not ready after `timeout` seconds.
        """
        self.wait(timeout)
        if not self.ready():
            raise multiprocessing.TimeoutError
        return self.async_result.get()

    def wait(self, timeout: float | None = None) -> None:
        """Waits until it is ready.

        Args:
            timeout: Seconds to wait; None means forever.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        if self.async_result.wait(timeout):
            self._called.wait(None if deadline is None else max(0.0, deadline - time.monotonic()))

    def ready(self) -> bool:
        """Whether all calls are done, and the callback has returned.

        Returns:
            True if so.
        """
        return self.async_result.done() and self._called.is_set()

    def successful(self) -> bool:
        """Whether no call raised.

        Returns:
            True if so.

        Raises:
            ValueError: It is not ready.
        """
        if not self.ready():
            raise ValueError(f"{self!r} not ready")
        return self.async_result.successful()

    def _call(self, result: Any) -> None:
        callback, error_callback = self._callbacks
        try:
            if result.cancelled():
                return
            error = result.exception()
            if error is None and callback is not None:
                callback(result.result())
            elif error is not None and error_callback is not None:
                error_callback(error)
        finally:
            self._called.set()
            self._calling.discard(self)


class PoolIterator(Generic[Returned]):
    """What `Pool.imap` and `Pool.imap_unordered` return: an iterator whose `next` takes a timeout.

    Args:
        values: The lazy map.
        on_end: Called after the last value.
    """

    def __init__(self, values: LazyMapIterator[Returned], on_end: Callable[[], object]) -> None:
        self._values = values
        self._on_end = on_end

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Returned:
        return self.next()

    def next(self, timeout: float | None = None) -> Returned:
        """The next value, or raises what the function raised for that item.

        Args:
            timeout: Seconds to wait; None means forever.

        Returns:
            The value.

        Raises:
            StopIteration: There are no more values.
            TimeoutError: That of `multiprocessing`: the value has not come after `timeout` seconds. It may be asked for
                again.
        """
        try:
            return self._values.take(timeout)
        except StopIteration:
            self._on_end()
            raise
        except NotReady as error:
            raise multiprocessing.TimeoutError from error

    def __repr__(self) -> str:
        return f"<PoolIterator over {self._values!r}>"


class Pool:
    """`multiprocessing.Pool` whose processes are engines: the same names, arguments and errors.

    Without `client` it starts a cluster on this host, which ends with the pool. Functions need not be importable:
    those of a script or notebook, lambdas and closures are sent, too. If a call raises an exception, the same exception
    is raised here, with the engine's traceback as its cause. What calls print appears here as it arrives, and before
    their values. As in `multiprocessing`, the end of a `with` block terminates the pool: take the values inside.

    Args:
        processes: Number of engines; None: one for each core, or all engines of `client`.
        initializer: A function that each engine calls before its first task for this pool.
        initargs: Its arguments.
        maxtasksperchild: Only None: engines are not replaced. `client.shutdown(restart=True)` does that.
        context: Only None, or a context of `multiprocessing` that spawns processes: engines do not inherit memory, as
            forked processes would. What tasks need goes to them as arguments, or by `initializer`.
        client: The client whose engines are used; they remain when the pool ends.

    Raises:
        ValueError: `processes` is less than 1 or more than the client has engines, or an argument asks for something
            that engines do not do.
        TypeError: `initializer` cannot be called.
        RemoteError: The initializer raised an exception on an engine; a `CompositeError` if it did so on several.
        ClusterStartError: The cluster could not start.

    Example:
        >>> with ipp.Pool(client=rc) as pool:
        ...     pool.map(abs, [-1, 2, -3])
        [1, 2, 3]
    """

    def __init__(
        self,
        processes: int | None = None,
        initializer: Callable[..., object] | None = None,
        initargs: Iterable[Any] = (),
        maxtasksperchild: int | None = None,
        context: Any = None,
        *,
        client: Client | None = None,
    ) -> None:
        if processes is not None and processes < 1:
            raise ValueError("Number of processes must be at least 1")
        if initializer is not None and not callable(initializer):
            raise TypeError("initializer must be a callable")
        _check_processes("maxtasksperchild", maxtasksperchild, "context", context)
        self._state = _RUN
        self._cluster: Cluster | None = None
        if client is None:
            self._cluster = Cluster(n=processes)
            client = self._cluster.start_and_connect_sync()
            processes = None
        try:
            targets = None if processes is None else _some_engines(client, processes)
            self._view: LoadBalancedView = client.load_balanced_view(targets)
            self._view.shows_output = True
            if initializer is not None:
                initialize(self._view, initializer, tuple(initargs))
        except BaseException:
            self._stop_cluster()
            raise
        # Maps that have not ended: `join` submits what is left of them.
        self._lazy: dict[int, LazyMapIterator[Any]] = {}
        # Results whose callbacks have not returned, which `join` waits for.
        self._calling: set[PoolResult[Any]] = set()

    def __repr__(self) -> str:
        n_engines = len(self._view) if self._state == _RUN else 0
        engines = f", {n_engines:,} engine{'' if n_engines == 1 else 's'}" if n_engines else ""
        return f"<Pool: {self._state}{engines}>"

    # Single calls -------------------------------------------------------------------------------

    def apply(
        self, func: Callable[..., Returned], args: Iterable[Any] = (), kwds: Mapping[str, Any] | None = None
    ) -> Returned:
        """Calls `func(*args, **kwds)` on a free engine, and waits for the value.

        Args:
            func: The function to call.
            args: Its positional arguments.
            kwds: Its keyword arguments.

        Returns:
            The value that the function returned.

        Raises:
            ValueError: The pool is not running.
        """
        return self.apply_async(func, args, kwds).get()

    def apply_async(
        self,
        func: Callable[..., Returned],
        args: Iterable[Any] = (),
        kwds: Mapping[str, Any] | None = None,
        callback: Callable[[Returned], object] | None = None,
        error_callback: Callable[[BaseException], object] | None = None,
    ) -> PoolResult[Returned]:
        """Calls `func(*args, **kwds)` on a free engine, and does not wait.

        Args:
            func: The function to call.
            args: Its positional arguments.
            kwds: Its keyword arguments.
            callback: Called with the value, on a thread of this process.
            error_callback: Called with the exception if the function raised.

        Returns:
            The result.

        Raises:
            ValueError: The pool is not running.
        """
        self._check_running()
        result: AsyncResult[Returned] = self._view.apply_async(func, *args, **(kwds or {}))
        return self._result(result, callback, error_callback)

    # Maps ---------------------------------------------------------------------------------------

    def map(
        self, func: Callable[[Any], Returned], iterable: Iterable[Any], chunksize: int | None = None
    ) -> list[Returned]:
        """Calls `func` with each item, and waits for the values.

        Args:
            func: The function to call.
            iterable: The items.
            chunksize: Items per task; None: as `LoadBalancedView.map` chooses.

        Returns:
            The values in the order of the items.

        Raises:
            ValueError: The pool is not running.
        """
        return self.map_async(func, iterable, chunksize).get()

    def map_async(
        self,
        func: Callable[[Any], Returned],
        iterable: Iterable[Any],
        chunksize: int | None = None,
        callback: Callable[[list[Returned]], object] | None = None,
        error_callback: Callable[[BaseException], object] | None = None,
    ) -> PoolResult[list[Returned]]:
        """Like `map`, but does not wait.

        Args:
            func: The function to call.
            iterable: The items.
            chunksize: As for `map`.
            callback: Called with the list of values, on a thread of this process.
            error_callback: Called with the first exception if the function raised.

        Returns:
            The result, whose value is the list.

        Raises:
            ValueError: The pool is not running.
        """
        self._check_running()
        result = self._view.map_async(func, iterable, chunksize=chunksize)
        return self._result(result, callback, error_callback)

    def starmap(
        self, func: Callable[..., Returned], iterable: Iterable[Iterable[Any]], chunksize: int | None = None
    ) -> list[Returned]:
        """Calls `func(*item)` for each item, and waits for the values.

        Args:
            func: The function to call.
            iterable: The arguments of each call.
            chunksize: As for `map`.

        Returns:
            The values in the order of the items.

        Raises:
            ValueError: The pool is not running.
        """
        return self.starmap_async(func, iterable, chunksize).get()

    def starmap_async(
        self,
        func: Callable[..., Returned],
        iterable: Iterable[Iterable[Any]],
        chunksize: int | None = None,
        callback: Callable[[list[Returned]], object] | None = None,
        error_callback: Callable[[BaseException], object] | None = None,
    ) -> PoolResult[list[Returned]]:
        """Like `starmap`, but does not wait.

        Args:
            func: The function to call.
            iterable: The arguments of each call.
            chunksize: As for `map`.
            callback: As for `map_async`.
            error_callback: As for `map_async`.

        Returns:
            The result, whose value is the list.

        Raises:
            ValueError: The pool is not running.
        """
        self._check_running()
        result = self._view.starmap(func, iterable, chunksize=chunksize, block=False)
        return self._result(result, callback, error_callback)

    def imap(
        self, func: Callable[[Any], Returned], iterable: Iterable[Any], chunksize: int = 1
    ) -> PoolIterator[Returned]:
        """Like `map`, but returns an iterator over the values in the order of the items.

        A sequence is submitted at once. An iterator, which may be endless, is taken from as values are: 10 tasks per
        engine ahead, and the rest by `join`.

        Args:
            func: The function to call.
            iterable: The items.
            chunksize: Items per task.

        Returns:
            The iterator, whose `next` takes a timeout. It continues after an item whose call raised an exception.

        Raises:
            ValueError: The pool is not running, or `chunksize` is less than 1.
        """
        return self._imap(func, iterable, chunksize, ordered=True)

    def imap_unordered(
        self, func: Callable[[Any], Returned], iterable: Iterable[Any], chunksize: int = 1
    ) -> PoolIterator[Returned]:
        """Like `imap`, but yields values as they arrive.

        Args:
            func: The function to call.
            iterable: The items.
            chunksize: Items per task.

        Returns:
            The iterator, as for `imap`.

        Raises:
            ValueError: The pool is not running, or `chunksize` is less than 1.
        """
        return self._imap(func, iterable, chunksize, ordered=False)

    def _imap(
        self, func: Callable[[Any], Returned], iterable: Iterable[Any], chunksize: int, ordered: bool
    ) -> PoolIterator[Returned]:
        self._check_running()
        if chunksize < 1:
            raise ValueError(f"Chunksize must be 1+, not {chunksize}")
        ahead = 0 if hasattr(iterable, "__len__") else "auto"
        lazy = self._view.imap(func, iterable, ordered=ordered, max_outstanding=ahead, chunksize=chunksize)
        lazy.raises_original = True
        self._lazy[id(lazy)] = lazy
        return PoolIterator(lazy, lambda: self._lazy.pop(id(lazy), None))

    def _result(
        self,
        async_result: AsyncResult[Returned],
        callback: Callable[[Returned], object] | None,
        error_callback: Callable[[BaseException], object] | None,
    ) -> PoolResult[Returned]:
        return PoolResult(async_result, callback, error_callback, self._calling)

    # Its end ------------------------------------------------------------------------------------

    def close(self) -> None:
        """Accepts no more calls. Calls that were already made continue."""
        if self._state == _RUN:
            self._state = _CLOSE

    def terminate(self) -> None:
        """Accepts no more calls, aborts those that are not done, and stops the engines that the pool has started."""
        self._state = _TERMINATE
        lazy, self._lazy = list(self._lazy.values()), {}
        with suppress(ClusterConnectionError):
            for iterator in lazy:
                iterator.close()
            self._view.abort()
        self._stop_cluster()

    def join(self) -> None:
        """Waits until all calls are done, then stops the engines that the pool has started.

        Raises:
            ValueError: The pool is neither closed nor terminated.
        """
        if self._state == _RUN:
            raise ValueError("Pool is still running")
        if self._state == _CLOSE:
            for iterator in list(self._lazy.values()):
                iterator.submit_rest()
            self._view.wait()
        for result in list(self._calling):
            result.wait()
        self._stop_cluster()

    def __enter__(self) -> Self:
        self._check_running()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.terminate()

    def __reduce__(self) -> Any:
        raise NotImplementedError("pool objects cannot be passed between processes or pickled")

    def _check_running(self) -> None:
        if self._state != _RUN:
            raise ValueError("Pool not running")

    def _stop_cluster(self) -> None:
        cluster, self._cluster = self._cluster, None
        if cluster is not None:
            cluster.stop_cluster_sync()


def _some_engines(client: Client, processes: int) -> list[int]:
    ids = client.ids
    if processes > len(ids):
        n_engines = f"{len(ids)} engine{'' if len(ids) == 1 else 's'}"
        raise ValueError(f"a pool of {processes} processes needs as many engines, and the client has {n_engines}")
    return ids[:processes]


class ProcessPoolExecutor(ViewExecutor):
    """`concurrent.futures.ProcessPoolExecutor` whose processes are the engines of a cluster of its own.

    The cluster is on this host, and ends with the executor. For a cluster that outlives the executor, use
    `Client.executor`. Functions need not be importable. What calls print appears here as it arrives, and before their
    values. If an engine dies, only the call that it was running fails.

    Args:
        max_workers: Number of engines; None: one for each core.
        mp_context: Only None, or a context of `multiprocessing` that spawns processes: engines do not inherit memory,
            as forked processes would.
        initializer: A function that each engine calls before its first task.
        initargs: Its arguments.
        max_tasks_per_child: Only None: engines are not replaced.

    Raises:
        ValueError: `max_workers` is less than 1, or an argument asks for something that engines do not do.
        TypeError: `initializer` cannot be called.
        RemoteError: The initializer raised an exception on an engine; a `CompositeError` if it did so on several.
        ClusterStartError: The cluster could not start.

    Example:
        >>> with ipp.ProcessPoolExecutor(2) as executor:
        ...     list(executor.map(abs, [-1, 2, -3]))
        [1, 2, 3]
    """

    def __init__(
        self,
        max_workers: int | None = None,
        mp_context: Any = None,
        initializer: Callable[..., object] | None = None,
        initargs: tuple[Any, ...] = (),
        *,
        max_tasks_per_child: int | None = None,
    ) -> None:
        if max_workers is not None and max_workers < 1:
            raise ValueError("max_workers must be greater than 0")
        if initializer is not None and not callable(initializer):
            raise TypeError("initializer must be a callable")
        _check_processes("max_tasks_per_child", max_tasks_per_child, "mp_context", mp_context)
        self._cluster = Cluster(n=max_workers)
        view = self._cluster.start_and_connect_sync().load_balanced_view()
        view.shows_output = True
        try:
            super().__init__(view, initializer, initargs)
        except BaseException:
            self._cluster.stop_cluster_sync()
            raise

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Accepts no more calls, and stops the engines once those under way are done.

        Args:
            wait: Whether to wait for that.
            cancel_futures: Whether to abort the calls that do not run yet.
        """
        if self.client.closed:
            return
        super().shutdown(wait, cancel_futures=cancel_futures)
        if wait:
            self._cluster.stop_cluster_sync()
        else:
            # Not a daemon: as by other executors, calls under way are completed before the interpreter ends.
            threading.Thread(target=self.shutdown, name="broadleaf-shutdown").start()


def _check_processes(tasks_name: str, tasks: int | None, context_name: str, context: Any) -> None:
    """Raises `ValueError` for what a pool of processes does and engines do not."""
    if tasks is not None:
        raise ValueError(
            f"{tasks_name} must be None: engines are not replaced after a number of tasks; "
            "client.shutdown(restart=True) replaces them"
        )
    if context is not None and context.get_start_method() == "fork":
        raise ValueError(
            f"{context_name} must not fork: engines do not inherit this process's memory; "
            "pass what tasks need as arguments"
        )
