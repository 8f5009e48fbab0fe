"""Starting, stopping and finding clusters.

`Cluster` and `ClusterManager` are imported when they are first used. Relays and MPI ranks use other modules of this
package, and these two would double the number of modules that they import.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

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
        from broadleaf.old_names import find_attribute

        return find_attribute("broadleaf.cluster", name)

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
