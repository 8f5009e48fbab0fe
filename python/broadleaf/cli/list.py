"""`broadleaf list`."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import click

from broadleaf.cli.console import TableCommand, any_profile_option, console, plain_table
from broadleaf.text import duration

if TYPE_CHECKING:
    from broadleaf.cluster import Cluster

_COLUMNS = {
    "PROFILE": "the profile it was started in; commands take it as --profile",
    "CLUSTER ID": "its name; commands take it as --cluster-id",
    "ENGINES": "engines it was started with on this host",
    "PID": "process that started its engines and ends with it",
    "AGE": "time since it was started",
    "KIND": "how its engines are started, and whether it is detached (runs on until it is stopped) or ends with the "
    "program that started it",
}


@click.command("list", cls=TableCommand, columns=_COLUMNS)
@any_profile_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON array.")
def command(profile: str | None, as_json: bool) -> None:
    """List your running clusters on this host."""
    from broadleaf.cluster import ClusterManager

    rows = [_row(cluster) for cluster in ClusterManager().load_clusters(profile).values()]
    if as_json:
        click.echo(json.dumps(rows, indent=1))
        return
    if not rows:
        where = f" in profile {profile!r}" if profile else ""
        click.echo(f"no cluster is running{where}")
        return
    table = plain_table(_COLUMNS, ("PROFILE", "CLUSTER ID", "KIND"))
    for row in rows:
        kind = f"{row['launcher']}, {'detached' if row['detached'] else 'ends with its program'}"
        age = duration(round(row["age_s"]))
        table.add_row(row["profile"], row["cluster_id"], str(row["n"]), str(row["pid"]), age, kind)
    console().print(table)


def _row(cluster: Cluster) -> dict[str, Any]:
    from pathlib import Path

    state = cluster.to_dict()
    return {
        "profile": cluster.profile,
        "cluster_id": cluster.cluster_id,
        "n": cluster.n,
        "pid": state["controller"]["fork_server_pid"],
        "age_s": round(max(0.0, time.time() - Path(cluster.cluster_file).stat().st_mtime), 1),
        "detached": cluster.detached,
        "launcher": cluster.launcher_name,
        "connection_file": cluster.connection_file,
    }
