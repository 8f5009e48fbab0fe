"""`broadleaf logs`."""

from __future__ import annotations

import os
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import click

from broadleaf.cli.console import LastDeath, add_block_ends, chosen_cluster, cluster_options, fail, last_death
from broadleaf.dashboard.frames import split_events
from broadleaf.text import duration

if TYPE_CHECKING:
    from broadleaf.cluster import Cluster

# Number of events that are asked for at a time.
_EVENTS = 20_000


@click.command("logs")
@cluster_options
@click.option("--engine", type=click.IntRange(min=0), metavar="ID", help="Show the log of this engine.")
@click.option("--follow", "-f", is_flag=True, help="Print new lines as they are written, until you press Ctrl-C.")
def command(profile: str, cluster_id: str | None, engine: int | None, follow: bool) -> None:
    """Show the log of the controller or of an engine.

    Without --engine, it shows the controller's log, and then the events that the controller remembers: clients and
    engines that came and left, and tasks that failed. What tasks print from Python is not in the logs: it belongs to
    their results (`result.stdout`). If an engine died, the end of its log says how. The logs of a cluster that ended
    without being stopped stay for a week.
    """
    dead = _dead_cluster(profile, cluster_id)
    if dead is not None:
        _show_dead(dead, engine)
        return
    cluster = chosen_cluster(profile, cluster_id)
    path = cluster.log_path(engine)
    whose = f"engine {engine}" if engine is not None else "the controller"
    death = _last_death(cluster, engine) if engine is not None else None
    if death is not None and death.is_over:
        _show_life(cluster.previous_log_path(death.engine), death)
    try:
        log = open(path, "rb")  # noqa: SIM115 - closed below
    except FileNotFoundError:
        if death is None:
            fail(_no_log(cluster, engine, path))
        if not death.is_over:
            _show_life(path, death)
        return
    try:
        if not _copy(log) and death is None:
            click.echo(f"{whose} of cluster {cluster.cluster_id!r} has written nothing to its log, {path}", err=True)
        next_event = _show_events(cluster, 0) if engine is None else None
        if death is not None and not death.is_over:
            click.echo(f"-- {death.sentence}")
        while follow:
            try:
                ended = cluster.wait_stopped(0.2)
            except KeyboardInterrupt:
                return
            _copy(log)
            if ended:
                return
            if next_event is not None:
                next_event = _show_events(cluster, next_event)
            if _was_replaced(log, path):
                log.close()
                log = open(path, "rb")  # noqa: SIM115 - closed below
                _copy(log)
    finally:
        log.close()


def _show_events(cluster: Cluster, after: int) -> int:
    """Prints the events from a number on; returns the number of the next, or the same if the controller is busy."""
    from broadleaf.errors import BroadleafError

    try:
        with cluster.control() as control:
            news = control.watch(after, _EVENTS)
    except (BroadleafError, TimeoutError, OSError):
        return after
    tasks, others = split_events({**news, "events": [event for event in news["events"] if event[0] != "request"]})
    lines = [(at_ms, text) for at_ms, text in others]
    for engine, start_ms, took_ms, function, failed, *_ in tasks:
        if failed:
            took = duration(took_ms / 1e3)
            lines.append((start_ms + took_ms, f"{function or 'a task'} failed on engine {engine} after {took}"))
    for at_ms, text in sorted(lines):
        moment = datetime.fromtimestamp(at_ms / 1e3).isoformat(" ", "milliseconds")
        click.echo(f"{moment} {text}")
    next_event: int = news["next"]
    return next_event


def _last_death(cluster: Cluster, engine: int) -> LastDeath | None:
    status = cluster.status_sync()
    add_block_ends(status, cluster.blocks())
    return last_death(status, engine)


def _dead_cluster(profile: str, cluster_id: str | None) -> Cluster | None:
    """The selected cluster, if it has ended; without an id, the cluster that ended last, if none is running."""
    from broadleaf.cluster import ClusterManager

    manager = ClusterManager()
    running = {cluster.cluster_id for cluster in manager.load_clusters(profile).values()}
    if running if cluster_id is None else cluster_id in running:
        return None
    dead = (cluster for cluster in manager.dead_clusters(profile) if cluster_id in (None, cluster.cluster_id))
    return next(dead, None)


def _show_dead(cluster: Cluster, engine: int | None) -> None:
    whose = "its controller" if engine is None else f"its engine {engine}"
    ended = f"cluster {cluster.cluster_id!r} has ended without being stopped"
    path = cluster.log_path(engine)
    try:
        with open(path, "rb") as log:
            any_part = _copy(log)
    except FileNotFoundError:
        fail(f"{ended}, and {whose} has left no log ({path})")
    click.echo(
        f"-- {ended}" if any_part else f"{ended}; {whose} had written nothing to its log, {path}", err=not any_part
    )


def _no_log(cluster: Cluster, engine: int | None, path: Path) -> str:
    if engine is None:
        return f"the controller's log {path} does not exist"
    engines = {entry["engine"]: entry for entry in cluster.status_sync()["engines"]}
    if engine in engines:
        return f"engine {engine} of cluster {cluster.cluster_id!r} has no log on this host; look on the host it runs on"
    there = ", ".join(map(str, engines)) or "none"
    return f"cluster {cluster.cluster_id!r} has no engine {engine}; its engines: {there}"


def _show_life(path: Path, death: LastDeath) -> None:
    """Prints the output of a process that died, and how it died."""
    try:
        with open(path, "rb") as log:
            _copy(log)
    except FileNotFoundError:  # on another host, of which only the end is known
        click.echo(death.last_output, nl=not death.last_output.endswith("\n"))
    click.echo(f"-- {death.sentence}")


def _was_replaced(log: BinaryIO, path: Path) -> bool:
    """Whether the engine was restarted, which begins a new log."""
    try:
        return os.stat(path).st_ino != os.fstat(log.fileno()).st_ino
    except FileNotFoundError:
        return False


def _copy(log: BinaryIO) -> bool:
    """Prints new output of the log; returns whether there was any."""
    any_part = False
    while part := log.read(1 << 16):
        click.echo(part, nl=False)
        any_part = True
    return any_part
