"""What commands share: choosing a cluster, tables, how engines died, and completion of values in the shell."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NoReturn, TypeVar

import click

from broadleaf.errors import DeathCertificate
from broadleaf.text import duration

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem
    from rich.console import Console

    from broadleaf.cluster import Cluster
    from broadleaf.cluster.control import ControlLink
    from broadleaf.cluster.engine_sets import Block


# Shell completion for the values of options: profiles, clusters, options, and the peers of benchmarks.


def complete_profiles(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Profiles that have been used on this host."""
    from broadleaf.state.directories import base_dir

    return sorted(path.name for path in base_dir().glob("profiles/*") if path.name.startswith(incomplete))


def complete_cluster_ids(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Running clusters in the profile that the command names."""
    from click.shell_completion import CompletionItem

    from broadleaf.state.files import running_clusters

    profile = ctx.params.get("profile") or "default"
    return [
        CompletionItem(cluster_id, help=f"profile {of}")
        for of, cluster_id in running_clusters()
        if of == profile and cluster_id.startswith(incomplete)
    ]


def complete_options(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Names of options."""
    from click.shell_completion import CompletionItem

    from broadleaf.config import OPTIONS

    return [
        CompletionItem(name, help=option.meaning) for name, option in OPTIONS.items() if name.startswith(incomplete)
    ]


def complete_assignments(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
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


# What all commands share: choosing a cluster, and how things look on a terminal.


_Command = TypeVar("_Command", bound=Callable[..., Any])
# Wide enough for every line of a table: readers of a pipe or a file do not want wrapped lines.
_PIPE_COLUMNS = 500


class TableCommand(click.Command):
    """A command that prints a table; its help explains the columns, or whatever `explained_as` names."""

    def __init__(
        self, *arguments: Any, columns: Mapping[str, str], explained_as: str = "Columns", **options: Any
    ) -> None:
        super().__init__(*arguments, **options)
        self.columns = columns
        self.explained_as = explained_as

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        if self.columns:
            with formatter.section(self.explained_as):
                formatter.write_dl(list(self.columns.items()))
        super().format_epilog(ctx, formatter)


def fail(message: str) -> NoReturn:
    """Ends the command with an error and code 1."""
    raise click.ClickException(message)


def _checked(kind: str) -> Callable[[click.Context, click.Parameter, str | None], str | None]:
    def check(ctx: click.Context, parameter: click.Parameter, name: str | None) -> str | None:
        from broadleaf.state.files import check_id

        if name is None:
            return None
        try:
            return check_id(kind, name)
        except ValueError as error:
            raise click.BadParameter(str(error), ctx, parameter) from None

    return check


checked_cluster_id: Callable[[click.Context, click.Parameter, str | None], str | None] = _checked("cluster id")
_checked_profile = _checked("profile")


def profile_option(command: _Command) -> _Command:
    """The option that chooses a profile."""
    option = click.option("--profile", default="default", show_default=True, metavar="NAME", callback=_checked_profile,
                          shell_complete=complete_profiles, help="Profile of the cluster.")  # fmt: skip
    return option(command)


def any_profile_option(command: _Command) -> _Command:
    """The option that restricts a command to one profile."""
    return click.option("--profile", metavar="NAME", callback=_checked_profile, shell_complete=complete_profiles,
                        help="Only clusters of this profile.")(command)  # fmt: skip


def cluster_options(command: _Command) -> _Command:
    """The options that choose a running cluster."""
    command = profile_option(command)
    option = click.option(
        "--cluster-id",
        metavar="ID",
        callback=checked_cluster_id,
        shell_complete=complete_cluster_ids,
        help="Id of the cluster. Not needed if only one is running.",
    )
    return option(command)


def anywhere_option(command: _Command) -> _Command:
    """The option that names a cluster on another host, of commands that only look."""
    option = click.option("--cluster", "url", metavar="URL", callback=_checked_url,
                          help="Cluster on another host, over SSH: ssh://[USER@]HOST[/PROFILE[/ID]].")  # fmt: skip
    return option(command)


def _checked_url(ctx: click.Context, parameter: click.Parameter, url: str | None) -> str | None:
    from broadleaf.client import tunnel

    try:
        if url is not None:
            tunnel.parse(url)
    except ValueError as error:
        raise click.BadParameter(str(error), ctx, parameter) from None
    return url


@contextmanager
def far_control(url: str) -> Iterator[ControlLink]:
    """A connection for requests to a cluster on another host."""
    from broadleaf.client.tunnel import Tunnel, parse
    from broadleaf.cluster.control import ControlLink

    tunnel = Tunnel(parse(url))
    try:
        with ControlLink(json.dumps(tunnel.connection), tunnel.left_s()) as control:
            yield control
    finally:
        tunnel.close()


def chosen_cluster(profile: str, cluster_id: str | None) -> Cluster:
    """The selected running cluster; the error lists the running ones."""
    from broadleaf.cluster import ClusterManager

    running = {c.cluster_id: c for c in ClusterManager().load_clusters(profile).values()}
    if cluster_id is not None:
        if cluster_id in running:
            return running[cluster_id]
        from broadleaf.state.files import no_such_cluster

        fail(no_such_cluster(profile, cluster_id))
    if not running:
        from broadleaf.state.files import no_such_cluster

        fail(no_such_cluster(profile))
    if len(running) == 1:
        return next(iter(running.values()))
    if "default" in running:
        return running["default"]
    fail(f"several clusters are running; choose one with --cluster-id: {', '.join(running)}")


def look_in_working_directory() -> None:
    """Makes engines look for modules where the command is run, instead of in its script's folder."""
    if not sys.flags.safe_path:
        sys.path[0] = os.getcwd()


def console() -> Console:
    """A rich console for standard output; without colours into a pipe or file, or where NO_COLOR is set."""
    from rich.console import Console

    class PipeConsole(Console):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError

    width = None if sys.stdout.isatty() else _PIPE_COLUMNS
    color_system: Literal["auto"] | None = None if os.environ.get("NO_COLOR") else "auto"
    return PipeConsole(highlight=False, width=width, color_system=color_system)


def add_plain_row(table: Any, *cells: str) -> None:
    """Adds a row in which brackets are text: users may name things `[design]`."""
    from rich.text import Text

    table.add_row(*map(Text, cells))


def plain_table(columns: Iterable[str], left: Iterable[str]) -> Any:
    """A table without lines; the columns named in `left` are left-aligned, all others right-aligned."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for title in columns:
        table.add_column(title, justify="left" if title in left else "right")
    return table


# How engines died, in words: for every command that shows engines.


_OUTPUT_LINES = 10
_ADVICE = (
    "cluster.restart_engines_sync() and rc.shutdown(restart=True) restart engines that died; a cluster with the option "
    "restart_engines=True does so by itself."
)


@dataclass(frozen=True)
class LastDeath:
    """The last death in an engine's slot."""

    engine: int
    sentence: str
    """Which process died, how and when."""
    last_output: str
    is_over: bool
    """Whether another process has taken the place."""
    advice: str
    """What brings another process into the place; '' where somebody had it stopped."""


def add_block_ends(status: Mapping[str, Any], blocks: Sequence[Block]) -> None:
    """Adds to the deaths of engines why the job of their host has ended, if nobody here has ended it."""
    from broadleaf.cluster.engine_sets.base import block_and_life

    ended = {block.id: block for block in blocks if block.is_over and not block.is_released}
    for engine in status["engines"]:
        death = engine["last_death"]
        if death is not None and (owner := block_and_life(death["host"], ended)) is not None:
            death["block_end"] = owner[0].reason


def last_death(status: Mapping[str, Any], engine_id: int) -> LastDeath | None:
    """What a status says about the last death of an engine; None if it never died.

    A requested stop is no news once another process has taken the slot.
    """
    entries = (entry for entry in status["engines"] if entry["engine"] == engine_id)
    return next((_of_engine(entry) for entry in entries), None)


def _of_engine(entry: Mapping[str, Any]) -> LastDeath | None:
    death, is_over = entry["last_death"], entry["up"]
    if death is None or (death["cause"] == "stopped" and is_over):
        return None
    engine: int = entry["engine"]
    certificate = DeathCertificate(engine, **{name: value for name, value in death.items() if name != "ago_s"})
    host = f" on {certificate.host}" if certificate.host else ""
    since = ", and was restarted" if is_over else ""
    if certificate.cause == "not_started":
        sentence = f"engine {engine} {certificate.reason} ({duration(death['ago_s'])} ago)"
        return None if is_over else LastDeath(engine, sentence, "", is_over, _ADVICE)
    sentence = (
        f"engine {engine} (pid {certificate.pid}{host}) {certificate.reason}, {duration(death['ago_s'])} ago{since}"
    )
    return LastDeath(engine, sentence, certificate.last_output, is_over, _advice(certificate))


def _advice(certificate: DeathCertificate) -> str:
    if certificate.is_with_host:
        return certificate.advice
    return "" if certificate.cause == "stopped" else _ADVICE


def deaths_text(status: Mapping[str, Any]) -> str:
    """Everything that a status says about how engines died; empty if none did."""
    deaths = [death for entry in status["engines"] if (death := _of_engine(entry)) is not None]
    parts: list[str] = []
    for death in deaths:
        lines = death.last_output.strip().splitlines()[-_OUTPUT_LINES:]
        parts.append(f"{death.sentence}. Its last output:" if lines else f"{death.sentence}.")
        parts += [f"  | {line}" for line in lines]
    parts += dict.fromkeys(death.advice for death in deaths if death.advice and not death.is_over)
    return "\n".join(parts)
