"""Engines as workers of Dask.

The scheduler runs in the client's process, the workers on threads of the engines, alongside Broadleaf's tasks. Both end
with `stop_dask`, and with their processes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    from broadleaf.client.client import Client

_START_TIMEOUT_S = 30.0
# Dask runs code from anyone who can connect: its sockets, and those of its pages, are reachable only from this host.
_HOST = "127.0.0.1"
_PAGES_ADDRESS = f"{_HOST}:0"
# The name of an engine's worker, as in IPython Parallel.
_NAMES = ("dask_worker", "distributed_worker")
_schedulers: WeakKeyDictionary[Client, Any] = WeakKeyDictionary()


def become_dask(
    client: Client,
    targets: Any = "all",
    port: int = 0,
    nanny: bool = False,
    scheduler_args: dict[str, Any] | None = None,
    **worker_args: Any,
) -> Any:
    """Makes engines workers of Dask, and returns a `distributed.Client` once all are there.

    `port` is the scheduler's, 0 for a free one. Scheduler and workers listen on loopback. With `nanny`, each worker is
    a separate process, started by its engine. `worker_args` are those of `distributed.Worker`; `nthreads` is 1 by
    default. The worker is `dask_worker` in an engine's namespace. Raises `ImportError` without Dask (``pip install
    "broadleaf[dask]"``).
    """
    import distributed  # pyright: ignore[reportMissingImports]

    scheduler = _schedulers.get(client)
    if scheduler is None:
        arguments = {"dashboard_address": _PAGES_ADDRESS, **(scheduler_args or {})}
        scheduler = distributed.LocalCluster(
            n_workers=0, processes=False, protocol="tcp", host=_HOST, scheduler_port=port, scheduler_kwargs=arguments
        )  # fmt: skip
        _schedulers[client] = scheduler
    view = client.direct_view(targets)
    address = scheduler.scheduler_address
    options = {"nthreads": 1, "host": _HOST, "dashboard_address": _PAGES_ADDRESS, **worker_args}
    n_workers = sum(view.apply_sync(_start_worker, address, nanny, options))
    dask_client = distributed.Client(address)
    dask_client.wait_for_workers(n_workers, timeout=_START_TIMEOUT_S)
    return dask_client


def stop_dask(client: Client, targets: Any = "all") -> None:
    """Stops the workers on these engines and, if these are all engines, the scheduler too."""
    client.direct_view(targets).apply_sync(_stop_worker)
    if targets == "all" and (scheduler := _schedulers.pop(client, None)) is not None:
        scheduler.close()


def _namespace() -> dict[str, Any]:
    import __main__

    namespace: dict[str, Any] = __main__.__dict__
    return namespace


def _start_worker(address: str, nanny: bool, options: dict[str, Any]) -> int:
    """Starts this engine's worker on a thread of its own; returns when it has registered. 1, for the sum."""
    import asyncio
    import threading

    from distributed import Nanny, Worker  # pyright: ignore[reportMissingImports]

    namespace = _namespace()
    if _NAMES[0] in namespace:
        return 1
    started = threading.Event()
    failures: list[BaseException] = []

    async def run() -> None:
        try:
            worker = await (Nanny if nanny else Worker)(address, **options)
        except BaseException as error:
            failures.append(error)
            started.set()
            raise
        loop = asyncio.get_running_loop()
        namespace["_stop_dask_worker"] = _stopper(worker, loop)
        namespace.update(dict.fromkeys(_NAMES, worker))
        started.set()
        await worker.finished()

    threading.Thread(target=lambda: asyncio.run(run()), name="dask-worker", daemon=True).start()
    if not started.wait(_START_TIMEOUT_S):
        raise TimeoutError(f"the Dask worker did not reach its scheduler at {address} within {_START_TIMEOUT_S:g} s")
    if failures:
        raise failures[0]
    return 1


def _stopper(worker: Any, loop: Any) -> Callable[[], None]:
    def stop() -> None:
        import asyncio

        asyncio.run_coroutine_threadsafe(worker.close(), loop).result(_START_TIMEOUT_S)

    return stop


def _stop_worker() -> None:
    """Ends this engine's worker, if it has one."""
    namespace = _namespace()
    stop = namespace.pop("_stop_dask_worker", None)
    for name in _NAMES:
        namespace.pop(name, None)
    if stop is not None:
        stop()
