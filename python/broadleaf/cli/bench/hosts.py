"""`broadleaf bench hosts`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from broadleaf.cli.bench.output import Records, json_option, now, record_option, write_results
from broadleaf.cli.commands import require
from broadleaf.cli.console import TableCommand, complete_assignments, fail
from broadleaf.text import parse_size

_SIZES = "1kB,100kB,1MB,16MB,64MB"
_TOPOLOGIES = ("auto", "flat", "binomial", "k-ary", "chain")


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
                f"no topology is called {topology!r}; there are {', '.join(_TOPOLOGIES)}", ctx, parameter
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


def _explained() -> dict[str, str]:
    from broadleaf.bench.meanings import FIGURES

    return FIGURES["hosts"]


@click.command("hosts", cls=TableCommand, columns=_explained(), explained_as="Figures")
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
def command(
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
    require("bench", ("numpy",), "`broadleaf bench hosts`")
    from broadleaf.bench.hosts import broadcast as hosts
    from broadleaf.bench.hosts import network
    from broadleaf.bench.results import machine

    if (reason := network.why_not()) is not None:
        fail(reason)
    records, began, facts = Records(json_file), now(), machine.facts(machine.ISOLATED)
    click.echo(machine.line(facts), err=True)
    try:
        for record in hosts.measure_hosts(host_counts, engines, sizes, topologies, gbit, repeats, options, small_task):
            click.echo(hosts.progress(record), err=True)
            records.add(record)
    except (RuntimeError, TimeoutError) as error:
        # A host or a link failed; what was measured before is not lost.
        records.show()
        fail(str(error))
    records.show()
    if results is not None:
        write_results(records, results, "hosts", facts, began)


command.params += [json_option(), record_option()]
