"""`broadleaf list`."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import click

from broadleaf.cli.console import console, duration

if TYPE_CHECKING:
    from broadleaf.cluster import Cluster


@click.command("list")
@click.option("--profile", help="Only clusters of this profile.")
@click.option("--json", "as_json", is_flag=True, help="One JSON array.")
def command(profile: str | None, as_json: bool) -> None:
    """List running clusters of this user on this host."""
    from broadleaf.cluster import ClusterManager

    rows = [_row(cluster) for cluster in ClusterManager().load_clusters(profile).values()]
    if as_json:
        click.echo(json.dumps(rows, indent=1))
        return
    if not rows:
        click.echo("no cluster is running")
        return
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for title in ("PROFILE", "CLUSTER ID", "ENGINES", "PID", "AGE", "KIND"):
        table.add_column(title, justify="right" if title in ("ENGINES", "PID", "AGE") else "left")
    for row in rows:
        kind = f"{row['launcher']}, {'detached' if row['detached'] else 'bound to its client'}"
        table.add_row(row["profile"], row["cluster_id"], str(row["n"]), str(row["pid"]),
                      duration(row["age_s"]), kind)  # fmt: skip
    console().print(table)


def _row(cluster: Cluster) -> dict[str, Any]:
    from pathlib import Path

    state = cluster.to_dict()
    return {
        "profile": cluster.profile,
        "cluster_id": cluster.cluster_id,
        "n": cluster.n,
        "pid": state["launcher"]["host_pid"],
        "age_s": round(max(0.0, time.time() - Path(cluster.cluster_file).stat().st_mtime), 1),
        "detached": cluster.detached,
        "launcher": cluster.engines,
        "connection_file": cluster.connection_file,
    }
