"""What `OnRay` requests from Ray, and the actor that it runs there."""

from __future__ import annotations

import logging
import os
import socket
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import ray  # pyright: ignore[reportMissingImports]
from ray import PlacementGroupID  # pyright: ignore[reportMissingImports]
from ray.util import placement_group, placement_group_table, remove_placement_group  # pyright: ignore[reportMissingImports]
from ray.util.placement_group import PlacementGroup  # pyright: ignore[reportMissingImports]
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy  # pyright: ignore[reportMissingImports]

from broadleaf.cluster.engine_sets.base import BlockState
from broadleaf.cluster.join import HostedRelay
from broadleaf.errors import ClusterStartError


class RelayActor:
    """Owns the relay of a host. Ray restarts it when its node, its process or its relay is lost."""

    def __init__(self, order: Mapping[str, Any], group: Any) -> None:
        self._group = group
        try:
            self._relay = HostedRelay(order)
        except ClusterStartError:
            if ray.get_runtime_context().was_current_actor_reconstructed:
                remove_placement_group(group)  # the cluster is gone, and nobody has told the others
            raise
        threading.Thread(target=self._watch, daemon=True).start()

    def host(self) -> str:
        """Where the actor runs."""
        return socket.gethostname()

    def _watch(self) -> None:
        if self._relay.wait():
            os._exit(1)
        remove_placement_group(self._group)  # its cluster has stopped


NAMESPACE = "broadleaf"


def start_actors(name: str, bundle: Mapping[str, float], orders: Sequence[Mapping[str, Any]]) -> list[Any]:
    """Requests a placement group with this name, and an actor for each order in it; returns what each one reports once
    it is up.
    """
    group = placement_group([dict(bundle)] * len(orders), strategy="STRICT_SPREAD", name=name, lifetime="detached")
    actor = ray.remote(RelayActor)
    # Ray warns of something intended here: these actors end with their group.
    logging.getLogger("ray.actor").addFilter(lambda record: "a placement group is not recommended" not in record.msg)
    ready = []
    for index, order in enumerate(orders):
        options = actor.options(
            name=f"{name}-{index}",
            namespace=NAMESPACE,
            lifetime="detached",
            max_restarts=-1,
            num_cpus=bundle["CPU"],
            num_gpus=bundle.get("GPU", 0),
            scheduling_strategy=PlacementGroupSchedulingStrategy(
                placement_group=group, placement_group_bundle_index=index
            ),
        )
        ready.append(options.remote(order, group).host.remote())
    return ready


def failure(ready: Sequence[Any]) -> str:
    """Why one of the actors did not come up; '' while all of them still may."""
    done, _ = ray.wait(list(ready), num_returns=len(ready), timeout=0) if ready else ([], [])
    for one in done:
        try:
            ray.get(one)
        except ray.exceptions.RayError as error:
            lines = [line.strip() for line in str(error).splitlines() if line.strip()]
            return lines[-1] if lines else type(error).__name__
    return ""


def group_state(name: str) -> tuple[BlockState, str]:
    """State of a placement group, in the terms of blocks, and the reason for it."""
    entry = _entry(name)
    if entry is None:
        return "ended", "its placement group was removed"
    state = entry["state"]
    if state == "CREATED":
        return "running", ""
    bundles = entry["bundles"]
    needs = ", ".join(f"{amount:g} {kind}" for kind, amount in next(iter(bundles.values())).items())
    nodes = [node for node in ray.nodes() if node["Alive"]]
    has = ", ".join(f"{node['NodeManagerHostname']} {node['Resources'].get('CPU', 0):g}" for node in nodes)
    verb = "looks for other nodes" if state == "RESCHEDULING" else "has no room yet"
    return "pending", f"Ray {verb}: {len(bundles)} nodes with {needs} each are wanted; CPUs of its nodes: {has}"


def end_group(name: str) -> None:
    """Removes a placement group, and its actors."""
    if (entry := _entry(name)) is not None:
        remove_placement_group(PlacementGroup(PlacementGroupID.from_hex(entry["placement_group_id"])))


def _entry(name: str) -> dict[str, Any] | None:
    for entry in placement_group_table().values():
        if entry["name"] == name and entry["state"] != "REMOVED":
            return dict(entry)
    return None
