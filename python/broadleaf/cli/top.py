"""`broadleaf top`."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

import click

from broadleaf.cli.console import (
    TableCommand,
    anywhere_option,
    chosen_cluster,
    cluster_options,
    console,
    deaths_text,
    far_control,
)
from broadleaf.cli.status import COLUMNS
from broadleaf.dashboard.frames import Look, Rates
from broadleaf.errors.kinds import error_rows, error_sentence
from broadleaf.text import size

if TYPE_CHECKING:
    from broadleaf.cluster.control import ControlLink

# Number of kinds of errors on the screen.
_ERRORS = 5
_LINE = "{:<8}  {:>7}  {:>5}  {:>10}  {:>10}  {:>7}  {:>10}"


@click.command("top", cls=TableCommand, columns=COLUMNS)
@cluster_options
@anywhere_option
@click.option("--interval", default=1.0, show_default=True, type=click.FloatRange(min=0.1), metavar="SECONDS",
              help="Time between two updates.")  # fmt: skip
@click.option("--count", type=click.IntRange(min=1), metavar="N", help="Exit after N updates.")
def command(profile: str, cluster_id: str | None, url: str | None, interval: float, count: int | None) -> None:
    """Watch a cluster at work: its engines, and what they do per second. Press Ctrl-C to quit.

    Below them are the errors that tasks raised, by kind. If the output is a pipe or a file, each update is one line:
    the time, engines that are up, how much of their time they were busy, tasks finished per second, bytes received by
    the controller per second, waiting tasks, and failed tasks since the start. A new kind of error is printed once.
    """
    from broadleaf.errors import ClusterConnectionError

    cluster = chosen_cluster(profile, cluster_id) if url is None else None
    try:
        with cluster.control() if cluster is not None else far_control(url or "") as control:
            if sys.stdout.isatty():
                _watch(control, interval, count)
            else:
                _print_lines(control, interval, count)
    except KeyboardInterrupt:
        return
    except ClusterConnectionError:
        if cluster is None:
            raise
        click.echo(f"cluster {cluster.cluster_id!r} has stopped", err=True)


def _watch(control: ControlLink, interval_s: float, count: int | None) -> None:
    from rich.console import Group
    from rich.live import Live
    from rich.text import Text

    from broadleaf.cli.status import status_view

    before: Look | None = None
    looks = 0
    with Live(console=console(), auto_refresh=False, screen=count is None) as live:
        while True:
            now = Look(time.monotonic(), control.status())
            rates = _sentence(now.since(before)) if before is not None else ""
            errors = "\n".join(map(error_sentence, _errors(control)[:_ERRORS]))
            parts = [
                status_view(now.status),
                *([Text(errors, style="red")] if errors else []),
                Text(rates, style="bold"),
            ]
            live.update(Group(*parts), refresh=True)
            before = now
            looks += 1
            if looks == count:
                return
            time.sleep(interval_s)


def _print_lines(control: ControlLink, interval_s: float, count: int | None) -> None:
    click.echo(_LINE.format("TIME", "ENGINES", "BUSY", "TASKS/S", "BYTES/S", "WAITING", "ERRORS"))
    before = Look(time.monotonic(), control.status())
    told: set[tuple[int, int]] = set()
    told_errors = {row["key"] for row in _errors(control)}
    looks = 0
    while looks != count:
        time.sleep(interval_s)
        now = Look(time.monotonic(), control.status())
        rates, controller, engines = now.since(before), now.status["controller"], now.status["engines"]
        click.echo(
            _LINE.format(
                time.strftime("%H:%M:%S"),
                f"{sum(engine['up'] for engine in engines)}/{len(engines)}",
                f"{rates.busy_percent:.0f} %",
                f"{rates.tasks_per_s:,.0f}",
                size(rates.bytes_per_s),
                f"{controller['waiting'] + controller['ready']:,}",
                f"{controller['resolved']['error']:,}",
            )
        )
        # A death is reported once: it stays in every later status.
        deaths = {(engine["engine"], engine["last_death"]["pid"]) for engine in engines if engine["last_death"]}
        if deaths - told:
            click.echo(deaths_text(now.status))
            told |= deaths
        for row in _errors(control):
            if row["key"] not in told_errors:
                told_errors.add(row["key"])
                click.echo(error_sentence(row))
        before = now
        looks += 1


def _errors(control: ControlLink) -> list[dict[str, Any]]:
    """What tasks raised, by kind, the latest first."""
    return error_rows(control.watch(0, 0)["failures"], time.time())


def _sentence(rates: Rates) -> str:
    """All rates, for the last line of the screen."""
    return (
        f"{rates.tasks_per_s:,.0f} tasks/s   {size(rates.bytes_per_s)}/s received   "
        f"engines busy {rates.busy_percent:.0f} %"
    )
