"""Fixtures of the tests of the dashboard."""

from cluster_fixtures import clean, cluster, rc

__all__ = ["clean", "cluster", "rc"]
