"""`ipcluster`: start, stop, list and clean up clusters, and add engines."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from broadleaf.cli.commands import EntryCommand, EntryGroup
from broadleaf.compat.profiles import clean_cluster_files, ipython_dir, profile_name

if TYPE_CHECKING:
    from broadleaf.cluster import Cluster


# Options that these commands share, and what happens to those that Broadleaf does not need.


_Command = TypeVar("_Command", bound=Callable[..., Any])

# Options of IPython Parallel that take a value, so that the value is not read as a separate argument.
_WITH_VALUE = frozenset(
    ("--ping", "--location", "--ssh", "--enginessh", "--transport", "--scheme", "--hwm", "--url", "--ident", "--packer",
     "--keyfile", "--session", "--work-dir", "--mpi", "--ports", "--controller", "--config", "--ipython-dir",
     "--timeout", "--delay", "--signal", "-c", "-s", "--cwd")
)  # fmt: skip
SETTINGS: dict[str, Any] = {
    "help_option_names": ["-h", "--help", "--help-all"],
    "max_content_width": 100,
    "show_default": True,
}


def cluster_options(command: _Command) -> _Command:
    """The options that name a cluster and set its log level."""
    for option in (
        click.option("--quiet", is_flag=True, help="Log only errors."),
        click.option("--debug", is_flag=True, help="Log everything."),
        click.option("--log-level", metavar="LEVEL", help="A Python logging level, by name or number."),
        click.option("--cluster-id", default="", metavar="ID", help="Name of the cluster in its profile."),
        click.option("--profile-dir", metavar="PATH", help="Profile directory; the profile is named after it."),
        click.option("--profile", default="default", metavar="NAME", help="Profile of the cluster."),
    ):
        command = option(command)
    return command


def tolerant(name: str, help_text: str | None = None) -> Callable[[Callable[..., Any]], click.Command]:
    """A command that collects unknown options in the argument `rest`."""

    def decorate(function: Callable[..., Any]) -> click.Command:
        command = click.argument("rest", nargs=-1, type=click.UNPROCESSED)(function)
        settings: dict[str, Any] = {**SETTINGS, "ignore_unknown_options": True}
        return click.command(name, cls=EntryCommand, context_settings=settings, help=help_text)(command)

    return decorate


def say_ignored(rest: tuple[str, ...]) -> None:
    """Reports each option in `rest` that has no effect. Raises `UsageError` for anything that is not an option."""
    arguments = iter(rest)
    for argument in arguments:
        name, equals, _ = argument.partition("=")
        if not name.startswith("-"):
            raise click.UsageError(f"unexpected argument {argument!r}", click.get_current_context())
        if name in _WITH_VALUE and not equals:
            next(arguments, None)
        click.echo(f"{name} has no effect; `broadleaf config show` lists the options that you can set", err=True)


def profile_of(profile: str, profile_dir: str | None) -> str:
    """The profile that the two options name."""
    return profile_name(profile_dir) if profile_dir else profile


def chosen_log_level(log_level: str | None, debug: bool, quiet: bool) -> str | None:
    """The value of the option `log_level`, or None for its default."""
    from broadleaf.compat.cluster import option_log_level

    if log_level is not None:
        return option_log_level(log_level)
    return "debug" if debug else "error" if quiet else None


_COMMANDS = {
    "start": "Start a cluster.",
    "stop": "Stop a cluster, or all.",
    "list": "List running clusters.",
    "engines": "Add engines to a cluster.",
    "clean": "Remove what clusters have left behind.",
}


class _Group(EntryGroup):
    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        commands = {"start": _start, "stop": _stop, "list": _list, "engines": _engines, "clean": _clean}
        return commands.get(cmd_name)


@click.group(cls=_Group, texts=_COMMANDS, package="", context_settings=SETTINGS)
@click.version_option(package_name="broadleaf", prog_name="ipcluster", message="%(version)s")
def group() -> None:
    """Start and stop clusters with the commands of IPython Parallel. `broadleaf` has more commands."""


@tolerant("start")
@cluster_options
@click.option("-n", "--n", "n", type=click.IntRange(min=0), metavar="N", help="Number of engines.")
@click.option("--daemonize", "--daemon", is_flag=True, help="Return once the cluster is running.")
@click.option("--engines", default="local", metavar="LAUNCHER", help="Launcher of the engines.")
@click.option("--ip", metavar="ADDRESS", help="Listen for other hosts on this address.")
@click.option("--port", default=0, metavar="PORT", help="Port to listen on with --ip; 0 for a free one.")
def _start(n: int | None, daemonize: bool, engines: str, ip: str | None, port: int, profile: str,
           profile_dir: str | None, cluster_id: str, rest: tuple[str, ...], **level: Any) -> None:  # fmt: skip
    """Start a cluster, and stop it on Ctrl-C unless --daemonize is given."""
    from broadleaf.cli.console import look_in_working_directory
    from broadleaf.cli.start import run_cluster
    from broadleaf.cluster import Cluster

    say_ignored(rest)
    look_in_working_directory()
    arguments: dict[str, Any] = {"engines": engines, "profile": profile, "cluster_id": cluster_id}
    if profile_dir:
        arguments["profile_dir"] = profile_dir
    if ip:
        arguments["listen"] = f"{ip.replace('*', '0.0.0.0')}:{port}"
    if (chosen := chosen_log_level(**level)) is not None:
        arguments["log_level"] = chosen
    run_cluster(Cluster(n, detached=daemonize, **arguments), daemonize)


@tolerant("stop")
@cluster_options
@click.option("--all", "every", is_flag=True, help="Stop all your clusters on this host.")
def _stop(every: bool, profile: str, profile_dir: str | None, cluster_id: str, rest: tuple[str, ...],
          **level: Any) -> None:  # fmt: skip
    """Stop a cluster, and wait until it has ended."""
    from broadleaf.cli.console import chosen_cluster
    from broadleaf.cluster import ClusterManager

    say_ignored(rest)
    if every:
        clusters = list(ClusterManager().load_clusters().values())
    else:
        clusters = [chosen_cluster(profile_of(profile, profile_dir), cluster_id or "default")]
    for cluster in clusters:
        cluster.stop_cluster_sync()
        click.echo(f"cluster {cluster.cluster_id!r} stopped")


@tolerant("list")
@click.option("-o", "output", type=click.Choice(["text", "json"]), default="text", help="Format of the list.")
@click.option("--profile", metavar="NAME", help="Only clusters of this profile.")
@click.option("--profile-dir", metavar="PATH", help="Only clusters of this profile directory.")
def _list(output: str, profile: str | None, profile_dir: str | None, rest: tuple[str, ...]) -> None:
    """List running clusters."""
    from broadleaf.cluster import ClusterManager

    say_ignored(rest)
    wanted = profile_of(profile or "default", profile_dir) if profile or profile_dir else None
    clusters = list(ClusterManager().load_clusters(wanted).values())
    if output == "json":
        json.dump([described(cluster) for cluster in clusters], sys.stdout)
        return
    click.echo(f"{'PROFILE':16} {'CLUSTER ID':32} {'RUNNING':7} {'ENGINES':7} LAUNCHER")
    for cluster in sorted(clusters, key=lambda cluster: (cluster.profile, cluster.cluster_id)):
        engines = sum(engine_set.n for engine_set in cluster.engines.values())
        launcher = cluster.launcher_name.capitalize()
        click.echo(f"{cluster.profile:16} {cluster.cluster_id:32} {cluster.running!s:7} {engines:7} {launcher}")


@tolerant("engines")
@cluster_options
@click.option("-n", "--n", "n", type=click.IntRange(min=1), metavar="N", help="Number of engines.")
@click.option("--daemonize", "--daemon", is_flag=True, help="No effect: it always returns as soon as engines start.")
@click.option(
    "--engines", "launcher", metavar="LAUNCHER", help="No effect: the new engines start like the others of the cluster."
)
def _engines(n: int | None, daemonize: bool, launcher: str | None, profile: str, profile_dir: str | None,
             cluster_id: str, rest: tuple[str, ...], **level: Any) -> None:  # fmt: skip
    """Add engines to a running cluster; they end with the cluster."""
    from broadleaf.cli.console import chosen_cluster

    say_ignored(rest)
    cluster = chosen_cluster(profile_of(profile, profile_dir), cluster_id or "default")
    set_id = cluster.start_engines_sync(n)
    click.echo(f"starting {cluster.engines[set_id].n} engines in cluster {cluster.cluster_id!r}, as set {set_id!r}")


@tolerant("clean")
@click.option("--profile", metavar="NAME", help="Only this IPython profile.")
@click.option("--profile-dir", metavar="PATH", help="Only this profile directory.")
@click.option("--all", "every", is_flag=True, help="All profiles (the default).")
@click.option("--force", is_flag=True, help="Also remove the files of IPython Parallel clusters that are running.")
@click.option("--debug", is_flag=True, help="No effect; accepted so that old scripts still run.")
def _clean(profile: str | None, profile_dir: str | None, every: bool, force: bool, debug: bool,
           rest: tuple[str, ...]) -> None:  # fmt: skip
    """Remove what clusters that are no longer running have left, including the logs and connection files of IPython
    Parallel.
    """
    say_ignored(rest)
    if profile_dir is None and profile is not None and not every:
        profile_dir = str(ipython_dir() / f"profile_{profile}")
    try:
        clean_cluster_files(profile_dir, force=force)
    except ValueError as error:
        raise click.ClickException(str(error)) from None


def described(cluster: Cluster) -> dict[str, Any]:
    """A cluster as `ipcluster list -o json` shows it."""
    state = cluster.to_dict()
    sets = {set_id: {"n": one.n, "engine_ids": one.engine_ids} for set_id, one in cluster.engines.items()}
    return {
        "cluster": {
            "cluster_id": cluster.cluster_id,
            "profile": cluster.profile,
            "profile_dir": os.path.dirname(cluster.cluster_dir),
            "cluster_file": cluster.cluster_file,
            "class": "broadleaf.cluster.cluster.Cluster",
        },
        "controller": {"class": "local", "state": {"pid": state["controller"]["fork_server_pid"]}},
        "engines": {"class": cluster.launcher_name, "sets": sets},
    }


def main(arguments: list[str] | None = None) -> Any:
    """Entry point of the console script."""
    return group.main(arguments, prog_name="ipcluster")


launch_new_instance = main

if __name__ == "__main__":
    main()
