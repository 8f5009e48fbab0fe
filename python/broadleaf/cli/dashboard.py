"""`broadleaf dashboard`."""

from __future__ import annotations

import click

from broadleaf.cli.console import chosen_cluster, cluster_options


@click.command("dashboard")
@cluster_options
@click.option("--port", default=0, metavar="PORT", type=click.IntRange(0, 65535),
              help="Port on 127.0.0.1 to serve the dashboard on; by default any free port.")  # fmt: skip
@click.option("--unix-socket", metavar="PATH", type=click.Path(),
              help="Serve the dashboard, without a token, on a unix socket that only you can open.")  # fmt: skip
@click.option("--interval", default=1.0, show_default=True, type=click.FloatRange(min=0.1), metavar="SECONDS",
              help="Minimum time between two updates.")  # fmt: skip
@click.option("--open/--no-open", "opens", default=False, help="Open the dashboard in your browser.")
def command(
    profile: str, cluster_id: str | None, port: int, unix_socket: str | None, interval: float, opens: bool
) -> None:
    """Serve a page that shows what a cluster is doing. Press Ctrl-C to stop.

    The page is served only on this host, to anyone who has the printed address, which contains a token. It shows
    errors and progress, engines and hosts, deaths, throughput and queue, a timeline of tasks, the slowest functions,
    broadcasts between hosts, and the log. From another machine, forward the port: ssh -L PORT:127.0.0.1:PORT HOST.
    """
    from broadleaf.dashboard.server import Dashboard

    cluster = chosen_cluster(profile, cluster_id)
    with Dashboard(cluster, port=port, interval_s=interval, unix_socket=unix_socket) as dashboard:
        click.echo(dashboard.url)
        if opens:
            click.launch(dashboard.url)
        try:
            while not cluster.wait_stopped(1.0):
                pass
        except KeyboardInterrupt:
            return
    click.echo(f"cluster {cluster.cluster_id!r} has stopped", err=True)
