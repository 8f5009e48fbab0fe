"""Why engines do not connect: every step of joining a cluster, tried from this host, and what to do where one fails."""

from __future__ import annotations

from broadleaf.cluster.reports.doctor.finding import Finding
from broadleaf.cluster.reports.doctor.steps import examine_cluster, examine_connection

__all__ = ["Finding", "examine_cluster", "examine_connection"]
