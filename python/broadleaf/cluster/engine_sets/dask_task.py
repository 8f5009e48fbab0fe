"""What `OnDask` runs in Dask's workers."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from distributed import WorkerPlugin, get_worker, secede  # pyright: ignore[reportMissingImports]

from broadleaf.cluster.join import HostedRelay
from broadleaf.errors import BroadleafError

_relays: dict[tuple[str, str], HostedRelay] = {}
"""Those of this worker, by cluster and block."""


class RelayFailed(BroadleafError):
    """A relay ended before its cluster did."""


def run_relay(order: Mapping[str, Any]) -> str:
    """A Dask task: owns a relay until the relay ends. Dask's own tasks may use its thread."""
    worker = get_worker()
    secede()
    relay = HostedRelay(order)
    with _known(relay, order), _ending_with(worker, relay):
        code = relay.wait()
    if code:
        raise RelayFailed(f"the relay in {worker.address} exited with code {code}")
    return "ended"


async def stop_relays(cluster_id: str, blocks: Sequence[str]) -> None:
    """Ends this worker's relays for these blocks, and returns when they are gone."""
    mine = [(cluster_id, block) for block in blocks if (cluster_id, block) in _relays]
    for of in mine:
        _relays[of].stop()
    while any(of in _relays for of in mine):
        await asyncio.sleep(0.02)


@contextlib.contextmanager
def _known(relay: HostedRelay, order: Mapping[str, Any]) -> Iterator[None]:
    of = order["connection"]["cluster_id"], order["block"]
    _relays[of] = relay
    try:
        yield
    finally:
        del _relays[of]


@contextlib.contextmanager
def _ending_with(worker: Any, relay: HostedRelay) -> Iterator[None]:
    """When Dask closes the worker, its relay ends first."""
    loop, name = worker.loop.asyncio_loop, f"broadleaf-{os.urandom(4).hex()}"
    adding = asyncio.run_coroutine_threadsafe(worker.plugin_add(_EndOfWorker(relay), name=name), loop)
    try:
        adding.result()
        yield
    finally:
        relay.stop()
        asyncio.run_coroutine_threadsafe(worker.plugin_remove(name), loop)


class _EndOfWorker(WorkerPlugin):  # type: ignore[misc]  # a library without types
    def __init__(self, relay: HostedRelay) -> None:
        self._relay = relay

    def teardown(self, worker: Any) -> None:
        """Called by Dask."""
        self._relay.stop()
