"""`python -m benchmarks`: Broadleaf beside other libraries, on hosts in namespaces, and on the hosts of a site."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import click
from broadleaf.bench.turn import SYSTEMS
from broadleaf.cli.bench import BenchGroup, Records, case_command
from broadleaf.cli.commands import EntryCommand, missing_modules
from broadleaf.cli.console import fail

from benchmarks import recorded
from benchmarks.comparison import against_option, environments_option, measure_systems, only_peers_option
from benchmarks.environments import PEERS
from benchmarks.isolation import Isolated

if TYPE_CHECKING:
    from broadleaf.bench.cases import Case

HOSTS = "hosts"
CLUSTERS = "clusters"
MOVERS = "movers"
CORE = "core"


class BenchmarksGroup(EntryCommand, BenchGroup):
    """The cases of `broadleaf bench` beside other libraries, and commands that need more than one host."""

    program: ClassVar[str] = "python -m benchmarks"

    def texts(self) -> dict[str, str]:
        return {
            **super().texts(),
            HOSTS: "Measure broadcasts to several hosts, made of network namespaces (needs root).",
            CLUSTERS: "Measure the start of engines on the hosts of a site, by Slurm and SSH.",
            MOVERS: "Compare broadcasts over TCP and by movers with those of MPI itself (needs root).",
            CORE: "Measure what the controller's decisions cost by the number of engines (needs cargo).",
        }

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name == CLUSTERS:
            from benchmarks.sites.command import command

            return command
        if cmd_name == CORE:
            from benchmarks.core import command

            return command
        if cmd_name in (HOSTS, MOVERS):
            from benchmarks.hosts import commands

            return commands.hosts if cmd_name == HOSTS else commands.movers
        return super().get_command(ctx, cmd_name)

    def case_command(self, name: str, text: str) -> click.Command:
        plot = click.Option(["--plot"], type=click.Path(file_okay=False, path_type=Path), metavar="DIR",
                            help="Write figures to DIR, as PNG and SVG (needs matplotlib).")  # fmt: skip
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
