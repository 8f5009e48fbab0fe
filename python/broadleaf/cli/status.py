"""`broadleaf status`."""

from __future__ import annotations

import json
from typing import Any

import click

from broadleaf.cli.console import chosen_cluster, cluster_options, console, duration


@click.command("status")
@cluster_options
@click.option("--json", "form", flag_value="json", help="All counters, as JSON.")
@click.option("--prometheus", "form", flag_value="prometheus", help="All counters, as Prometheus text.")
def command(profile: str, cluster_id: str | None, form: str | None) -> None:
    """Show a cluster's engines and counters."""
    cluster = chosen_cluster(profile, cluster_id)
    status = cluster.status_sync()
    if form == "json":
        click.echo(json.dumps(status, indent=1))
    elif form == "prometheus":
        click.echo(prometheus_text(status), nl=False)
    else:
        console().print(status_view(status))


def prometheus_text(status: dict[str, Any]) -> str:
    """The numbers of a status in Prometheus' text format, labelled by cluster and engine."""
    samples: dict[str, list[str]] = {}
    label = json.dumps(status["cluster_id"])

    def add(prefix: str, values: dict[str, Any], labels: str) -> None:
        for name, value in values.items():
            if isinstance(value, dict):
                add(f"{prefix}_{name}", value, labels)
            elif isinstance(value, bool | int | float) and name not in ("engine", "pid"):
                full = f"{prefix}_{name}"
                samples.setdefault(full, []).append(f"{full}{{{labels}}} {float(value):.17g}")

    add("broadleaf", {k: v for k, v in status.items() if k != "engines"}, f"cluster={label}")
    for engine in status["engines"]:
        add("broadleaf_engine", engine, f'cluster={label},engine="{engine["engine"]}"')
    lines = []
    for name, values in samples.items():
        # Whether a number only ever rises is not told, so none is promised to.
        lines += [f"# TYPE {name} untyped", *values]
    return "\n".join(lines) + "\n"


def status_view(status: dict[str, Any]) -> Any:
    """A renderable of the engines and the sums; used by `top` too."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    controller = status["controller"]
    resolved = controller["resolved"]
    head = Text.assemble(
        (f"cluster {status['cluster_id']}", "bold"),
        f"  up {duration(status['uptime_s'])}  clients {controller['clients']}",
        f"  tasks {controller['submitted']:,}  ok {resolved['ok']:,}",
        (f"  error {resolved['error']:,}", "red" if resolved["error"] else ""),
        (f"  lost {resolved['lost']:,}", "red" if resolved["lost"] else ""),
        f"  waiting {controller['waiting'] + controller['ready']:,}",
    )
    table = Table(box=None, pad_edge=False)
    for title in ("ENGINE", "STATE", "PID", "QUEUED", "DONE", "MEAN TASK", "BUSY", "RESTARTS"):
        table.add_column(title, justify="left" if title == "STATE" else "right")
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
    return Group(head, table)
