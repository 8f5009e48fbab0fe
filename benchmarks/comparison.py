"""Which systems take part in a measurement: the options that choose them, and the measurement with those chosen."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from broadleaf.bench.record import OURS, RAW
from broadleaf.bench.turn import Place, System
from broadleaf.cli.bench import Records, measure
from broadleaf.cli.commands import suggestion

from benchmarks import recorded
from benchmarks.environments import installed_in

if TYPE_CHECKING:
    from broadleaf.bench.cases import Case
    from click.shell_completion import CompletionItem


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
