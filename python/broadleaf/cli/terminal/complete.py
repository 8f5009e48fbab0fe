"""Shell completion for the values of options: profiles, clusters, options, and the peers of benchmarks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem


def profiles(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Profiles that have been used on this host."""
    from broadleaf.state.directories import base_dir

    return sorted(path.name for path in base_dir().glob("profiles/*") if path.name.startswith(incomplete))


def cluster_ids(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Running clusters in the profile that the command names."""
    from click.shell_completion import CompletionItem

    from broadleaf.state.files import running_clusters

    profile = ctx.params.get("profile") or "default"
    return [
        CompletionItem(cluster_id, help=f"profile {of}")
        for of, cluster_id in running_clusters()
        if of == profile and cluster_id.startswith(incomplete)
    ]


def options(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Names of options."""
    from click.shell_completion import CompletionItem

    from broadleaf.config import OPTIONS

    return [
        CompletionItem(name, help=option.meaning) for name, option in OPTIONS.items() if name.startswith(incomplete)
    ]


def assignments(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """``NAME=VALUE`` of an option: its name, and its values if there are only a few."""
    from broadleaf.config import OPTIONS

    name, equals, _ = incomplete.partition("=")
    if not equals:
        return [f"{known}=" for known in OPTIONS if known.startswith(name)]
    option = OPTIONS.get(name)
    if option is None:
        return []
    values = ("on", "off") if option.kind == "bool" else option.choices
    return [f"{name}={value}" for value in values if f"{name}={value}".startswith(incomplete)]


def peers(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Peers of the benchmarks, except those before the last comma."""
    from broadleaf.bench.environments import PEERS

    before, comma, last = incomplete.rpartition(",")
    taken = before.split(",")
    return [f"{before}{comma}{name}" for name in PEERS if name.startswith(last) and name not in taken]
