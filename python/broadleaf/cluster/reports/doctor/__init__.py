"""Finds out why engines do not connect: tries every step of joining a cluster from this host, and says what to do if
one fails.
"""

from __future__ import annotations

from broadleaf.cluster.reports.doctor.finding import Finding
from broadleaf.cluster.reports.doctor.steps import examine_cluster, examine_connection

__all__ = ["Finding", "examine_cluster", "examine_connection"]
