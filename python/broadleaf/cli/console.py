"""What all commands share: choosing a cluster, and how things look on a terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import click

if TYPE_CHECKING:
    from rich.console import Console

    from broadleaf.cluster import Cluster

_Command = TypeVar("_Command", bound=Callable[..., Any])


def fail(message: str) -> NoReturn:
    """Prints an error and leaves with code 1."""
    click.echo(click.style("error: ", fg="red", bold=True) + message, err=True)
    raise SystemExit(1)


def _checked_profile(ctx: click.Context, parameter: click.Parameter, profile: str) -> str:
    from broadleaf.cluster.files import check_id

    try:
        return check_id("profile", profile)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def profile_option(command: _Command) -> _Command:
    """The option that chooses a profile."""
    option = click.option("--profile", default="default", show_default=True, callback=_checked_profile,
                          help="Profile of the cluster.")  # fmt: skip
    return option(command)


def cluster_options(command: _Command) -> _Command:
    """The options that choose a running cluster."""
    command = profile_option(command)
    return click.option("--cluster-id", metavar="ID", help="Id of the cluster; may be left out if one is running.")(
        command
    )


def chosen_cluster(profile: str, cluster_id: str | None) -> Cluster:
    """The running cluster that is meant; an error lists those there are."""
    from broadleaf.cluster import ClusterManager

    running = {c.cluster_id: c for c in ClusterManager().load_clusters(profile).values()}
    if cluster_id is not None:
        if cluster_id in running:
            return running[cluster_id]
        known = f"; running: {', '.join(running)}" if running else ""
        fail(f"no cluster {cluster_id!r} is running in profile {profile!r}{known}")
    if not running:
        fail(f"no cluster is running in profile {profile!r}; start one with `broadleaf start`")
    if len(running) == 1:
        return next(iter(running.values()))
    if "default" in running:
        return running["default"]
    fail(f"several clusters are running; choose one with --cluster-id: {', '.join(running)}")


def console() -> Console:
    """A rich console for standard output; a pipe or file gets lines of any length."""
    from rich.console import Console

    return Console(highlight=False, width=None if sys.stdout.isatty() else 500)


def duration(seconds: float) -> str:
    """A duration in the two largest units that matter."""
    if seconds < 0.001:
        return f"{seconds * 1e6:.0f} us"
    if seconds < 1:
        return f"{seconds * 1e3:.1f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"
