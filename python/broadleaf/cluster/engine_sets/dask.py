"""Engines on the hosts of a Dask cluster: one Dask task per host, which owns a relay. Dask continues to work there."""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from broadleaf.cluster.engine_sets.base import Block, BlockRequest, EngineSet
from broadleaf.cluster.join import Order
from broadleaf.errors import ClusterStartError

# Minimum time between two requests for what Dask's scheduler knows about its workers.
_LOOK_EVERY_S = 1.0
_CONNECT_TIMEOUT_S = 5.0


@dataclass
class OnDask(EngineSet):
    """Engines on the hosts of a Dask cluster.

    `client` is a `distributed.Client`, or the address of a scheduler. A relay runs on each host, in whichever worker
    Dask chooses there; when that worker dies, Dask runs it in another worker of the host, and engines with the same ids
    come back. With `workers`, addresses or names, it runs in each of these and ends with it. A host has one engine for
    each thread of its workers, or `engines_per_host`.

    The credentials of relays travel over Dask's own connections: anyone who may submit tasks to Dask can read them.
    """

    name: ClassVar[str] = "dask"

    client: Any = ""
    """A `distributed.Client`, or the address of a scheduler."""
    workers: Sequence[str] | None = None
    """Addresses or names of the workers that a relay runs in; by default one of Dask's choice on each host."""

    def __post_init__(self) -> None:
        if isinstance(self.workers, str):
            self.workers = [worker.strip() for worker in self.workers.split(",")]
        self._connected: Any = None
        self._futures: dict[str, Any] = {}
        self._next_look_at = 0.0

    def options(self) -> dict[str, Any]:
        """Its options, with the scheduler's address instead of a client."""
        client, self.client = self.client, ""
        try:
            options = super().options()
        finally:
            self.client = client
        return options | {"client": client if isinstance(client, str) else client.scheduler.address}

    def require(self) -> None:
        """Raises `ClusterStartError` without Dask, or without a scheduler."""
        self._dask()

    def _dask(self) -> Any:
        """A Dask client. Raises `ClusterStartError`."""
        if self._connected is not None:
            return self._connected
        try:
            import distributed  # pyright: ignore[reportMissingImports]
        except ImportError:
            raise ClusterStartError('Dask is not installed here: pip install "broadleaf[dask]"') from None
        if not self.client:
            raise ClusterStartError(
                "no Dask scheduler is specified: pass a client or the scheduler's address, as in "
                "Cluster(engines=ipp.OnDask(client='tcp://HOST:8786')), or give the address with "
                "`--set client=tcp://HOST:8786` or as `client` in the [dask] table of config.toml"
            )
        if not isinstance(self.client, str):
            if self.client.asynchronous:
                raise ClusterStartError("this Dask client is asynchronous: pass a synchronous client, or an address")
            self._connected = self.client
            return self._connected
        try:
            self._connected = distributed.Client(
                self.client, timeout=_CONNECT_TIMEOUT_S, set_as_default=False, name="broadleaf"
            )
        except (OSError, TimeoutError, ValueError) as error:
            raise ClusterStartError(f"Dask's scheduler at {self.client} cannot be reached: {error}") from None
        return self._connected

    def block_engines(self, first: int) -> int | None:
        """Raises `ClusterStartError`: only Dask's own hosts can be used."""
        raise ClusterStartError(
            "engines on Dask run on the hosts that Dask had when they were started: hosts can be released, but "
            "not added. To use more hosts, scale up Dask, and then call start_engines"
        )

    def submit(self, request: BlockRequest) -> list[Block]:
        """Submits a Dask task for each host, or for each of `workers`."""
        from distributed import fire_and_forget  # pyright: ignore[reportMissingImports]

        from broadleaf.cluster.engine_sets.dask_task import run_relay

        targets = self._targets()
        shares = _shares(request.n, [self.engines_per_host or n_threads for _, n_threads in targets])
        blocks = []
        for index, ((target, _), n) in enumerate(zip(targets, shares, strict=True)):
            if not n:
                continue  # there are more hosts than engines
            block = Block(f"dask-{request.first_block + index}", n_hosts=1, n_engines=n, reason="submitted")
            key = f"broadleaf-{request.cluster_id}-{block.id}-{os.urandom(4).hex()}"
            block.facts |= {"key": key, "target": target, "cluster_id": request.cluster_id}
            order = Order(self.join_order(request, block=block.id, n=n))
            future = self._dask().submit(
                run_relay, order, key=key, workers=[target], allow_other_workers=False, pure=False
            )
            fire_and_forget(future)  # the cluster may outlive this process
            self._futures[block.id] = future
            blocks.append(block)
        return blocks

    def _targets(self) -> list[tuple[str, int]]:
        """Hosts, or workers, on which relays should run, and the number of Dask threads there."""
        known = self._workers()
        if self.workers is not None:
            names = {str(worker["id"]): address for address, worker in known.items()}
            addresses = [names.get(str(one), str(one)) for one in self.workers]
            if missing := [one for one in addresses if one not in known]:
                raise ClusterStartError(f"Dask has no worker {', '.join(missing)}; known: {', '.join(known) or 'none'}")
            return [(address, known[address]["nthreads"]) for address in addresses]
        threads: defaultdict[str, int] = defaultdict(int)
        for worker in known.values():
            threads[worker["host"]] += worker["nthreads"]
        if not threads:
            raise ClusterStartError("Dask has no workers: start some first, as cluster.scale(2) does")
        return list(threads.items())

    def _workers(self) -> dict[str, Any]:
        """What Dask's scheduler knows about its workers, by address."""
        dask = self._dask()
        workers: dict[str, Any] = dask.sync(dask.scheduler.identity)["workers"]
        return workers

    def poll(self, blocks: Sequence[Block]) -> None:
        """Checks the tasks, and once a second Dask's workers."""
        for block in blocks:
            if not block.is_over:
                self._note(block)
        if time.monotonic() < self._next_look_at:
            return
        self._next_look_at = time.monotonic() + _LOOK_EVERY_S
        workers = self._workers()
        targets = {*workers, *(worker["host"] for worker in workers.values())}
        for block in blocks:
            target = block.facts["target"]
            if block.is_over or target in targets:
                continue
            if self.workers is None:
                block.state, block.reason = "pending", f"Dask has no worker on {target} now"
            else:
                block.state, block.reason = "failed", f"the worker {target} has left Dask"
                self._future(block).cancel(force=True)

    def _note(self, block: Block) -> None:
        future = self._future(block)
        status = future.status
        if status == "finished":
            block.state, block.reason = "ended", "its relay has ended"
        elif status == "error":
            error = future.exception()
            block.state, block.reason = "failed", f"{type(error).__name__}: {error}"
        elif status in ("cancelled", "lost"):
            block.state, block.reason = "failed", f"Dask has dropped its task ({status})"

    def _future(self, block: Block) -> Any:
        future = self._futures.get(block.id)
        if future is None:
            from distributed import Future  # pyright: ignore[reportMissingImports]

            future = self._futures[block.id] = Future(block.facts["key"], client=self._dask())
        return future

    def cancel(self, blocks: Sequence[Block]) -> None:
        """Ends the relays, and their tasks."""
        from broadleaf.cluster.engine_sets.dask_task import stop_relays

        dask = self._dask()
        open_blocks = [block for block in blocks if not block.is_over]
        if not open_blocks or dask.status == "closed":
            return  # if Dask has ended, everything that ran there has ended too
        cluster_id = open_blocks[0].facts["cluster_id"]
        try:
            dask.cancel([self._future(block) for block in open_blocks], force=True)
            dask.run(stop_relays, cluster_id, [block.id for block in open_blocks], on_error="ignore")
        except (OSError, TimeoutError, RuntimeError):
            return  # it is just ending

    def log(self, block: Block) -> str:
        """Nothing: the block's reason says what failed there."""
        return ""

    def script(self, request: BlockRequest) -> str:
        """Describes the tasks that would be submitted."""
        return "\n".join(f"# a Dask task on {target}" for target, _ in self._targets())


def _shares(n: int | None, wanted: Sequence[int]) -> list[int]:
    """Number of engines on each host or worker: what it wants, or its share of `n`."""
    if n is None:
        return list(wanted)
    return [n // len(wanted) + (index < n % len(wanted)) for index in range(len(wanted))]
