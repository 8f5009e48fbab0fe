"""`broadleaf logs`."""

from __future__ import annotations

import os
from typing import BinaryIO

import click

from broadleaf.cli.console import chosen_cluster, cluster_options, fail


@click.command("logs")
@cluster_options
@click.option("--engine", type=click.IntRange(min=0), help="An engine's log; the node's if left out.")
@click.option("--follow", "-f", is_flag=True, help="Go on with what comes. Ctrl-C leaves.")
def command(profile: str, cluster_id: str | None, engine: int | None, follow: bool) -> None:
    """Show what a cluster's node, or an engine, has written outside of tasks."""
    cluster = chosen_cluster(profile, cluster_id)
    path = cluster.log_path(engine)
    try:
        log = open(path, "rb")  # noqa: SIM115 - entered below
    except FileNotFoundError:
        fail(f"engine {engine} of cluster {cluster.cluster_id!r} has no log" if engine is not None
             else f"{path} does not exist")  # fmt: skip
    with log:
        _copy(log)
        while follow:
            try:
                if cluster.wait_stopped(0.2):
                    _copy(log)
                    return
            except KeyboardInterrupt:
                return
            if _started_anew(log):
                log.seek(0)
            _copy(log)


def _started_anew(log: BinaryIO) -> bool:
    """Whether the log was emptied, as it is when its engine is started again."""
    return os.fstat(log.fileno()).st_size < log.tell()


def _copy(log: BinaryIO) -> None:
    while part := log.read(1 << 16):
        click.echo(part, nl=False)
