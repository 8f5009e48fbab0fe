"""Starting, stopping and finding clusters."""

from typing import TYPE_CHECKING, Any

from broadleaf.cluster.cluster import Cluster
from broadleaf.cluster.manager import ClusterManager

__all__ = ["Cluster", "ClusterManager"]

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        from broadleaf.old_names import find_attribute

        return find_attribute("broadleaf.cluster", name)
