"""`broadleaf drain`."""

from __future__ import annotations

import click

from broadleaf.cli.console import chosen_cluster, cluster_options


@click.command("drain")
@click.argument("target", metavar="ENGINE[,ENGINE...]|HOST|BLOCK")
@cluster_options
@click.option("--stateless", is_flag=True, help="Also release engines on which clients may have left data.")
@click.option("--within", "within_s", type=click.FloatRange(min=0), metavar="SECONDS",
              help="Time after which engines that are still busy are stopped; by default they take as long as they "
              "need.")  # fmt: skip
def command(target: str, profile: str, cluster_id: str | None, stateless: bool, within_s: float | None) -> None:
    """Release engines, or all engines of a host or job: they finish their tasks and take no new ones.

    Returns when they are gone. Queued tasks run on other engines.
    """
    cluster = chosen_cluster(profile, cluster_id)
    ids = target.split(",")
    targets = [int(one) for one in ids] if all(one.isdigit() for one in ids) else target
    try:
        cluster.drain_sync(targets, within_s=within_s, stateless=stateless)
    except KeyError as error:
        raise click.UsageError(str(error.args[0]), click.get_current_context()) from None
    what = target if isinstance(targets, str) else f"engines {target}" if len(ids) > 1 else f"engine {target}"
    click.echo(f"released {what} of cluster {cluster.cluster_id!r}")
