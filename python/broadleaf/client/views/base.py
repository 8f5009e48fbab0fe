"""What all views share: flags, apply and map in their three forms, and methods of the client for their tasks."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, TypeVar, overload

from broadleaf.client.ctrl_c import ends_with_ctrl_c
from broadleaf.client.display.reprs import PublicNames, targets_in_words, view_html
from broadleaf.client.results.async_result import AsyncResult
from broadleaf.errors import hides_frames
from broadleaf.extensions import extension

if TYPE_CHECKING:
    from broadleaf.client.control import KnownResults
    from broadleaf.client.functions import ParallelFunction, RemoteFunction
    from broadleaf.client.protocols import Client
    from broadleaf.client.results.maps import AsyncMapResult
    from broadleaf.client.views.executor import ViewExecutor

__tracebackhide__ = hides_frames

Returned = TypeVar("Returned")
"""What a function, or its coroutine, gives on an engine."""
Function = Callable[..., Returned]
AsyncFunction = Callable[..., Coroutine[Any, Any, Returned]]

# Tasks that a client or a view remembers by number.
HISTORY_TASKS = 65_536


class Flag:
    """A view's setting. Changing it makes the view forget the submitters made with the old value."""

    def __init__(self, default: Any, doc: str, check: Callable[[Any], Any] | None = None) -> None:
        self._default = default
        self._check = check
        self.__doc__ = doc

    def __set_name__(self, owner: type[View], name: str) -> None:
        self._name = name
        owner.flag_names = (*owner.flag_names, name)

    def __get__(self, view: View | None, owner: type[View]) -> Any:
        return self if view is None else view._flags.get(self._name, self._default)

    def __set__(self, view: View, value: Any) -> None:
        if self._check is not None:
            value = self._check(value)
        view._flags[self._name] = value
        view.on_flag_changed()


class View(PublicNames):
    """Common base of `DirectView` and `LoadBalancedView`. Views come from a client."""

    _internal_names = frozenset(("flag_names", "lazy_map", "map_calls", "map_chunks", "map_parts", "on_flag_changed"))

    flag_names: ClassVar[tuple[str, ...]] = ()

    targets: Flag = Flag(None, "Engines: an id, a list of ids, 'all', or None.")
    block: Flag = Flag(False, "Whether calls wait for their value.", bool)
    track: Flag = Flag(False, "Accepted for compatibility: arguments are always copied before a call returns.", bool)
    label: Flag = Flag(None, "A name for the tasks, shown in metadata and status.")

    def __init__(self, client: Client, targets: Any = None, **flags: Any) -> None:
        self.client = client
        self._flags: dict[str, Any] = {"targets": targets}
        self._submitted = client.native.History(HISTORY_TASKS)
        self.set_flags(**flags)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            # Called only for names that the class does not have, such as those of IPython Parallel's views.
            return extension("view attribute")(self, name)

    def on_flag_changed(self) -> None:
        """Called after a flag was set."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._described()}>"

    def _repr_html_(self) -> str:
        return view_html(self)

    def _described(self) -> str:
        """Its engines and its special settings, for `repr`."""
        words = self._engines_in_words(targets_in_words(self.targets, self.client))
        if self.label:
            words += f", label {self.label!r}"
        return f"{words}, closed" if self.client.closed else words

    def _engines_in_words(self, targets: str) -> str:
        return targets or f"all engines ({len(self):,} now)"

    def __len__(self) -> int:
        targets = self.targets
        if isinstance(targets, list | tuple):
            return len(targets)
        return 1 if isinstance(targets, int) else len(self.client)

    def __bool__(self) -> bool:
        return True

    def __reduce__(self) -> Any:
        raise TypeError(f"a {type(self).__name__} cannot be sent to engines")

    # Flags --------------------------------------------------------------------------------------

    def set_flags(self, **flags: Any) -> Self:
        """Sets several flags at once.

        Args:
            **flags: Flags by name, such as `block=True`.

        Returns:
            The view itself.

        Raises:
            KeyError: There is no flag with this name.
            ValueError: A flag does not accept this value.
        """
        for name, value in flags.items():
            if name not in self.flag_names:
                raise KeyError(f"Invalid name: {name!r}; flags are {', '.join(self.flag_names)}")
            setattr(self, name, value)
        return self

    @contextmanager
    def temp_flags(self, **flags: Any) -> Iterator[Self]:
        """Sets flags for the duration of a `with` block.

        Args:
            **flags: Flags by name, such as `block=True`.

        Yields:
            The view.

        Raises:
            KeyError: There is no flag with this name.
            ValueError: A flag does not accept this value.

        Example:
            >>> view = rc.load_balanced_view()
            >>> with view.temp_flags(retries=3):
            ...     result = view.apply_async(pow, 2, 2)
            >>> view.retries
            0
        """
        saved = dict(self._flags)
        self.set_flags(**flags)
        try:
            yield self
        finally:
            self._flags = saved
            self.on_flag_changed()

    # Calls --------------------------------------------------------------------------------------

    def apply_async(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> AsyncResult:
        """Calls `function(*args, **kwargs)` on the engines, and does not wait.

        Args:
            function: The function to call. It is sent to engines that do not have it.
            *args: Its positional arguments.
            **kwargs: Its keyword arguments.

        Returns:
            The result of the call.
        """
        raise NotImplementedError

    def apply_sync(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Calls `function(*args, **kwargs)` on the engines, and waits for the value.

        Args:
            function: The function to call. It is sent to engines that do not have it.
            *args: Its positional arguments.
            **kwargs: Its keyword arguments.

        Returns:
            What `get()` of the result of `apply_async` returns.
        """
        return self.apply_async(function, *args, **kwargs).get()

    def apply(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """`apply_sync` or `apply_async`, depending on the flag `block`.

        Args:
            function: The function to call. It is sent to engines that do not have it.
            *args: Its positional arguments.
            **kwargs: Its keyword arguments.

        Returns:
            The value if the view's flag `block` is set, else an `AsyncResult`.

        Raises:
            RemoteError: With `block`: the task did not return. With several tasks, a `CompositeError`.
            TypeError: The function cannot be called.
            SerializationError: The function or an argument cannot be pickled.
            LinkLost: The connection is closed or was lost.
        """
        call = self.apply_sync if self.block else self.apply_async
        return call(function, *args, **kwargs)

    def map(self, function: Callable[..., Any], /, *sequences: Any, **options: Any) -> Any:
        """Calls `function` on each item, or on items of several sequences taken together.

        Args:
            function: The function to call with an item of each sequence.
            *sequences: Sequences or other iterables, cut to the shortest.
            **options: Options that this kind of view accepts.

        Returns:
            An `AsyncMapResult`, or the list of values if it waits.
        """
        raise NotImplementedError

    @overload
    def map_async(
        self,
        function: AsyncFunction[Returned],
        /,
        *sequences: Any,
        return_exceptions: Literal[False] = False,
        **options: Any,
    ) -> AsyncMapResult[Returned]: ...

    @overload
    def map_async(
        self,
        function: Function[Returned],
        /,
        *sequences: Any,
        return_exceptions: Literal[False] = False,
        **options: Any,
    ) -> AsyncMapResult[Returned]: ...

    @overload
    def map_async(
        self,
        function: Function[Any],
        /,
        *sequences: Any,
        return_exceptions: bool,
        **options: Any,
    ) -> AsyncMapResult[Any]: ...

    @ends_with_ctrl_c
    def map_async(self, function: Callable[..., Any], /, *sequences: Any, **options: Any) -> AsyncMapResult[Any]:
        """Like `map`, but does not wait, regardless of the flag `block`.

        Args:
            function: The function to call with an item of each sequence.
            *sequences: Sequences or other iterables, cut to the shortest.
            **options: Options of the view's `map`, without `block`.

        Returns:
            The result, which can be iterated over as values arrive.

        Raises:
            TypeError: There are no sequences, the function cannot be called, or `block` is among the options.
            SerializationError: The function or an item cannot be pickled.
            LinkLost: The connection is closed or was lost.

        Example:
            >>> result = rc.load_balanced_view().map_async(lambda x: x + 1, range(3))
            >>> list(result)
            [1, 2, 3]
        """
        if "block" in options:
            raise TypeError("map_async doesn't take a `block` keyword argument.")
        result: AsyncMapResult[Any] = self.map(function, *sequences, block=False, **options)
        return result

    @overload
    def map_sync(
        self,
        function: AsyncFunction[Returned],
        /,
        *sequences: Any,
        return_exceptions: Literal[False] = False,
        **options: Any,
    ) -> list[Returned]: ...

    @overload
    def map_sync(
        self,
        function: Function[Returned],
        /,
        *sequences: Any,
        return_exceptions: Literal[False] = False,
        **options: Any,
    ) -> list[Returned]: ...

    @overload
    def map_sync(
        self,
        function: Function[Any],
        /,
        *sequences: Any,
        return_exceptions: bool,
        **options: Any,
    ) -> list[Any]: ...

    @ends_with_ctrl_c
    def map_sync(self, function: Callable[..., Any], /, *sequences: Any, **options: Any) -> list[Any]:
        """Like `map`, but waits for all values, regardless of the flag `block`.

        Args:
            function: The function to call with an item of each sequence.
            *sequences: Sequences or other iterables, cut to the shortest.
            **options: Options of the view's `map`, without `block`.

        Returns:
            The values in the order of the sequences.

        Raises:
            CompositeError: The function raised. `exceptions` has an error for each task that failed.
            TypeError: There are no sequences, the function cannot be called, or `block` is among the options.
            SerializationError: The function or an item cannot be pickled.
            LinkLost: The connection is closed or was lost.

        Example:
            >>> rc[:].map_sync(pow, [1, 2, 3], [2, 2, 2])
            [1, 4, 9]
        """
        if "block" in options:
            raise TypeError("map_sync doesn't take a `block` keyword argument.")
        values: list[Any] = self.map(function, *sequences, block=True, **options)
        return values

    def imap(self, function: Callable[..., Any], /, *sequences: Any, **options: Any) -> Iterator[Any]:
        """Like `map`, but returns an iterator over the values.

        Args:
            function: The function to call with an item of each sequence.
            *sequences: Sequences or other iterables, cut to the shortest.
            **options: Options that this kind of view accepts.

        Returns:
            An iterator for `for` and `async for`.
        """
        raise NotImplementedError

    def remote(self, block: bool | None = None, **flags: Any) -> Callable[[Callable[..., Any]], RemoteFunction]:
        """Decorator: calls of the function run on this view.

        Args:
            block: Whether calls wait for their value; by default, the view's current flag `block` decides.
            **flags: Flags of the view that apply to these calls.

        Returns:
            A decorator that makes a function a `RemoteFunction`.

        Example:
            >>> @rc[0].remote(block=True)
            ... def cube(x):
            ...     return x**3
            >>> cube(3)
            27
        """
        from broadleaf.client.functions import remote

        return remote(self, block=self.block if block is None else block, **flags)

    def parallel(
        self, dist: str = "b", block: bool | None = None, **flags: Any
    ) -> Callable[[Callable[..., Any]], ParallelFunction]:
        """Decorator: a call of the function gives each engine of this view a part of the sequences.

        Args:
            dist: How a direct view cuts sequences: 'b' for contiguous parts, 'r' for every n-th item.
            block: Whether calls wait for their value; by default, the view's current flag `block` decides.
            **flags: Arguments of `ParallelFunction` (`chunksize`, `ordered`, `return_exceptions`), and flags of the
                view that apply to these calls.

        Returns:
            A decorator that makes a function a `ParallelFunction`.

        Example:
            >>> @rc[:].parallel(block=True)
            ... def doubled(part):
            ...     return [2 * x for x in part]
            >>> doubled(range(6))
            [0, 2, 4, 6, 8, 10]
        """
        from broadleaf.client.functions import parallel

        return parallel(self, dist=dist, block=self.block if block is None else block, **flags)

    @property
    def executor(self) -> ViewExecutor:
        """A `concurrent.futures.Executor` over this view."""
        from broadleaf.client.views.executor import ViewExecutor

        return ViewExecutor(self)

    # This view's tasks --------------------------------------------------------------------------

    @property
    def history(self) -> list[str]:
        """Ids of the last 65,536 tasks submitted by this view, oldest first."""
        return [self.client.tasks.msg_id(seq) for seq in self._submitted.seqs()]

    def _outstanding_seqs(self) -> list[int]:
        selected: list[int] = self._submitted.select(self.client.link.outstanding_seqs())
        return selected

    @property
    def outstanding(self) -> set[str]:
        """Ids of the tasks of this view that are not done."""
        return {self.client.tasks.msg_id(seq) for seq in self._outstanding_seqs()}

    @property
    def results(self) -> KnownResults:
        """The client's `results`."""
        return self.client.results

    def wait(self, jobs: Any = None, timeout: float | None = -1) -> bool:
        """Waits for tasks of this view. Ctrl-C aborts the tasks it is waiting for.

        Args:
            jobs: A result, a task's id, an index of this view's `history`, or a list of these. By default, all of its
                tasks.
            timeout: Seconds to wait; None or a negative number means forever.

        Returns:
            Whether they are all done, however they ended.

        Raises:
            KeyError: The id does not belong to a task of this client.
            IndexError: The history is not that long.
            LinkLost: The connection is closed or was lost.
        """
        if jobs is None:
            return self.client.wait_for_tasks(self._outstanding_seqs(), timeout)
        return self.client.wait(self._resolve_indices(jobs), timeout)

    def abort(self, jobs: Any = None, targets: Any = None, block: bool | None = None) -> None:
        """Aborts queued and running tasks of this view. Tasks that are done are left alone.

        Args:
            jobs: A result, a task's id, an index of this view's `history`, or a list of these. By default, all of its
                tasks.
            targets: Without `jobs`: only what direct views have sent to these engines.
            block: Accepted for compatibility, without effect: use `wait` to wait until they have ended.

        Raises:
            KeyError: The id does not belong to a task of this client.
            LinkLost: The connection is closed or was lost.
        """
        if jobs is not None:
            self.client.abort(self._resolve_indices(jobs))
            return
        seqs = self._outstanding_seqs()
        if targets is not None and targets != "all":
            own = set(seqs)
            seqs = [seq for seq in self.client.seqs_addressed_to(targets) if seq in own]
        self.client.cancel_tasks(seqs)

    def get_result(self, indices_or_msg_ids: Any = None, block: bool | None = None, owner: bool = False) -> AsyncResult:
        """The result of tasks, which are specified by their ids or by indices of this view's history.

        Args:
            indices_or_msg_ids: A task's id, an index of this view's `history`, or a list of these; by default the last
                task.
            block: Whether to wait until it is done.
            owner: Accepted for compatibility, without effect.

        Returns:
            The result; see `Client.get_result`.

        Raises:
            KeyError: The result of a task is gone, or there never was such a task.
            IndexError: The history is not that long.
        """
        jobs = -1 if indices_or_msg_ids is None else indices_or_msg_ids
        return self.client.get_result(self._resolve_indices(jobs), block=block, owner=owner)

    def _resolve_indices(self, jobs: Any) -> Any:
        if isinstance(jobs, int):
            return self.client.tasks.msg_id(self._submitted.seqs()[jobs])
        if isinstance(jobs, list | tuple | set):
            return [self._resolve_indices(job) for job in jobs]
        return jobs

    def queue_status(self, targets: Any = None, verbose: bool = False) -> dict[Any, Any]:
        """`Client.queue_status` of this view's engines.

        Args:
            targets: Engines to use instead of the view's own: an id, a list of ids, a slice, or 'all'.
            verbose: Whether to list the tasks' ids instead of their numbers.

        Returns:
            Numbers of tasks by engine, as `Client.queue_status` gives them.

        Raises:
            EngineError: The only requested engine has just left.
            IndexError: One of the engines does not exist.
        """
        return self.client.queue_status(self.targets if targets is None else targets, verbose)

    def purge_results(self, jobs: Any = (), targets: Any = ()) -> None:
        """`Client.purge_results`: forgets results, here and at the controller.

        Args:
            jobs: A result, a task's id, an index of the client's history, or a list of these; 'all' for everything.
            targets: Engines whose results are all forgotten; 'all' for everything.

        Raises:
            RuntimeError: Some of the tasks are not done; nothing is forgotten.
        """
        self.client.purge_results(jobs, targets)

    def shutdown(
        self, targets: Any = None, restart: bool = False, hub: bool = False, block: bool | None = None
    ) -> None:
        """Stops this view's engines; see `Client.shutdown`.

        Args:
            targets: Engines to use instead of the view's own: an id, a list of ids, or a slice.
            restart: Whether to restart the engines with the same ids.
            hub: Whether to stop the whole cluster.
            block: Accepted for compatibility, without effect.
        """
        if targets is None or targets == "all":
            targets = self.targets
        self.client.shutdown(targets, restart=restart, hub=hub, block=block)
