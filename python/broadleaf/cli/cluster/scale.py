"""`broadleaf scale`."""

from __future__ import annotations

import time

import click

from broadleaf.cli.terminal.console import chosen_cluster, cluster_options
from broadleaf.text.units import count

_LOOK_EVERY_S = 0.1


@click.command("scale")
@click.argument("n", type=click.IntRange(min=0), metavar="N")
@cluster_options
@click.option("--stateless", is_flag=True, help="Also release engines on which clients may have left data.")
@click.option("--within", "within_s", type=click.FloatRange(min=0), metavar="SECONDS",
              help="Stop engines that have not ended their tasks by then; by default they have all the time "
              "they need.")  # fmt: skip
def command(n: int, profile: str, cluster_id: str | None, stateless: bool, within_s: float | None) -> None:
    """Have a cluster run N engines: start more, or release some.

    Engines that are released end their tasks first. On other hosts whole jobs are started and released.
    """
    cluster = chosen_cluster(profile, cluster_id)
    cluster.scale_sync(n, stateless=stateless, within_s=within_s)
    while any(block.draining and not block.is_over for block in cluster.blocks()):
        time.sleep(_LOOK_EVERY_S)  # somebody must end them
    cluster.stop_steward()
    click.echo(f"cluster {cluster.cluster_id!r} is to have {count(n, 'engine')}")
