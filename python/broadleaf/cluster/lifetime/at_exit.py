"""Clusters to stop when this process ends. Held here, so that one whose object was dropped is stopped too."""

from __future__ import annotations

import atexit
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from broadleaf.cluster.cluster import Cluster

_running: dict[int, Cluster] = {}


def add(cluster: Cluster) -> None:
    """Has the cluster stopped when this process ends."""
    if not _running:
        atexit.unregister(_stop_all)
        atexit.register(_stop_all)
    _running[id(cluster)] = cluster


def forget(cluster: Cluster) -> None:
    """Takes back `add`."""
    _running.pop(id(cluster), None)


def holds(cluster: Cluster) -> bool:
    """Whether the cluster is stopped when this process ends."""
    return id(cluster) in _running


def _stop_all() -> None:
    for cluster in list(_running.values()):
        cluster.stop_if_owner()
