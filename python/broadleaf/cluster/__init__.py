"""Starting, stopping and finding clusters."""

from broadleaf.cluster.cluster import Cluster
from broadleaf.cluster.manager import ClusterManager

__all__ = ["Cluster", "ClusterManager"]
