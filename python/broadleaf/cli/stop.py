"""`broadleaf stop`."""

from __future__ import annotations

import click

from broadleaf.cli.console import chosen_cluster, cluster_options, fail


@click.command("stop")
@cluster_options
@click.option("--all", "every", is_flag=True, help="Stop all your clusters on this host, whatever their profile.")
@click.option("--orphans", is_flag=True, help="End what killed clusters of any profile have left behind: processes on "
              "this host, and jobs. `broadleaf list --orphans` lists them.")  # fmt: skip
def command(profile: str, cluster_id: str | None, every: bool, orphans: bool) -> None:
    """Stop a cluster and wait until it has ended."""
    from broadleaf.cluster import ClusterManager

    if orphans:
        if every or cluster_id is not None:
            raise click.UsageError(
                "--orphans cannot be combined with --all or --cluster-id", click.get_current_context()
            )
        _end_orphans()
        return
    if every:
        if cluster_id is not None:
            raise click.UsageError("--all and --cluster-id cannot be combined", click.get_current_context())
        clusters = list(ClusterManager().load_clusters().values())
    else:
        clusters = [chosen_cluster(profile, cluster_id)]
    for cluster in clusters:
        cluster.stop_cluster_sync()
        click.echo(f"cluster {cluster.cluster_id!r} stopped")
    if not clusters:
        click.echo("no cluster is running")


def _end_orphans() -> None:
    from broadleaf.cluster import ClusterManager
    from broadleaf.errors import BroadleafError

    found = ClusterManager().orphans()
    failures = list[str]()
    for orphans in found:
        cluster = orphans.cluster
        what = ", ".join([*(f"process {pid}" for pid in orphans.processes), *(block.id for block in orphans.blocks)])
        try:
            cluster.stop_cluster_sync()
        except BroadleafError as error:
            failures.append(f"{what} of cluster {cluster.cluster_id!r}: {error}")
        else:
            click.echo(f"ended {what} of cluster {cluster.cluster_id!r}")
    if failures:
        fail("; ".join(failures))
    if not found:
        click.echo("no cluster has left anything behind")
