"""`broadleaf status`."""

from __future__ import annotations

import json
from typing import Any

import click

from broadleaf.cli.terminal.console import TableCommand, chosen_cluster, cluster_options, console, plain_table
from broadleaf.cli.terminal.deaths import deaths_text
from broadleaf.text.units import count, duration

COLUMNS = {
    "ENGINE": "the engine's id",
    "STATE": "up (can be given tasks), starting, restarting, leaving, dying or gone",
    "PID": "its process",
    "QUEUED": "tasks it has been sent and has not ended, the running one included",
    "DONE": "tasks that have ended on it, in a result or an error",
    "MEAN TASK": "mean time of its recent tasks",
    "BUSY": "time that all its tasks have taken together",
    "RESTARTS": "times it was started again",
}


@click.command("status", cls=TableCommand, columns=COLUMNS)
@cluster_options
@click.option("--json", "form", flag_value="json", help="Print all counters as JSON.")
@click.option("--prometheus", "form", flag_value="prometheus", help="Print all counters for Prometheus.")
def command(profile: str, cluster_id: str | None, form: str | None) -> None:
    """Show the engines of a cluster and what they have done.

    The first line counts the clients that are connected and the tasks submitted since the start: ended in a result
    (ok) or an error (failed), lost with their engine, and waiting for an engine or for other tasks.
    """
    cluster = chosen_cluster(profile, cluster_id)
    status = cluster.status_sync()
    if form == "json":
        click.echo(json.dumps(status, indent=1))
    elif form == "prometheus":
        from broadleaf.cli.cluster.prometheus import exposition

        click.echo(exposition(status), nl=False)
    else:
        console().print(status_view(status))


def status_view(status: dict[str, Any]) -> Any:
    """A renderable of the engines and the sums; used by `top` too."""
    from rich.console import Group
    from rich.text import Text

    controller = status["controller"]
    resolved = controller["resolved"]
    # The connection that asks for the status is a client too.
    clients = max(0, controller["clients"] - 1)
    head = Text.assemble(
        (f"cluster {status['cluster_id']}", "bold"),
        f"  up {duration(round(status['uptime_s']))}  {count(clients, 'client')}  ",
        f"{count(controller['submitted'], 'task')}: {resolved['ok']:,} ok",
        (f", {resolved['error']:,} failed", "red" if resolved["error"] else ""),
        (f", {resolved['lost']:,} lost", "red" if resolved["lost"] else ""),
        f", {controller['waiting'] + controller['ready']:,} waiting",
    )
    table = plain_table(COLUMNS, ("STATE",))
    for engine in status["engines"]:
        up = engine["up"]
        table.add_row(
            str(engine["engine"]),
            Text(str(engine["state"]), style="green" if up else "red"),
            str(engine["pid"]),
            f"{engine['outstanding']:,}",
            f"{engine['completed']:,}",
            duration(engine["mean_task_ns"] / 1e9) if engine["completed"] else "-",
            duration(engine["busy_ns"] / 1e9),
            str(engine["restarts"]),
        )
    deaths = deaths_text(status)
    return Group(head, table, Text(deaths)) if deaths else Group(head, table)
