"""`broadleaf status`."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from broadleaf.cli.console import (
    TableCommand,
    add_block_ends,
    anywhere_option,
    chosen_cluster,
    cluster_options,
    console,
    deaths_text,
    far_control,
    plain_table,
)
from broadleaf.text import count, duration

if TYPE_CHECKING:
    from broadleaf.cluster.engine_sets import Block

COLUMNS = {
    "ENGINE": "the engine's id",
    "HOST": "the host that it runs on",
    "STATE": "up (can be given tasks), draining (finishes those it has), starting, restarting, leaving, dying or gone",
    "PID": "its process, if it has one",
    "QUEUED": "tasks sent to it that have not ended, including the one that is running",
    "DONE": "tasks that have ended on it, in a result or an error",
    "MEAN TASK": "mean time of its recent tasks",
    "BUSY": "total time that its tasks have taken",
    "RESTARTS": "number of times it was restarted",
}

BLOCK_COLUMNS = {
    "BLOCK": "the job or connection through which engines on other hosts joined",
    "STATE": "pending, running, draining, ended or failed",
    "HOSTS": "those of its hosts that have joined",
    "ENGINES": "those of its engines that are up",
    "TIME LEFT": "time until its job ends",
    "REASON": "why it is waiting or has ended",
}


@click.command("status", cls=TableCommand, columns=COLUMNS)
@cluster_options
@anywhere_option
@click.option("--json", "form", flag_value="json", help="Print all counters as JSON.")
@click.option("--prometheus", "form", flag_value="prometheus", help="Print all counters for Prometheus.")
def command(profile: str, cluster_id: str | None, url: str | None, form: str | None) -> None:
    """Show the engines of a cluster and what they have done.

    The first line counts the clients that are connected and the tasks submitted since the start: ended in a result
    (ok) or an error (failed), lost with their engine, and waiting for an engine or for other tasks.
    """
    if url is not None:
        with far_control(url) as control:
            status, blocks = control.status(), []
    else:
        cluster = chosen_cluster(profile, cluster_id)
        status, blocks = cluster.status_sync(), cluster.blocks()
        add_block_ends(status, blocks)
    status["blocks"] = [asdict(block) for block in blocks]
    if form == "json":
        click.echo(json.dumps(status, indent=1))
    elif form == "prometheus":
        from broadleaf.cli.prometheus import exposition

        click.echo(exposition(status), nl=False)
    else:
        console().print(status_view(status))
        if blocks:
            console().print(_block_view(blocks))


def _block_view(blocks: Sequence[Block]) -> Any:
    table = plain_table(BLOCK_COLUMNS, ("BLOCK", "STATE", "HOSTS", "REASON"))
    for block in blocks:
        left_s = None if block.deadline is None else max(0.0, block.deadline - time.time())
        table.add_row(
            block.id,
            "draining" if block.draining and not block.is_over else block.state,
            ", ".join(host.partition(":")[0] for host in block.hosts),
            f"{len(block.engines):,}",
            "-" if left_s is None else duration(round(left_s)),
            block.reason,
        )
    return table


def _host_of(engine: dict[str, Any]) -> str:
    """The host of an engine, or that on which it died."""
    host = engine["host"] or (engine["last_death"] or {}).get("host", "")
    return str(host).partition(":")[0]


def status_view(status: dict[str, Any]) -> Any:
    """A renderable of the engines and the totals; `top` uses it too."""
    from rich.console import Group
    from rich.text import Text

    controller = status["controller"]
    resolved = controller["resolved"]
    # The connection that asks for the status is also a client.
    clients = max(0, controller["clients"] - 1)
    head = Text.assemble(
        (f"cluster {status['cluster_id']}", "bold"),
        f"  up {duration(round(status['uptime_s']))}  {count(clients, 'client')}  ",
        f"{count(controller['submitted'], 'task')}: {resolved['ok']:,} ok",
        (f", {resolved['error']:,} failed", "red" if resolved["error"] else ""),
        (f", {resolved['lost']:,} lost", "red" if resolved["lost"] else ""),
        f", {controller['waiting'] + controller['ready']:,} waiting",
    )
    table = plain_table(COLUMNS, ("HOST", "STATE"))
    for engine in status["engines"]:
        up = engine["up"]
        table.add_row(
            str(engine["engine"]),
            _host_of(engine),
            Text(str(engine["state"]), style="green" if up else "red"),
            str(engine["pid"] or "-"),
            f"{engine['outstanding']:,}",
            f"{engine['completed']:,}",
            duration(engine["mean_task_ns"] / 1e9) if engine["mean_task_ns"] else "-",
            duration(engine["busy_ns"] / 1e9),
            str(engine["restarts"]),
        )
    deaths = deaths_text(status)
    return Group(head, table, Text(deaths)) if deaths else Group(head, table)
