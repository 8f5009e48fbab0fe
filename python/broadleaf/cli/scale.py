"""`broadleaf scale`."""

from __future__ import annotations

import re
import time

import click

from broadleaf.cli.console import chosen_cluster, cluster_options
from broadleaf.text import count

_LOOK_EVERY_S = 0.1


class _Size(click.ParamType[tuple[int, int | None]]):
    """``8``, or ``0:64``."""

    name = "size"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, int | None]:
        found = re.fullmatch(r"(\d+)(?::(\d+))?", str(value))
        if found is None:
            self.fail(f"{value!r} is not a number of engines, such as 8, or a range, such as 0:64", param, ctx)
        minimum, maximum = int(found[1]), None if found[2] is None else int(found[2])
        if maximum is not None and maximum < minimum:
            self.fail(f"the maximum of {value} is less than its minimum", param, ctx)
        return minimum, maximum


@click.command("scale")
@click.argument("size", type=_Size(), metavar="N|MIN:MAX")
@cluster_options
@click.option("--stateless", is_flag=True, help="Also release engines on which clients may have left data.")
@click.option("--within", "within_s", type=click.FloatRange(min=0), metavar="SECONDS",
              help="Time after which engines that are still busy are stopped; by default they take as long as they "
              "need.")  # fmt: skip
@click.option("--idle", "idle_s", type=click.FloatRange(min=0), default=300.0, show_default=True, metavar="SECONDS",
              help="With MIN:MAX, release engines that have been idle for this long.")  # fmt: skip
def command(
    size: tuple[int, int | None],
    profile: str,
    cluster_id: str | None,
    stateless: bool,
    within_s: float | None,
    idle_s: float,
) -> None:
    """Set a cluster's number of engines, or let it follow the queue between MIN and MAX.

    Released engines finish their tasks first. On other hosts, whole jobs are started and released.

    After that, a cluster started with `broadleaf start` has a process that keeps it at its size, or makes it follow its
    queue. If engines come over SSH or with MPI, Dask or Ray, only the program that started them can do that: MIN:MAX is
    refused.
    """
    cluster = chosen_cluster(profile, cluster_id)
    minimum, maximum = size
    if maximum is not None:
        if not cluster.may_have_steward_process:
            raise click.ClickException(
                f"cluster {cluster.cluster_id!r} can follow its queue only while the program that started it runs: "
                "call cluster.adapt_sync() there, or give a fixed number of engines here"
            )
        cluster.adapt_sync(minimum, maximum, idle_s=idle_s, stateless=stateless)
        click.echo(f"cluster {cluster.cluster_id!r} follows its queue, from {minimum} to {count(maximum, 'engine')}")
        return
    cluster.scale_sync(minimum, stateless=stateless, within_s=within_s)
    if not cluster.keeps_its_size:
        while any(block.draining and not block.is_over for block in cluster.blocks()):
            time.sleep(_LOOK_EVERY_S)  # somebody must stop them
        cluster.stop_steward()
    click.echo(f"scaling cluster {cluster.cluster_id!r} to {count(minimum, 'engine')}")
