"""Broadleaf as a backend of joblib."""

# joblib's base class has no annotations, and pyright reads its empty methods as returning None.
# pyright: reportIncompatibleMethodOverride=false, reportAssignmentType=false

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from joblib.parallel import (
    AutoBatchingMixin,
    ParallelBackendBase,
    register_parallel_backend,
)

from broadleaf import Client, Cluster, ClusterConnectionError, LoadBalancedView

_default_view: LoadBalancedView | None = None


class BroadleafBackend(AutoBatchingMixin, ParallelBackendBase):  # type: ignore[misc]
    """Runs joblib's batches as tasks of a load-balanced view."""

    supports_retrieve_callback = True
    supports_return_generator = True
    supports_timeout = True
    default_n_jobs = -1

    def __init__(self, view: LoadBalancedView | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._view = view if view is not None else _view_of_a_cluster()
        self._under_way: set[Any] = set()

    def effective_n_jobs(self, n_jobs: int) -> int:
        """How many tasks are to run at a time."""
        engines = len(self._view)
        if n_jobs == 0:
            raise ValueError("n_jobs == 0 in Parallel has no meaning")
        if n_jobs is None or n_jobs == -1:
            return engines
        return max(1, engines + 1 + n_jobs) if n_jobs < 0 else min(n_jobs, engines)

    def configure(self, n_jobs: int = 1, parallel: Any = None, **_: Any) -> int:
        """Called by joblib before it submits."""
        self.parallel = parallel
        return self.effective_n_jobs(n_jobs)

    def submit(self, func: Callable[[], Any], callback: Callable[[Any], Any] | None = None) -> Any:
        """Submits one batch; `callback` is given the result when it is done."""
        result = self._view.apply_async(func)
        # joblib may keep no reference of its own before the callback.
        self._under_way.add(result)
        result.add_done_callback(self._under_way.discard)
        if callback is not None:
            result.add_done_callback(callback)
        return result

    apply_async = submit

    def retrieve_result_callback(self, out: Any) -> Any:
        """The values of a batch that is done."""
        return out.get()

    def abort_everything(self, ensure_ready: bool = True) -> None:
        """Aborts what is under way."""
        for result in list(self._under_way):
            result.cancel()


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
    """Makes Broadleaf a backend of joblib: `Parallel(backend=name)`.

    It uses `view`, or else the running default cluster, or starts one.
    """
    register_parallel_backend(name, lambda **kwargs: BroadleafBackend(view=view, **kwargs), make_default=make_default)
