"""`broadleaf start`."""

from __future__ import annotations

import signal
import time
from typing import TYPE_CHECKING, Any

import click

from broadleaf.cli.complete import assignments
from broadleaf.cli.console import checked_cluster_id, fail, look_in_working_directory, profile_option
from broadleaf.units import count, duration

if TYPE_CHECKING:
    from broadleaf.cluster import Cluster


@click.command("start")
@click.option("-n", "--engines", "n", type=click.IntRange(min=0), metavar="N",
              help="Number of engines; by default one for every usable core.")  # fmt: skip
@click.option("--detach/--foreground", default=True, show_default=True,
              help="Return when it runs, or stay and stop it on Ctrl-C.")  # fmt: skip
@profile_option
@click.option("--cluster-id", default="default", show_default=True, metavar="ID", callback=checked_cluster_id,
              help="Its name in the profile.")  # fmt: skip
@click.option("--tcp", metavar="HOST[:PORT]", help="Listen on this address for clients and relays on other hosts, "
              "with TLS; any free port by default.")  # fmt: skip
@click.option("--restart", is_flag=True, default=None, help="Start engines that die again.")
@click.option("--option", "-o", "options", multiple=True, metavar="NAME=VALUE", shell_complete=assignments,
              help="Set an option of `broadleaf config show`. May be repeated.")  # fmt: skip
def command(n: int | None, detach: bool, profile: str, cluster_id: str, tcp: str | None, restart: bool | None,
            options: tuple[str, ...]) -> None:  # fmt: skip
    """Start a cluster on this host.

    It runs until `broadleaf stop`, or with --foreground until Ctrl-C. Programs connect to it by broadleaf.Client(),
    or Client(profile=NAME, cluster_id=ID) if you named one.
    """
    from broadleaf.cluster import Cluster

    look_in_working_directory()
    arguments: dict[str, Any] = {}
    for option in options:
        name, equals, value = option.partition("=")
        if not equals:
            raise click.BadParameter(f"{option!r} is not NAME=VALUE", param_hint="--option")
        arguments[name] = value
    if tcp is not None:
        arguments["listen"] = tcp if ":" in tcp else f"{tcp}:0"
    if restart:
        arguments["restart_engines"] = True
    try:
        cluster = Cluster(n, profile=profile, cluster_id=cluster_id, detached=detach, **arguments)
    except ValueError as error:
        raise click.UsageError(str(error), click.get_current_context()) from None
    run_cluster(cluster, detach)


def run_cluster(cluster: Cluster, detach: bool) -> None:
    """Starts a cluster and says how to use it; without `detach` stays until it is asked to stop or it has ended."""
    stop = _StopSignals()
    started = time.perf_counter()
    try:
        cluster.start_cluster_sync()
        cluster.wait_for_engines_sync()
    except BaseException:
        cluster.stop_cluster_sync()
        raise
    stop.note_started()
    elapsed_s = time.perf_counter() - started
    engines = count(cluster.n, "engine")
    click.echo(f"cluster {cluster.cluster_id!r} runs with {engines} (started in {duration(elapsed_s)})")
    click.echo(f"  connect:  broadleaf.Client({_client_arguments(cluster.profile, cluster.cluster_id)})")
    click.echo(f"  file:     {cluster.connection_file}")
    if detach:
        suffix = "" if cluster.cluster_id == "default" else f" --cluster-id {cluster.cluster_id}"
        profile_suffix = "" if cluster.profile == "default" else f" --profile {cluster.profile}"
        click.echo(f"  stop:     broadleaf stop{profile_suffix}{suffix}")
        return
    click.echo("  stop:     Ctrl-C")
    ended = stop.wait(cluster)
    if not ended:
        fail("the cluster has ended by itself; its log is " + str(cluster.log_path()))
    cluster.stop_cluster_sync()
    click.echo(f"cluster {cluster.cluster_id!r} stopped")


def _client_arguments(profile: str, cluster_id: str) -> str:
    arguments = []
    if profile != "default":
        arguments.append(f"profile={profile!r}")
    if cluster_id != "default":
        arguments.append(f"cluster_id={cluster_id!r}")
    return ", ".join(arguments)


class _StopSignals:
    """Waits for Ctrl-C or a request to end, or for the cluster to end by itself.

    Until the cluster is started either breaks off the start.
    """

    def __init__(self) -> None:
        self._asked = False
        self._started = False
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._on_signal)

    def _on_signal(self, _signal_number: int, _frame: object) -> None:
        self._asked = True
        if not self._started:
            raise KeyboardInterrupt

    def note_started(self) -> None:
        """From now on a signal is for `wait`."""
        self._started = True

    def wait(self, cluster: Any) -> bool:
        """True when asked to stop, False when the cluster is gone."""
        while not self._asked:
            if cluster.wait_stopped(0.2):
                return self._asked
        return True
