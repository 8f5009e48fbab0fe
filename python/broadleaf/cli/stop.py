"""`broadleaf stop`."""

from __future__ import annotations

import click

from broadleaf.cli.console import chosen_cluster, cluster_options


@click.command("stop")
@cluster_options
@click.option("--all", "every", is_flag=True, help="Stop all your clusters on this host, whatever their profile.")
def command(profile: str, cluster_id: str | None, every: bool) -> None:
    """Stop a cluster and wait until it is gone."""
    from broadleaf.cluster import ClusterManager

    if every:
        if cluster_id is not None:
            raise click.UsageError("--all and --cluster-id exclude each other", click.get_current_context())
        clusters = list(ClusterManager().load_clusters().values())
    else:
        clusters = [chosen_cluster(profile, cluster_id)]
    for cluster in clusters:
        cluster.stop_cluster_sync()
        click.echo(f"cluster {cluster.cluster_id!r} stopped")
    if not clusters:
        click.echo("no cluster is running")
