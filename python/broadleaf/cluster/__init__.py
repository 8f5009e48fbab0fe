"""Starting, stopping and finding clusters.

A `cluster` starts a `controller`, and through `started_sets` the engines of an engine set, on this host or on others.
On each host `join`, `relay` or `symmetric` runs the relay, in a process that `fork_servers` starts. `elastic`,
`scaling` and `steward` keep the wanted number of engines; `control` is the link for requests. `Cluster` and
`ClusterManager` are imported when they are first used, because relays and MPI ranks do without them.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from broadleaf.extensions import old_attribute

if TYPE_CHECKING:
    from broadleaf.cluster.cluster import Cluster
    from broadleaf.cluster.manager import ClusterManager

__all__ = ["Cluster", "ClusterManager"]

_HOMES = {"Cluster": "broadleaf.cluster.cluster", "ClusterManager": "broadleaf.cluster.manager"}

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        if (home := _HOMES.get(name)) is not None:
            value = globals()[name] = getattr(import_module(home), name)
            return value
        return old_attribute("broadleaf.cluster", name)

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
