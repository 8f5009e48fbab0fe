"""`broadleaf bench movers`."""

from __future__ import annotations

from pathlib import Path

import click

from broadleaf.cli.bench.hosts import host_numbers
from broadleaf.cli.bench.output import Records, json_option, now, record_option, write_results
from broadleaf.cli.commands import require
from broadleaf.cli.console import TableCommand, console, fail, plain_table

# The payloads of Dagger's broadcast benchmark, and one that fits eight hosts of one machine.
_FORMS = "array 100,array 4000,array 10000,csc 0.0008,csc 0.008,csc 0.6"


def _explained() -> dict[str, str]:
    from broadleaf.bench.meanings import FIGURES

    return FIGURES["movers"]


def _movers(_context: click.Context, _parameter: click.Parameter, text: str) -> list[str]:
    from broadleaf.bench.hosts.by_mpi import MOVERS

    for payload in (names := text.split(",")):
        if payload not in MOVERS:
            raise click.BadParameter(f"{payload!r} is none of {', '.join(MOVERS)}")
    return names


def _show(records: Records, json_file: str | None) -> None:
    """All figures, and which way is the fastest."""
    records.show()
    if json_file == "-":
        return
    from broadleaf.bench.results import winners

    shown = plain_table(winners.TITLES, winners.LEFT)
    for cells in winners.rows(records.found, "last_host"):
        shown.add_row(*cells)
    console().print(shown)


@click.command("movers", cls=TableCommand, columns=_explained(), explained_as="Figures")
@click.option("--python", required=True, type=click.Path(exists=True, dir_okay=False), metavar="FILE",
              help="A Python with mpi4py and this Broadleaf, with MPICH's `mpiexec` beside it.")  # fmt: skip
@click.option("--hosts", "host_counts", default="2,4,8", show_default=True, callback=host_numbers, metavar="N,...",
              help="Numbers of hosts to measure with.")  # fmt: skip
@click.option("--data", "forms", default=_FORMS, show_default=True, metavar="FORM,...",
              help="What is sent: `array N` has N x N doubles; `csc D` is sparse, 10,000 x 10,000.")  # fmt: skip
@click.option("--movers", default="mpi,rma", show_default=True, callback=_movers, metavar="PAYLOAD,...",
              help="Movers to measure: values of the option `payload`.")  # fmt: skip
@click.option("--gbit", type=click.FloatRange(0, min_open=True), default=1.0, show_default=True, metavar="G",
              help="Bandwidth of each host's link, in Gb/s.")  # fmt: skip
@click.option("--repeats", type=click.IntRange(1), default=5, show_default=True, metavar="R", help="Rounds.")
def command(
    python: str,
    host_counts: list[int],
    forms: str,
    movers: list[str],
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
    require("bench", ("numpy", "scipy"), "`broadleaf bench movers`")
    from broadleaf.bench.hosts import by_mpi, network
    from broadleaf.bench.hosts.broadcast import progress
    from broadleaf.bench.results import machine

    if (reason := network.why_not()) is not None:
        fail(reason)
    records, began, facts = Records(json_file), now(), machine.facts(machine.ISOLATED)
    click.echo(machine.line(facts), err=True)
    try:
        for record in by_mpi.measure(
            host_counts, forms.split(","), movers, gbit, repeats, str(Path(python).absolute())
        ):
            click.echo(f"{record.params.get('mode', ''):<20} {progress(record)}", err=True)
            records.add(record)
    except (RuntimeError, TimeoutError) as error:
        # A host or a rank failed; what was measured before is not lost.
        _show(records, json_file)
        fail(str(error))
    _show(records, json_file)
    if results is not None:
        write_results(records, results, "movers", facts, began)


command.params += [json_option(), record_option()]
