"""Engines on the hosts of a Ray cluster: one Ray actor per host, which owns a relay. Ray continues to work there."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from broadleaf.cluster import addresses
from broadleaf.cluster.engine_sets.base import Block, BlockRequest, EngineSet
from broadleaf.cluster.join import Order
from broadleaf.errors import ClusterStartError

# Ray itself goes on trying for minutes.
_CONNECT_TIMEOUT_S = 5.0
# Minimum time between two requests for what Ray knows about a placement group.
_LOOK_EVERY_S = 1.0


@dataclass
class OnRay(EngineSet):
    """Engines on hosts of a Ray cluster.

    On each of `hosts` nodes an actor takes `cpus` CPUs and `gpus` GPUs from Ray; there is one engine per CPU, or
    `engines_per_host`, and they see those GPUs. When a node is lost, Ray starts the actor on another, and engines with
    the same ids come back. The Ray cluster is the one that this process uses, or else the one at `address`.

    The credentials of relays travel over Ray's own connections: anyone who may connect to Ray can read them.
    """

    name: ClassVar[str] = "ray"

    hosts: int = 1
    """Number of nodes."""
    cpus: int = 1
    """CPUs to take from Ray on each node."""
    gpus: int = 0
    """GPUs to take from Ray on each node; the engines there see them."""
    address: str = "auto"
    """Address of the Ray cluster, where this process uses none."""

    def __post_init__(self) -> None:
        self._ready: dict[str, list[Any]] = {}
        self._next_look_at = 0.0
        self._used = False

    def options(self) -> dict[str, Any]:
        """Its options, with the address of the Ray cluster that this process uses."""
        options = super().options()
        if self._used:
            options["address"] = self._ray().get_runtime_context().gcs_address
        return options

    def require(self) -> None:
        """Raises `ClusterStartError` without Ray."""
        if self.hosts < 1 or self.cpus < 1:
            raise ClusterStartError(f"hosts and cpus must be at least 1, not {self.hosts} and {self.cpus}")
        self._ray()

    def _ray(self) -> Any:
        """The module, connected. Raises `ClusterStartError`."""
        try:
            import ray  # pyright: ignore[reportMissingImports]
        except ImportError:
            raise ClusterStartError("Ray is not installed here: pip install ray") from None
        if not ray.is_initialized():
            _check_reachable(self.address)
            try:
                ray.init(address=self.address, log_to_driver=False)
            except (ConnectionError, ValueError, RuntimeError) as error:
                raise ClusterStartError(f"Ray at {self.address!r} cannot be reached: {error}") from None
        self._used = True
        return ray

    def block_engines(self, first: int) -> int | None:
        """Engines of a placement group."""
        return self.hosts * (self.engines_per_host or self.cpus)

    def submit(self, request: BlockRequest) -> list[Block]:
        """Requests a placement group with a bundle on each host, and an actor in each."""
        from broadleaf.cluster.engine_sets.ray_actor import start_actors

        self._ray()
        block = Block(f"ray-{request.first_block}", n_hosts=self.hosts, reason="submitted")
        per_host = self.engines_per_host or (-(-request.n // self.hosts) if request.n else self.cpus)
        block.n_engines = per_host * self.hosts
        group = f"broadleaf-{request.cluster_id}-{block.id}-{os.urandom(4).hex()}"
        bundle = {"CPU": float(self.cpus)} | ({"GPU": float(self.gpus)} if self.gpus else {})
        # A host is named after its bundle: on another node it is still the same host, with the same engine ids.
        orders = [
            Order(self.join_order(request, block=block.id, name=f"bundle{index}", n=per_host))
            for index in range(self.hosts)
        ]
        self._ready[block.id] = start_actors(group, bundle, orders)
        block.facts |= {"group": group, "hosts": self.hosts}
        return [block]

    def poll(self, blocks: Sequence[Block]) -> None:
        """Checks whether actors have failed and, once a second, what Ray says about the placement groups."""
        from broadleaf.cluster.engine_sets.ray_actor import failure, group_state

        self._ray()
        is_time = time.monotonic() >= self._next_look_at
        for block in blocks:
            if block.is_over:
                continue
            if said := failure(self._ready.get(block.id, [])):
                block.state, block.reason = "failed", said
            elif is_time:
                block.state, block.reason = group_state(block.facts["group"])
        if is_time:
            self._next_look_at = time.monotonic() + _LOOK_EVERY_S

    def cancel(self, blocks: Sequence[Block]) -> None:
        """Ends the actors, and gives back to Ray what they took."""
        from broadleaf.cluster.engine_sets.ray_actor import end_group

        self._ray()
        for block in blocks:
            self._ready.pop(block.id, None)
            end_group(block.facts["group"])

    def log(self, block: Block) -> str:
        """Nothing: the block's reason says what failed there."""
        return ""

    def script(self, request: BlockRequest) -> str:
        """Describes what would be requested."""
        gpus = f" and {self.gpus} GPUs" if self.gpus else ""
        return f"# a Ray actor on each of {self.hosts} nodes, with {self.cpus} CPUs{gpus}"


def _check_reachable(address: str) -> None:
    """Raises `ClusterStartError` if nobody listens at HOST:PORT; there may be a scheme before it."""
    host, colon, port = address.rpartition("://")[2].rpartition(":")
    if not colon or not port.isdigit():
        return  # "auto", or a mistake, which Ray refuses at once
    try:
        addresses.first_reachable([host.strip("[]")], int(port), _CONNECT_TIMEOUT_S)
    except OSError as error:
        raise ClusterStartError(f"Ray at {address!r} cannot be reached: {error}") from None
