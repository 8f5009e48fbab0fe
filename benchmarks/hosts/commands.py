"""`python -m benchmarks hosts` and `movers`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from bed import network
from broadleaf.cli.bench import Records, json_option
from broadleaf.cli.commands import require
from broadleaf.cli.console import TableCommand, complete_assignments, console, fail, plain_table
from broadleaf.text import parse_size

from benchmarks import recorded, winners
from benchmarks.hosts import broadcast, by_mpi
from benchmarks.isolation import ISOLATED

if TYPE_CHECKING:
    from broadleaf.bench.record import Record

# The payloads of Dagger's broadcast benchmark, and one that fits eight hosts of one machine.
_FORMS = "array 100,array 4000,array 10000,csc 0.0008,csc 0.008,csc 0.6"
_SIZES = "1kB,100kB,1MB,16MB,64MB"
_TOPOLOGIES = ("auto", "flat", "binomial", "k-ary", "chain")
_OF_HOSTS = {
    "link_latency": "half of the least round trip to any host, before the first broadcast",
    "last_engine": "time from the call until the last engine has the data",
    "bytes_into_host": "what came in over the busiest host's link, in copies of the data",
    "of_best_plan": "time with the topology that was chosen over that with the best forced one",
    "of_chain_model": "time with the topology that was chosen over what `broadleaf plan` computes for a chain",
    "raw_chain": "time of the same bytes through the same hosts in a row with bare sockets",
    "of_raw_chain": "time with the topology that was chosen over that",
    "small_task": "round trip of an empty task, alone and beside a broadcast of 1 GB",
    "small_task_of_idle": "the latter over the former",
}
_OF_MOVERS = {
    "last_host": "time until every host has the data in its array: a whole `push` of Broadleaf, or the call of MPI",
    "of_tcp": "that time over the time of Broadleaf's TCP connections in the same rounds, with its 95 % interval",
    "bytes_into_host": "what came in over the busiest host's link, in copies of the data",
}


def host_numbers(ctx: click.Context, parameter: click.Parameter, text: str) -> list[int]:
    """Numbers of hosts, from a list with commas."""
    try:
        found = [int(number) for number in text.split(",")]
    except ValueError:
        raise click.BadParameter(f"{text!r} is not a list of numbers such as 2,4,8", ctx, parameter) from None
    if min(found) < 1:
        raise click.BadParameter(f"{text!r}: there must be at least 1 host", ctx, parameter)
    return found


def _sizes(ctx: click.Context, parameter: click.Parameter, text: str) -> list[int]:
    try:
        return [parse_size(size) for size in text.split(",")]
    except ValueError as error:
        raise click.BadParameter(str(error), ctx, parameter) from None


def _topologies(ctx: click.Context, parameter: click.Parameter, text: str) -> list[str]:
    found = text.split(",")
    for topology in found:
        if topology.partition(":")[0] not in _TOPOLOGIES:
            raise click.BadParameter(
                f"unknown topology {topology!r}; there are {', '.join(_TOPOLOGIES)}", ctx, parameter
            )
    return found


def _options(ctx: click.Context, parameter: click.Parameter, texts: tuple[str, ...]) -> dict[str, Any]:
    found = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            raise click.BadParameter(f"{text!r} is not NAME=VALUE", ctx, parameter)
        found[name] = value
    from broadleaf import config

    try:
        config.resolve(found)
    except config.ConfigError as error:
        raise click.BadParameter(str(error), ctx, parameter) from None
    return found


@click.command("hosts", cls=TableCommand, columns=_OF_HOSTS, explained_as="Figures")
@click.option("--hosts", "host_counts", default="2,4,8,16", show_default=True, callback=host_numbers, metavar="N,...",
              help="Numbers of hosts to measure with.")  # fmt: skip
@click.option("--engines", "-n", type=click.IntRange(1), default=4, show_default=True, metavar="N",
              help="Engines of each host.")  # fmt: skip
@click.option("--sizes", default=_SIZES, show_default=True, callback=_sizes, metavar="SIZE,...",
              help="Sizes of the data, in bytes or with a unit.")  # fmt: skip
@click.option("--topologies", default=",".join(_TOPOLOGIES), show_default=True, callback=_topologies,
              metavar="TOPOLOGY,...", help="Topologies to compare; `auto` is Broadleaf's own choice.")  # fmt: skip
@click.option("--gbit", type=click.FloatRange(0, min_open=True), default=1.0, show_default=True, metavar="G",
              help="Bandwidth of each host's link, in Gb/s.")  # fmt: skip
@click.option("--repeats", type=click.IntRange(1), default=5, show_default=True, metavar="R",
              help="Rounds; five times as many up to 1 MB.")  # fmt: skip
@click.option("--option", "-o", "options", multiple=True, metavar="NAME=VALUE", callback=_options,
              shell_complete=complete_assignments, help="Set an option of the cluster. May be repeated.")  # fmt: skip
@click.option("--small-task", is_flag=True, help="Also measure a small task beside a broadcast of 1 GB.")
def hosts(
    host_counts: list[int],
    engines: int,
    sizes: list[int],
    topologies: list[str],
    gbit: float,
    repeats: int,
    options: dict[str, Any],
    small_task: bool,
    json_file: str | None,
    results: Path | None,
) -> None:
    """Measure broadcasts to several hosts, made of network namespaces (needs root).

    The hosts are network namespaces of this machine, with links of limited bandwidth; they are removed at the end.
    Every topology alternates with the one that Broadleaf chooses.
    """
    require("bench", ("numpy",), "`python -m benchmarks hosts`")
    measured = broadcast.measure_hosts(host_counts, engines, sizes, topologies, gbit, repeats, options, small_task)
    _measure("hosts", measured, Records.show, json_file, results)


hosts.params += [json_option(), recorded.option()]


def _movers(_context: click.Context, _parameter: click.Parameter, text: str) -> list[str]:
    for payload in (names := text.split(",")):
        if payload not in by_mpi.MOVERS:
            raise click.BadParameter(f"{payload!r} is none of {', '.join(by_mpi.MOVERS)}")
    return names


def _show_with_winners(records: Records) -> None:
    """All figures, and which way is the fastest."""
    records.show()
    if not records.for_people():
        return
    shown = plain_table(winners.TITLES, winners.LEFT)
    for cells in winners.rows(records.found, "last_host"):
        shown.add_row(*cells)
    console().print(shown)


@click.command("movers", cls=TableCommand, columns=_OF_MOVERS, explained_as="Figures")
@click.option("--python", required=True, type=click.Path(exists=True, dir_okay=False), metavar="FILE",
              help="A Python with mpi4py and this Broadleaf, with MPICH's `mpiexec` beside it.")  # fmt: skip
@click.option("--hosts", "host_counts", default="2,4,8", show_default=True, callback=host_numbers, metavar="N,...",
              help="Numbers of hosts to measure with.")  # fmt: skip
@click.option("--data", "forms", default=_FORMS, show_default=True, metavar="FORM,...",
              help="What is sent: `array N` has N x N doubles; `csc D` is sparse, 10,000 x 10,000.")  # fmt: skip
@click.option("--movers", "payloads", default="mpi,rma", show_default=True, callback=_movers, metavar="PAYLOAD,...",
              help="Movers to measure: values of the option `payload`.")  # fmt: skip
@click.option("--gbit", type=click.FloatRange(0, min_open=True), default=1.0, show_default=True, metavar="G",
              help="Bandwidth of each host's link, in Gb/s.")  # fmt: skip
@click.option("--repeats", type=click.IntRange(1), default=5, show_default=True, metavar="R", help="Rounds.")
def movers(
    python: str,
    host_counts: list[int],
    forms: str,
    payloads: list[str],
    gbit: float,
    repeats: int,
    json_file: str | None,
    results: Path | None,
) -> None:
    """Compare broadcasts over TCP and by movers with those of MPI itself (needs root).

    The hosts are network namespaces of this machine, with links of limited bandwidth; they are removed at the end. Each
    way overwrites an array that is already on every host, and all ways take turns. The last table names the fastest
    way. Data that does not fit into memory is left out.
    """
    require("bench", ("numpy", "scipy"), "`python -m benchmarks movers`")
    measured = by_mpi.measure(host_counts, forms.split(","), payloads, gbit, repeats, str(Path(python).absolute()))
    _measure("movers", measured, _show_with_winners, json_file, results)


movers.params += [json_option(), recorded.option()]


def _measure(
    name: str, measured: Iterator[Record], show: Callable[[Records], None], json_file: str | None, results: Path | None
) -> None:
    """Takes the records as they are measured, says so, and shows them all."""
    if (reason := network.why_not()) is not None:
        fail(reason)
    records = Records(json_file, ISOLATED)
    records.name_machine()
    try:
        for record in measured:
            way = f"{record.params['mode']:<20} " if "mode" in record.params else ""
            click.echo(f"{way}{broadcast.progress(record)}", err=True)
            records.add(record)
    except (RuntimeError, TimeoutError) as error:
        # A host, a link or a rank failed; what was measured before is not lost.
        show(records)
        fail(str(error))
    show(records)
    if results is not None:
        recorded.record(records, results, name)
