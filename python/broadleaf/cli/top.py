"""`broadleaf top`."""

from __future__ import annotations

import time
from typing import Any

import click

from broadleaf.cli.console import chosen_cluster, cluster_options, console


@click.command("top")
@cluster_options
@click.option("--interval", default=1.0, show_default=True, type=click.FloatRange(min=0.1),
              help="Seconds between looks.")  # fmt: skip
@click.option("--count", type=click.IntRange(min=1), help="Leave after this many looks.")
def command(profile: str, cluster_id: str | None, interval: float, count: int | None) -> None:
    """Watch a cluster: tasks per second, and what each engine does. Ctrl-C leaves."""
    from rich.console import Group
    from rich.live import Live
    from rich.text import Text

    from broadleaf.cli.status import status_view
    from broadleaf.errors import ClusterConnectionError

    cluster = chosen_cluster(profile, cluster_id)
    looks = 0
    before: tuple[float, dict[str, Any]] | None = None
    try:
        with cluster.control() as control, Live(console=console(), auto_refresh=False, screen=count is None) as live:
            while True:
                now, status = time.monotonic(), control.status()
                live.update(Group(status_view(status), Text(_rates(before, now, status), style="bold")), refresh=True)
                before = now, status
                looks += 1
                if looks == count:
                    return
                time.sleep(interval)
    except KeyboardInterrupt:
        return
    except ClusterConnectionError:
        click.echo(f"cluster {cluster.cluster_id!r} has stopped")


def _rates(before: tuple[float, dict[str, Any]] | None, now: float, status: dict[str, Any]) -> str:
    """What has changed since the look before, per second."""
    if before is None:
        return ""
    then, earlier = before
    seconds = now - then
    done = sum(status["controller"]["resolved"].values()) - sum(earlier["controller"]["resolved"].values())
    received = status["links"]["bytes_in"] - earlier["links"]["bytes_in"]
    busy_before = {engine["engine"]: engine["busy_ns"] for engine in earlier["engines"]}
    shares = [
        (engine["busy_ns"] - busy_before.get(engine["engine"], engine["busy_ns"])) / 1e9 / seconds
        for engine in status["engines"]
    ]
    load = 100 * sum(shares) / len(shares) if shares else 0
    return f"{done / seconds:,.0f} tasks/s   {received / seconds / 1e6:,.1f} MB/s   engines busy {load:.0f} %"
