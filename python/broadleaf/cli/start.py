"""`broadleaf start`."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from broadleaf.cli.console import (
    checked_cluster_id,
    complete_assignments,
    fail,
    look_in_working_directory,
    profile_option,
)
from broadleaf.text import count, duration

if TYPE_CHECKING:
    from broadleaf.cluster import Cluster


def _checked_set(_context: click.Context, _parameter: click.Parameter, name: str | None) -> str | None:
    if name is not None and name.isdigit():
        raise click.BadParameter(f"expected the name of an engine set; for a number of engines, use `-n {name}`")
    return name


def _assigned(texts: tuple[str, ...], hint: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            raise click.BadParameter(f"{text!r} is not NAME=VALUE", param_hint=hint)
        found[name] = value
    return found


@click.command("start")
@click.option("-n", "n", type=click.IntRange(min=0), metavar="N",
              help="Number of engines; by default one for every usable core.")  # fmt: skip
@click.option("--engines", metavar="NAME", callback=_checked_set,
              help="Where engines run: `local`, `ssh`, `slurm`, `sge`, `pbs`, `lsf`, `psij`, `dask`, `ray`, `mpi`, or "
              "an installed engine set.")  # fmt: skip
@click.option("--hosts", metavar="HOST[:N],...", help="Hosts for `--engines ssh`, with the number of engines on each.")
@click.option("--set", "set_options", multiple=True, metavar="NAME=VALUE",
              help="Set an option of the engine set, such as nodes=4. May be repeated.")  # fmt: skip
@click.option(
    "--dry-run", is_flag=True, help="Print what would be submitted or run for the engines, but start nothing."
)
@click.option("--detach/--foreground", default=True, show_default=True,
              help="Return once the cluster is running, or wait and stop it on Ctrl-C.")  # fmt: skip
@click.option("--resume", is_flag=True, help="Start the controller of a cluster again that kept a journal and was "
              "killed. Its engines on other hosts keep their variables.")  # fmt: skip
@profile_option
@click.option("--cluster-id", default="default", show_default=True, metavar="ID", callback=checked_cluster_id,
              help="Id of the cluster, unique in its profile.")  # fmt: skip
@click.option("--tcp", metavar="HOST[:PORT]", help="Listen with TLS on this address, or on the network interface with "
              "this name, for clients and relays on other hosts; by default on any free port.")  # fmt: skip
@click.option("--restart", is_flag=True, default=None, help="Restart engines that die.")
@click.option("--option", "-o", "options", multiple=True, metavar="NAME=VALUE", shell_complete=complete_assignments,
              help="Set an option that `broadleaf config show` lists. May be repeated.")  # fmt: skip
def command(n: int | None, detach: bool, profile: str, cluster_id: str, tcp: str | None, restart: bool | None,
            options: tuple[str, ...], engines: str | None, hosts: str | None, set_options: tuple[str, ...],
            dry_run: bool, resume: bool) -> None:  # fmt: skip
    """Start a cluster whose controller is on this host.

    It runs until `broadleaf stop`, or with --foreground until Ctrl-C. Programs connect to it with broadleaf.Client(),
    or Client(profile=NAME, cluster_id=ID) if you named one.
    """
    from broadleaf.cluster import Cluster

    look_in_working_directory()
    if resume:
        given: dict[str, object] = {"-n": n, "--engines": engines, "--hosts": hosts, "--tcp": tcp, "--restart": restart}
        given |= {"--option": options, "--set": set_options, "--dry-run": dry_run}
        if wrong := [name for name, value in given.items() if value]:
            raise click.UsageError(f"{', '.join(wrong)}: a resumed cluster keeps the options that it was started with")
        resume_cluster(Cluster.from_file(profile=profile, cluster_id=cluster_id), detach)
        return
    arguments = _assigned(options, "--option")
    for_set = _assigned(set_options, "--set")
    if hosts is not None:
        engines = engines or "ssh"
        for_set["hosts"] = hosts
    if tcp is not None:
        arguments["listen"] = tcp if ":" in tcp else f"{tcp}:0"
    if restart:
        arguments["restart_engines"] = True
    try:
        cluster = Cluster(n, profile=profile, cluster_id=cluster_id, detached=detach, engines=engines,
                          engine_options=for_set, **arguments)  # fmt: skip
        if dry_run:
            click.echo(cluster.script())
            return
    except ValueError as error:
        raise click.UsageError(str(error), click.get_current_context()) from None
    run_cluster(cluster, detach)


def resume_cluster(cluster: Cluster, detach: bool) -> None:
    """Starts a cluster's controller again and says how to use it. Without `detach`, returns as `run_cluster` does."""
    cluster.detached = detach
    _run(cluster, detach, cluster.resume_controller_sync, lambda: "runs again; its hosts are awaited")


def run_cluster(cluster: Cluster, detach: bool) -> None:
    """Starts a cluster and says how to use it.

    Without `detach` it returns once the cluster is stopped, from here or elsewhere; it fails if the cluster ends by
    itself.
    """

    def start() -> None:
        try:
            cluster.start_cluster_sync()
            cluster.wait_for_engines_sync()
        except BaseException as error:
            cluster.stop_after(error)
            raise

    _run(cluster, detach, start, lambda: f"is running with {count(cluster.n, 'engine')}")


def _run(cluster: Cluster, detach: bool, start: Callable[[], object], state: Callable[[], str]) -> None:
    stop = _StopSignals()
    started = time.perf_counter()
    start()
    stop.note_started()
    elapsed_s = time.perf_counter() - started
    click.echo(f"cluster {cluster.cluster_id!r} {state()} (started in {duration(elapsed_s)})")
    click.echo(f"  connect:  broadleaf.Client({_client_arguments(cluster.profile, cluster.cluster_id)})")
    click.echo(f"  file:     {cluster.connection_file}")
    if detach:
        suffix = "" if cluster.cluster_id == "default" else f" --cluster-id {cluster.cluster_id}"
        profile_suffix = "" if cluster.profile == "default" else f" --profile {cluster.profile}"
        click.echo(f"  stop:     broadleaf stop{profile_suffix}{suffix}")
        return
    click.echo("  stop:     Ctrl-C")
    if not stop.wait(cluster) and cluster.exit_code(5.0) != 0:
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

    Until the cluster has started, either of them aborts the start.
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
        """From now on `wait` handles signals."""
        self._started = True

    def wait(self, cluster: Any) -> bool:
        """True if it was asked to stop, False if the cluster is gone."""
        while not self._asked:
            if cluster.wait_stopped(0.2):
                return self._asked
        return True
