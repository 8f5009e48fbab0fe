"""`broadleaf bench CASE`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from broadleaf.cli.bench.output import Records, json_option, now, record_option, write_results
from broadleaf.cli.commands import missing_modules, require, suggestion
from broadleaf.cli.console import TableCommand, complete_peers, fail

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from broadleaf.bench.cases import Case
    from broadleaf.bench.peers.site import Site

    Complete = Callable[[click.Context, click.Parameter, str], list[CompletionItem] | list[str]]

_ALL = "all"


def case_command(name: str, text: str) -> click.Command:
    """The command of a case, or of all."""
    from broadleaf.bench.cases import CASES
    from broadleaf.bench.environments import PEERS
    from broadleaf.bench.meanings import FIGURES

    def callback(**options: Any) -> None:
        _measure(name, [CASES[name]] if name != _ALL else list(CASES.values()), **options)

    parameters: list[click.Parameter] = [
        against_option(PEERS, complete_peers),
        only_peers_option(),
        click.Option(["--engines", "-n"], type=click.IntRange(1), default=4, show_default=True, metavar="N",
                     help="Number of workers of every system, unless the case sets it."),
        repeats_option(),
        quick_option(),
        json_option(),
        record_option(),
        click.Option(["--plot"], type=click.Path(file_okay=False, path_type=Path), metavar="DIR",
                     help="Draw figures into DIR, as PNG and SVG (needs matplotlib)."),
        environments_option(),
    ]  # fmt: skip
    explained = FIGURES.get(name, {})
    return TableCommand(name, params=parameters, callback=callback, help=text, columns=explained,
                        explained_as="Figures")  # fmt: skip


def against_option(peers: Sequence[str], complete: Complete | None = None) -> click.Option:
    """The option that names systems from `peers` to measure beside Broadleaf."""

    def known(ctx: click.Context, parameter: click.Parameter, text: str) -> list[str]:
        named = [name.strip() for name in text.split(",") if name.strip()]
        for name in named:
            if name not in peers:
                said = f"no peer is called {name!r}; there are {', '.join(peers)}.{suggestion(name, list(peers))}"
                raise click.BadParameter(said, ctx, parameter)
        return named

    return click.Option(["--against"], default="", metavar="PEERS", callback=known, shell_complete=complete,
                        help=f"Other libraries to measure, separated by commas: {', '.join(peers)}. Each is "
                             f"installed into an environment of its own when it is first used.")  # fmt: skip


def only_peers_option() -> click.Option:
    """The option that leaves Broadleaf out."""
    return click.Option(["--only-peers"], is_flag=True, help="Leave Broadleaf itself out.")


def repeats_option() -> click.Option:
    """The option that says how often every system takes its turn."""
    return click.Option(["--repeats"], type=click.IntRange(1), metavar="R",
                        help="Rounds in which each system runs once.  [default: 5; 2 with --quick]")  # fmt: skip


def quick_option() -> click.Option:
    """The option that only shows that a benchmark runs."""
    return click.Option(["--quick"], is_flag=True,
                        help="Do little work in few rounds, to show that it runs rather than how fast.")  # fmt: skip


def environments_option() -> click.Option:
    """The option that says where other systems are installed."""
    return click.Option(["--environments"], type=click.Path(file_okay=False, path_type=Path), metavar="DIR",
                        default=Path(".bench-venvs"), show_default=True,
                        help="Directory for the environments of other libraries.")  # fmt: skip


def _measure(
    name: str, cases: list[Case], against: list[str], only_peers: bool, plot: Path | None, **options: Any
) -> None:
    from broadleaf.bench.environments import OURS
    from broadleaf.bench.results.machine import ISOLATED
    from broadleaf.bench.turn import isolation

    if plot is not None:
        require("bench", ("matplotlib",), "--plot")
    if len(cases) == 1 and cases[0].needs_numpy:
        require("bench", ("numpy",), f"`broadleaf bench {cases[0].name}`")
    taking_part = ([] if only_peers else [OURS]) + against
    records = measure(name, cases, taking_part, ISOLATED if isolation() else "none", **options)
    if plot is not None:
        from broadleaf.bench.results import plots

        for path in plots.draw(records.found, plot):
            click.echo(path, err=options["json_file"] == "-")
    if not records.any_figure():
        fail("nothing could be measured")


def measure(
    name: str,
    cases: list[Case],
    systems: Sequence[str],
    isolation: str,
    *,
    engines: int,
    repeats: int | None,
    quick: bool,
    json_file: str | None,
    results: Path | None,
    environments: Path,
    site: Site | None = None,
) -> Records:
    """Runs the cases, shows their figures, and writes them if requested."""
    from broadleaf.bench.environments import OURS, RAW
    from broadleaf.bench.results import machine
    from broadleaf.bench.runner import Run

    records, began, facts = Records(json_file), now(), machine.facts(isolation)
    say(machine.line(facts))
    for case in cases:
        if case.needs_numpy and missing_modules(("numpy",)):
            say(f"{case.name} is left out: it needs numpy (pip install 'broadleaf[bench]')")
            continue
        say(f"{case.name}: {case.meaning}")
        partners = [] if case.name == RAW else [system for system in systems if system == OURS or not case.only_ours]
        rounds = repeats or (2 if quick else 5)
        run = Run(case, partners, environments.resolve(), engines, rounds, quick, say, site)
        for record in run.records():
            records.add(record)
    records.show()
    if results is not None:
        write_results(records, results, name, facts, began)
    return records


def say(text: str) -> None:
    """Reports progress, separately from the result."""
    click.echo(text, err=True)
