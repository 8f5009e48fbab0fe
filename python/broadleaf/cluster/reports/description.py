"""What a cluster looks like when it is displayed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broadleaf.errors import BroadleafError

if TYPE_CHECKING:
    from broadleaf.cluster.cluster import Cluster


def description(cluster: Cluster) -> str:
    """The cluster in one line: what it is, and whether it runs."""
    detached = ", detached" if cluster.detached else ""
    return (
        f"<Cluster(cluster_id={cluster.cluster_id!r}, profile={cluster.profile!r}, n={cluster.n}, "
        f"{cluster.launcher_name}{detached}): {_state(cluster)}>"
    )


def html_description(cluster: Cluster) -> str:
    """The cluster and its engines as a table, for notebooks."""
    from broadleaf.tables import engine_table, titled

    state = _state(cluster)
    facts = [
        ("id", cluster.cluster_id),
        ("profile", cluster.profile),
        ("engines", f"{cluster.n:,}"),
        ("launcher", cluster.launcher_name),
    ]
    engines = ""
    if cluster.running:
        try:
            with cluster.control(timeout_s=2.0) as control:
                hosts = {engine: host for engine, _, _, host in control.engines()}
                engines = engine_table(control.status(), hosts)
        except (BroadleafError, TimeoutError, OSError):
            state = "does not answer"
    return titled("Cluster", [*facts, ("", state)], engines)


def _state(cluster: Cluster) -> str:
    return "running" if cluster.running else "stopped" if cluster.was_started else "not started"
