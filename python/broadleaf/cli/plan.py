"""`broadleaf plan`."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import click

from broadleaf.cli.console import console, duration, fail


@click.command("plan")
@click.option("--engines", type=click.IntRange(1, 10**9), required=True, metavar="N", help="How many are told.")
@click.option("--arity", type=click.IntRange(2, 10**6), default=2, show_default=True, metavar="K",
              help="Branches at each scheduler.")  # fmt: skip
@click.option("--hosts", type=click.IntRange(1, 10**6), metavar="H", help="Hosts that a payload goes to.")
@click.option("--bytes", "n_bytes", type=click.IntRange(0), metavar="B", help="Bytes of the payload.")
@click.option("--latency-us", type=click.FloatRange(0), default=100.0, show_default=True, metavar="A",
              help="Latency of one hop between hosts, microseconds.")  # fmt: skip
@click.option("--gbit", type=click.FloatRange(0, min_open=True), default=10.0, show_default=True, metavar="G",
              help="Bandwidth of one hop, Gb/s.")  # fmt: skip
@click.option("--plot", type=click.Path(file_okay=False, path_type=Path), metavar="DIR",
              help="Draw figures into DIR, as PNG and SVG (needs matplotlib).")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="All numbers, as one JSON object.")
def command(
    engines: int,
    arity: int,
    hosts: int | None,
    n_bytes: int | None,
    latency_us: float,
    gbit: float,
    plot: Path | None,
    as_json: bool,
) -> None:
    """Show what telling N engines the same thing costs, and the best tree for it.

    With --hosts and --bytes, also how long a payload takes to all hosts by each algorithm, and which is chosen. Needs
    no cluster.
    """
    from broadleaf import plan
    from broadleaf.plan import tables

    if (hosts is None) != (n_bytes is None):
        raise click.UsageError("--hosts and --bytes belong together")
    link = plan.Link.measured(latency_us, gbit)
    found = tables.everything(engines, arity, hosts, n_bytes, link)
    if as_json:
        click.echo(json.dumps(found, indent=1))
    else:
        _show_sends(found)
        if "transfer" in found:
            _show_transfer(found["transfer"], latency_us, gbit)
    if plot is not None:
        try:
            written = plan.draw(plot, engines, arity, hosts or 16, link)
        except ImportError as error:
            fail(str(error))
        for path in written:
            click.echo(path, err=as_json)


def _table(*titles: str) -> Any:
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for title in titles:
        table.add_column(title, justify="left" if title in ("", "ALGORITHM") else "right")
    return table


def _show_sends(found: dict[str, Any]) -> None:
    engines, arity, direct = found["engines"], found["arity"], found["direct"]
    published = arity == 2
    out = console()
    title = f"{_engines(engines)}, {arity} branches at each scheduler: sends that the last engine waits for"
    out.print(title, style="bold")
    table = _table("DEPTH", "LEAVES", *(["PUBLISHED"] if published else []), "CORRECTED", "SENDS", "TO DIRECT",
                   "MESSAGES", "")  # fmt: skip
    for row in found["depths"]:
        mark = "best" if row["best"] else "best by the published formula" if row["published_best"] else ""
        table.add_row(
            str(row["depth"]),
            f"{row['leaves']:,}",
            *([_two_digits(row["published"])] if published else []),
            _two_digits(row["corrected"]),
            f"{row['sends']:,}",
            f"{row['to_direct']:.3f}",
            f"{row['messages']:,}",
            mark,
            style="bold" if row["best"] else None,
        )
    out.print(table)
    if published:
        out.print("published: 1 + 2^d + N/2^d   corrected: 1 + 2 d + N/2^d   sends: N/2^d rounded up")
    else:
        out.print(f"corrected: 1 + {arity} d + N/{arity}^d   sends: N/{arity}^d rounded up")
    out.print(f"direct: {direct['sends']:,} sends, {direct['messages']:,} messages")
    out.print()
    out.print(f"{_engines(engines)}: the best depth for each number of branches", style="bold")
    table = _table("ARITY", "OPTIMUM", "LEAST", "DEPTH", "SENDS", "MESSAGES", "")
    for row in found["arities"]:
        table.add_row(
            str(row["arity"]),
            _two_digits(row["optimum_depth"]),
            _two_digits(row["least"]),
            str(row["depth"]),
            f"{row['sends']:,}",
            f"{row['messages']:,}",
            "best" if row["best"] else "",
            style="bold" if row["best"] else None,
        )
    out.print(table)
    out.print("optimum, least: the lowest point of the corrected formula, depth not rounded")
    out.print(f"if everyone who has the message passed it on: {found['fewest_rounds']} sends; no scheme needs fewer")


def _show_transfer(found: dict[str, Any], latency_us: float, gbit: float) -> None:
    out = console()
    out.print()
    hosts = f"{found['hosts']:,} host{'' if found['hosts'] == 1 else 's'}"
    title = f"{size(found['bytes'])} to {hosts}, {latency_us:g} us and {gbit:g} Gb/s a hop"
    out.print(f"{title}: time until the last has it", style="bold")
    table = _table("ALGORITHM", "TIME", "SEGMENTS", "OF", "CLIENT SENDS", "A HOST GETS", "A HOST SENDS", "")
    for row in found["algorithms"]:
        name = row["algorithm"] if row["arity"] is None else f"{row['algorithm']}, k = {row['arity']}"
        table.add_row(
            name,
            _exact(row["seconds"]),
            f"{row['segments']:,}",
            size(row["segment_bytes"]),
            size(row["client_out_bytes"]),
            size(row["host_in_bytes"]),
            size(row["host_out_bytes"]),
            "chosen" if row["chosen"] else "" if row["runnable"] else "for comparison",
            style="bold" if row["chosen"] else None if row["runnable"] else "dim",
        )
    out.print(table)
    out.print(f"no way is faster than {_exact(found['least_possible_s'])}; a host: the one that gets or sends most")
    out.print(f"one copy to each engine from the client would be {size(found['direct_client_out_bytes'])}")


def _engines(count: int) -> str:
    return f"{count:,} engine{'' if count == 1 else 's'}"


def _two_digits(value: float) -> str:
    # Halves up, as a reader does who checks 23.125 by hand.
    return f"{math.floor(value * 100 + 0.5) / 100:,.2f}"


def _exact(seconds: float) -> str:
    # Two algorithms may differ by a few per cent: more digits than a duration for people has.
    if 1 <= seconds < 60:
        return f"{seconds:.3f} s"
    return f"{seconds * 1e3:.3g} ms" if 1e-3 <= seconds < 1 else duration(seconds)


def size(n_bytes: int) -> str:
    """Bytes in the decimal unit that leaves three digits."""
    value: float = n_bytes
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if value < 999.5 or unit == "TB":
            break
        value /= 1000
    return f"{value:.3g} {unit}"
