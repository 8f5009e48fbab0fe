"""`python -m benchmarks`: Broadleaf beside other libraries, on hosts in namespaces, and on the hosts of a site."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import click
from broadleaf.bench.record import OURS, RAW
from broadleaf.bench.turn import SYSTEMS, Place, System
from broadleaf.cli.bench import BenchGroup, Records, case_command, measure
from broadleaf.cli.commands import EntryCommand, missing_modules, suggestion
from broadleaf.cli.console import fail

from benchmarks import recorded
from benchmarks.environments import PEERS, installed_in
from benchmarks.isolation import Isolated

if TYPE_CHECKING:
    from broadleaf.bench.cases import Case
    from click.shell_completion import CompletionItem

HOSTS = "hosts"
CLUSTERS = "clusters"
MOVERS = "movers"


class BenchmarksGroup(EntryCommand, BenchGroup):
    """The cases of `broadleaf bench` beside other libraries, and commands that need more than one host."""

    program: ClassVar[str] = "python -m benchmarks"

    def texts(self) -> dict[str, str]:
        return {
            **super().texts(),
            HOSTS: "Measure broadcasts to several hosts, made of network namespaces (needs root).",
            CLUSTERS: "Measure the start of engines on the hosts of a site, by Slurm and SSH.",
            MOVERS: "Compare broadcasts over TCP and by movers with those of MPI itself (needs root).",
        }

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name == CLUSTERS:
            from benchmarks.sites.command import command

            return command
        if cmd_name in (HOSTS, MOVERS):
            from benchmarks.hosts import commands

            return commands.hosts if cmd_name == HOSTS else commands.movers
        return super().get_command(ctx, cmd_name)

    def case_command(self, name: str, text: str) -> click.Command:
        plot = click.Option(["--plot"], type=click.Path(file_okay=False, path_type=Path), metavar="DIR",
                            help="Draw figures into DIR, as PNG and SVG (needs matplotlib).")  # fmt: skip
        added = [against_option(list(PEERS)), only_peers_option(), recorded.option(), plot, environments_option()]
        return case_command(name, text, added, measure_beside_peers)


@click.group("benchmarks", cls=BenchmarksGroup, subcommand_metavar="CASE [OPTIONS]")
def group(**_: Any) -> None:
    """Measure Broadleaf, alone or beside other libraries.

    All systems alternate within one run, so that a slow minute of the machine affects all of them. Progress goes to
    standard error, and the table at the end to standard output.

    Examples: `python -m benchmarks latency`, `python -m benchmarks throughput --against ppe --repeats 5`,
    `python -m benchmarks all --quick --against ppe`
    """


def against_option(peers: Sequence[str]) -> click.Option:
    """The option that names systems from `peers` to measure beside Broadleaf."""

    def known(ctx: click.Context, parameter: click.Parameter, text: str) -> list[str]:
        named = [name.strip() for name in text.split(",") if name.strip()]
        for name in named:
            if name not in peers:
                said = f"no peer is called {name!r}; there are {', '.join(peers)}.{suggestion(name, list(peers))}"
                raise click.BadParameter(said, ctx, parameter)
        return named

    return click.Option(["--against"], default="", metavar="PEERS", callback=known, shell_complete=_offered(peers),
                        help=f"Other libraries to measure, separated by commas: {', '.join(peers)}. Each is "
                             f"installed into an environment of its own when it is first used.")  # fmt: skip


def _offered(
    peers: Sequence[str],
) -> Callable[[click.Context, click.Parameter, str], list[CompletionItem] | list[str]]:
    def complete(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem] | list[str]:
        """Peers, except those before the last comma."""
        before, comma, last = incomplete.rpartition(",")
        taken = before.split(",")
        return [f"{before}{comma}{name}" for name in peers if name.startswith(last) and name not in taken]

    return complete


def only_peers_option() -> click.Option:
    """The option that leaves Broadleaf out."""
    return click.Option(["--only-peers"], is_flag=True, help="Leave Broadleaf itself out.")


def environments_option() -> click.Option:
    """The option that says where other systems are installed."""
    return click.Option(["--environments"], type=click.Path(file_okay=False, path_type=Path), metavar="DIR",
                        default=Path(".bench-venvs"), show_default=True,
                        help="Directory for the environments of other libraries.")  # fmt: skip


def measure_beside_peers(
    name: str, cases: list[Case], against: list[str], only_peers: bool, results: Path | None, plot: Path | None,
    environments: Path, **options: Any
) -> Records:  # fmt: skip
    """Measures cases with the systems that take part, draws their figures and records them, as far as requested."""
    if plot is not None and missing_modules(("matplotlib",)):
        fail("--plot needs matplotlib, which is not installed")
    records = measure_systems(name, cases, lambda case: SYSTEMS | PEERS, against, only_peers, results, environments,
                              Isolated(), **options)  # fmt: skip
    if plot is not None:
        from benchmarks import plots

        for path in plots.draw(records.found, plot):
            click.echo(path, err=not records.for_people())
    return records


def measure_systems(
    name: str, cases: list[Case], known: Callable[[Case], Mapping[str, System]], against: list[str], only_peers: bool,
    results: Path | None, environments: Path, place: Place, **options: Any
) -> Records:  # fmt: skip
    """Measures cases with those of the known systems that take part, and records the figures if requested."""

    def systems(case: Case) -> dict[str, System]:
        of_case = known(case)
        taking_part = [RAW, *([] if only_peers else [OURS]), *against]
        return {peer: installed_in(environments, of_case[peer]) for peer in taking_part}

    records = measure(cases, systems, place=place, **options)
    if results is not None:
        recorded.record(records, results, name)
    return records
