"""Broadleaf as a backend of joblib."""

# joblib's base class has no annotations, and pyright reads its empty methods as returning None.
# pyright: reportIncompatibleMethodOverride=false, reportAssignmentType=false

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from joblib.parallel import (
    AutoBatchingMixin,
    FallbackToBackend,
    ParallelBackendBase,
    SequentialBackend,
    ThreadingBackend,
    register_parallel_backend,
)

from broadleaf.client.client import Client
from broadleaf.client.views.balanced import LoadBalancedView
from broadleaf.cluster.cluster import Cluster
from broadleaf.errors import ClusterConnectionError
from broadleaf.interop.backends import NAMES, offer_backends

_default_view: LoadBalancedView | None = None


if TYPE_CHECKING:

    class _JoblibBackend:
        """The parts of joblib's base classes that are used here, which have no types."""

        nesting_level: int | None
        parallel: Any

        def __init__(self, **options: Any) -> None: ...
        def reset_batch_stats(self) -> None: ...

else:

    class _JoblibBackend(AutoBatchingMixin, ParallelBackendBase):
        pass


class BroadleafBackend(_JoblibBackend):
    """Runs joblib's batches as tasks of a load-balanced view.

    An array of at least 1 MiB that several calls of one `Parallel` share is sent once, as long as nobody changes it;
    every call gets its own array to write to. What a batch's calls write is shown when the batch is done.
    """

    # A task costs microseconds here, so batches need not be as long as joblib makes them for processes. Their contents
    # have a price, though: scikit-learn's calls take half a millisecond to pickle, and a batch does that once.
    MIN_IDEAL_BATCH_DURATION = 0.02
    MAX_IDEAL_BATCH_DURATION = 0.2

    supports_retrieve_callback: bool = True
    supports_return_generator = True
    supports_timeout = True
    default_n_jobs = -1

    def __init__(self, view: LoadBalancedView | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._given_view = view
        self._whole_view: LoadBalancedView | None = None
        self._limited_view: LoadBalancedView | None = None
        self._under_way: set[Any] = set()
        self._is_aborted = False
        if self._view.client.link.frees_engine():
            # joblib polls for what a callback provides; a task waits for it, so that its engine runs tasks in the
            # meantime.
            self.supports_retrieve_callback = False

    @property
    def _view(self) -> LoadBalancedView:
        """Where tasks run. Looked up when first needed: a task may hold a backend and never use it."""
        if self._limited_view is not None:
            return self._limited_view
        if self._whole_view is None:
            self._whole_view = self._given_view if self._given_view is not None else _view_of_a_cluster()
        return self._whole_view

    def effective_n_jobs(self, n_jobs: int) -> int:
        """How many tasks should run at a time."""
        if n_jobs == 0:
            raise ValueError("n_jobs == 0 in Parallel has no meaning")
        if _is_engine():
            return int(ThreadingBackend(nesting_level=1).effective_n_jobs(n_jobs))
        self._limited_view = None
        engines = len(self._view)
        if n_jobs is None or n_jobs == -1:
            return engines
        return max(1, engines + 1 + n_jobs) if n_jobs < 0 else min(n_jobs, engines)

    def configure(self, n_jobs: int = 1, parallel: Any = None, **_: Any) -> int:
        """Called by joblib before it submits."""
        self.parallel = parallel
        if _is_engine():
            # Waiting for other engines here could wait for this one.
            nesting_level = self.nesting_level or 0
            kind = ThreadingBackend if nesting_level <= 1 else SequentialBackend
            raise FallbackToBackend(kind(nesting_level=nesting_level))
        n_jobs = self.effective_n_jobs(n_jobs)
        if 1 < n_jobs < len(self._view):
            self._limited_view = _part_of(self._view, n_jobs)
        return n_jobs

    def start_call(self) -> None:
        """Called by joblib before the first batch: data that batches share is kept until `stop_call`."""
        self._is_aborted = False
        self._view.client.link.keep_sent_again(True)

    def stop_call(self) -> None:
        """Called by joblib after the last batch."""
        self._view.client.link.keep_sent_again(False)

    def terminate(self) -> None:
        """Called by joblib when it no longer needs the backend."""
        self.reset_batch_stats()

    def submit(self, func: Callable[[], Any], callback: Callable[[Any], Any] | None = None) -> Any:
        """Submits one batch; `callback` receives the result when it is done."""
        # Passed as an argument: each batch holds new content, and is not a function that others will call again.
        client = self._view.client
        client.link.start_call()
        try:
            result = self._view.apply_async(run_batch, func)
            # joblib may keep no reference of its own before the callback.
            self._under_way.add(result)
        except KeyboardInterrupt:
            client.abort_begun()
            raise
        result.raises_original = True
        if self._is_aborted:
            # Another thread has aborted everything in the meantime.
            client.abort([result])
        result.add_done_callback(self._under_way.discard)
        # Nobody else can: joblib keeps the values alone.
        result.add_done_callback(_show_output)
        if callback is not None:
            result.add_done_callback(callback)
        return result

    apply_async = submit

    def retrieve_result_callback(self, out: Any) -> Any:
        """The values of a batch that is done."""
        return out.get()

    def abort_everything(self, ensure_ready: bool = True) -> None:
        """Aborts unfinished tasks, and those that are submitted before the next call."""
        self._is_aborted = True
        self._view.client.abort(list(self._under_way))


def run_batch(batch: Callable[[], Any]) -> Any:
    """Runs a batch of joblib's calls on an engine."""
    return batch()


def _show_output(result: Any) -> None:
    """Shows what the calls of a batch have written, as the workers of joblib's own backends do on the terminal."""
    if result.written_parts():
        for stream, text in ((sys.stdout, result.stdout), (sys.stderr, result.stderr)):
            stream.write(text)
            stream.flush()


def _is_engine() -> bool:
    """Whether this process runs tasks."""
    return "BROADLEAF_ENGINE_ID" in os.environ


def _part_of(view: LoadBalancedView, n_engines: int) -> LoadBalancedView:
    """A view of some of a view's engines, with its other flags."""
    targets = view.targets
    ids = view.client.ids if targets is None or targets == "all" else list(targets)
    part = view.client.load_balanced_view(ids[:n_engines])
    part.set_flags(**{name: getattr(view, name) for name in view.flag_names if name != "targets"})
    return part


def _view_of_a_cluster() -> LoadBalancedView:
    """A view of the running default cluster, or of one started for this process."""
    global _default_view
    if _default_view is None or _default_view.client.link.closed:
        try:
            client = Client()
        except ClusterConnectionError:
            client = Cluster().start_and_connect_sync()
        _default_view = client.load_balanced_view()
    return _default_view


def register_joblib_backend(
    name: str = "broadleaf", make_default: bool = False, view: LoadBalancedView | None = None
) -> None:
    """Registers Broadleaf as a joblib backend: `Parallel(backend=name)`.

    Under the default name it is registered as 'broadleaf' and as 'ipyparallel'.

    Args:
        name: The backend's name.
        make_default: Whether joblib uses it when no backend is named.
        view: Where batches run. By default the running default cluster, or one that is started when first needed.

    Raises:
        ImportError: joblib is not installed.

    Example:
        >>> from joblib import Parallel, delayed
        >>> ipp.register_joblib_backend(view=rc.load_balanced_view())
        >>> Parallel(backend="broadleaf", n_jobs=4)(delayed(abs)(n) for n in (-1, -2))
        [1, 2]
    """

    def backend(**kwargs: Any) -> BroadleafBackend:
        return BroadleafBackend(**{"view": view, **kwargs})

    register_parallel_backend(name, backend, make_default=make_default)
    if name == NAMES[0]:
        for other in NAMES[1:]:
            register_parallel_backend(other, backend)


# Tasks that name the backend in a `Parallel` of their own find it.
offer_backends()
