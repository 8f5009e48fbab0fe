"""A cluster of this machine for the examples."""

from cluster_fixtures import clean, cluster, rc

__all__ = ["clean", "cluster", "rc"]
