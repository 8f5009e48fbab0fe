"""`broadleaf list`."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import click

from broadleaf.cli.console import TableCommand, add_plain_row, any_profile_option, console, plain_table
from broadleaf.text import duration

if TYPE_CHECKING:
    from broadleaf.cluster import Cluster
    from broadleaf.cluster.manager import Orphans

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
@click.option("--orphans", is_flag=True, help="List what killed clusters have left behind: processes on this host, and "
              "jobs. `broadleaf stop --orphans` ends them.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print one JSON array.")
def command(profile: str | None, orphans: bool, as_json: bool) -> None:
    """List your running clusters on this host."""
    from broadleaf.cluster import ClusterManager

    if orphans:
        _list_orphans(ClusterManager().orphans(profile), profile, as_json)
        return
    rows = [_row(cluster) for cluster in ClusterManager().load_clusters(profile).values()]
    if as_json:
        click.echo(json.dumps(rows, indent=1))
        return
    if not rows:
        click.echo(f"no cluster is running{_in_profile(profile)}")
        return
    table = plain_table(_COLUMNS, ("PROFILE", "CLUSTER ID", "KIND"))
    for row in rows:
        kind = f"{row['launcher']}, {'detached' if row['detached'] else 'ends with its program'}"
        kind += ", its controller is being started again" if row["is_coming_back"] else ""
        age = duration(round(row["age_s"]))
        table.add_row(row["profile"], row["cluster_id"], str(row["n"]), str(row["pid"]), age, kind)
    console().print(table)


def _in_profile(profile: str | None) -> str:
    return f" in profile {profile!r}" if profile else ""


def _list_orphans(found: list[Orphans], profile: str | None, as_json: bool) -> None:
    rows = [row for orphans in found for row in _orphan_rows(orphans)]
    if as_json:
        click.echo(json.dumps(rows, indent=1))
    elif not rows:
        click.echo(f"no cluster has left anything behind{_in_profile(profile)}")
    else:
        table = plain_table(("PROFILE", "CLUSTER ID", "LEFT", "STATE"), ("PROFILE", "CLUSTER ID", "LEFT", "STATE"))
        for row in rows:
            add_plain_row(table, row["profile"], row["cluster_id"], row["left"], row["state"])
        console().print(table)


def _orphan_rows(orphans: Orphans) -> list[dict[str, str]]:
    cluster = {"profile": orphans.cluster.profile, "cluster_id": orphans.cluster.cluster_id}
    processes = [{"left": f"process {pid}", "state": f"running: {name}"} for pid, name in orphans.processes.items()]
    jobs = [{"left": block.id, "state": f"{block.state}: {block.reason}"} for block in orphans.blocks]
    return [cluster | one for one in (*processes, *jobs)]


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
        "is_coming_back": cluster.is_coming_back,
        "launcher": cluster.launcher_name,
        "connection_file": cluster.connection_file,
    }
