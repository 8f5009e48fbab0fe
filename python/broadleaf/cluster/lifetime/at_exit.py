"""Clusters to stop when this process ends. Kept here so that a cluster whose object was dropped is stopped too."""

from __future__ import annotations

import atexit
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from broadleaf.cluster.cluster import Cluster

_running: dict[int, Cluster] = {}


def add(cluster: Cluster) -> None:
    """Registers the cluster to be stopped when this process ends."""
    if not _running:
        atexit.unregister(_stop_all)
        atexit.register(_stop_all)
    _running[id(cluster)] = cluster


def forget(cluster: Cluster) -> None:
    """Undoes `add`."""
    _running.pop(id(cluster), None)


def holds(cluster: Cluster) -> bool:
    """Whether the cluster is stopped when this process ends."""
    return id(cluster) in _running


def _stop_all() -> None:
    for cluster in list(_running.values()):
        cluster.stop_if_owner()
