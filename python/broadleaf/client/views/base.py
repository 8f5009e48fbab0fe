"""What all views share: flags, apply and map in their three forms, and methods of the client for their tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar, Self

from broadleaf.client.display.descriptions import targets_in_words
from broadleaf.client.results.async_result import AsyncResult
from broadleaf.errors import hides_frames
from broadleaf.text.public_names import PublicNames

if TYPE_CHECKING:
    from broadleaf.client.client import Client
    from broadleaf.client.connection.known_results import KnownResults
    from broadleaf.client.results.map_results import AsyncMapResult
    from broadleaf.client.tasks.remote_functions import ParallelFunction, RemoteFunction
    from broadleaf.interop.concurrent import ViewExecutor

__tracebackhide__ = hides_frames

# Number of tasks that a client or a view remembers.
HISTORY_TASKS = 65_536


class Flag:
    """A setting of a view. Setting it makes the view forget the submitters made with the old one."""

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

    _internal_names = frozenset(("flag_names", "map_chunks", "map_parts", "on_flag_changed"))

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
            from broadleaf.compat.client_attributes import view_attribute

            return view_attribute(self, name)

    def on_flag_changed(self) -> None:
        """Called after a flag was set."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._described()}>"

    def _repr_html_(self) -> str:
        from broadleaf.client.display.html_reprs import view_html

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
        """Sets several flags at once. Raises `KeyError` for a name that is none."""
        for name, value in flags.items():
            if name not in self.flag_names:
                raise KeyError(f"Invalid name: {name!r}; flags are {', '.join(self.flag_names)}")
            setattr(self, name, value)
        return self

    @contextmanager
    def temp_flags(self, **flags: Any) -> Iterator[Self]:
        """Sets flags for the length of a block."""
        saved = dict(self._flags)
        self.set_flags(**flags)
        try:
            yield self
        finally:
            self._flags = saved
            self.on_flag_changed()

    # Calls --------------------------------------------------------------------------------------

    def apply_async(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> AsyncResult:
        """Calls `function(*args, **kwargs)` on the engines and returns an `AsyncResult`."""
        raise NotImplementedError

    def apply_sync(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Calls `function(*args, **kwargs)` on the engines and waits for the value."""
        return self.apply_async(function, *args, **kwargs).get()

    def apply(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """`apply_sync` or `apply_async`, as the flag `block` says."""
        call = self.apply_sync if self.block else self.apply_async
        return call(function, *args, **kwargs)

    def map(self, function: Callable[..., Any], /, *sequences: Any, **options: Any) -> Any:
        """Calls `function` on each item, or on items of several sequences taken together."""
        raise NotImplementedError

    def map_async(self, function: Callable[..., Any], /, *sequences: Any, **options: Any) -> AsyncMapResult:
        """`map` that returns an `AsyncMapResult`."""
        if "block" in options:
            raise TypeError("map_async doesn't take a `block` keyword argument.")
        result: AsyncMapResult = self.map(function, *sequences, block=False, **options)
        return result

    def map_sync(self, function: Callable[..., Any], /, *sequences: Any, **options: Any) -> list[Any]:
        """`map` that waits and returns a list."""
        if "block" in options:
            raise TypeError("map_sync doesn't take a `block` keyword argument.")
        values: list[Any] = self.map(function, *sequences, block=True, **options)
        return values

    def imap(self, function: Callable[..., Any], /, *sequences: Any, **options: Any) -> Iterator[Any]:
        """`map` that returns an iterator over the values as they arrive."""
        from broadleaf.client.results.map_results import MapIterator

        return MapIterator(self.map_async(function, *sequences, **options))

    def remote(self, block: bool | None = None, **flags: Any) -> Callable[[Callable[..., Any]], RemoteFunction]:
        """Decorator: calls of the function run on this view."""
        from broadleaf.client.tasks.remote_functions import remote

        return remote(self, block=self.block if block is None else block, **flags)

    def parallel(
        self, dist: str = "b", block: bool | None = None, **flags: Any
    ) -> Callable[[Callable[..., Any]], ParallelFunction]:
        """Decorator: calls of the function get parts of their sequences on the engines of this view."""
        from broadleaf.client.tasks.remote_functions import parallel

        return parallel(self, dist=dist, block=self.block if block is None else block, **flags)

    @property
    def executor(self) -> ViewExecutor:
        """A `concurrent.futures.Executor` over this view."""
        from broadleaf.interop.concurrent import ViewExecutor

        return ViewExecutor(self)  # type: ignore[arg-type]

    # This view's tasks --------------------------------------------------------------------------

    @property
    def history(self) -> list[str]:
        """Ids of the last `HISTORY_TASKS` tasks submitted, oldest first."""
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
        """Waits for `jobs` (results, ids, indices of the history), or all of this view's tasks; False if in vain."""
        if jobs is None:
            return self.client.wait_for_tasks(self._outstanding_seqs(), timeout)
        return self.client.wait(self._resolve_indices(jobs), timeout)

    def abort(self, jobs: Any = None, targets: Any = None, block: bool | None = None) -> None:
        """Aborts `jobs`, or all of this view's tasks, queued or running. See `Client.abort`."""
        if jobs is not None:
            self.client.abort(self._resolve_indices(jobs))
            return
        seqs = self._outstanding_seqs()
        if targets is not None and targets != "all":
            own = set(seqs)
            seqs = [seq for seq in self.client.seqs_addressed_to(targets) if seq in own]
        self.client.cancel_tasks(seqs)

    def get_result(self, indices_or_msg_ids: Any = None, block: bool | None = None, owner: bool = False) -> AsyncResult:
        """The result of tasks given by id or by index in this view's history, by default the last."""
        jobs = -1 if indices_or_msg_ids is None else indices_or_msg_ids
        return self.client.get_result(self._resolve_indices(jobs), block=block, owner=owner)

    def _resolve_indices(self, jobs: Any) -> Any:
        if isinstance(jobs, int):
            return self.client.tasks.msg_id(self._submitted.seqs()[jobs])
        if isinstance(jobs, list | tuple | set):
            return [self._resolve_indices(job) for job in jobs]
        return jobs

    def queue_status(self, targets: Any = None, verbose: bool = False) -> dict[Any, Any]:
        """See `Client.queue_status`, for this view's engines."""
        return self.client.queue_status(self.targets if targets is None else targets, verbose)

    def purge_results(self, jobs: Any = (), targets: Any = ()) -> None:
        """See `Client.purge_results`."""
        self.client.purge_results(jobs, targets)

    def shutdown(
        self, targets: Any = None, restart: bool = False, hub: bool = False, block: bool | None = None
    ) -> None:
        """Stops this view's engines. See `Client.shutdown`."""
        if targets is None or targets == "all":
            targets = self.targets
        self.client.shutdown(targets, restart=restart, hub=hub, block=block)
