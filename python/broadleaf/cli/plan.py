"""`broadleaf plan`."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import click

from broadleaf.cli.commands import require
from broadleaf.cli.console import console, fail, plain_table
from broadleaf.text import count, duration, parse_size, size

WAYS = {
    "flat": "the client sends everything to one host after another",
    "binomial": "every host that has all the data sends it to another that does not",
    "k-ary": "each host passes pieces on to k others while more arrive",
    "chain": "each host passes pieces on to the next one while more arrive",
    "scatter-allgather": "each host gets one piece, then all pass pieces round a ring",
    "round-optimal": "pieces are exchanged in the fewest rounds possible",
}
"""What each algorithm does, in words."""


def _size(ctx: click.Context, parameter: click.Parameter, text: str | None) -> int | None:
    if text is None:
        return None
    try:
        return parse_size(text)
    except ValueError as error:
        raise click.BadParameter(str(error), ctx, parameter) from None


@click.command("plan")
@click.option("--engines", "-n", type=click.IntRange(1, 10**9), required=True, metavar="N",
              help="Number of engines that get the same data.")  # fmt: skip
@click.option("--arity", type=click.IntRange(2, 10**6), default=2, show_default=True, metavar="K",
              help="Number of branches of the tree: each member passes the data to so many others.")  # fmt: skip
@click.option("--hosts", type=click.IntRange(1, 10**6), metavar="H", help="Number of hosts that the engines run on.")
@click.option("--bytes", "n_bytes", callback=_size, metavar="SIZE", help="Size of the data, such as 64MB.")
@click.option("--latency-us", type=click.FloatRange(0), default=100.0, show_default=True, metavar="A",
              help="Time that the smallest message takes from one host to another, in microseconds.")  # fmt: skip
@click.option("--gbit", type=click.FloatRange(0, min_open=True), default=10.0, show_default=True, metavar="G",
              help="Bandwidth of the network, in Gb/s.")  # fmt: skip
@click.option("--tables", is_flag=True, help="Show every depth and number of branches, with the formulas.")
@click.option("--plot", type=click.Path(file_okay=False, path_type=Path), metavar="DIR",
              help="Write figures to DIR, as PNG and SVG (needs matplotlib).")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print all numbers as one JSON object.")
def command(
    engines: int,
    arity: int,
    hosts: int | None,
    n_bytes: int | None,
    latency_us: float,
    gbit: float,
    tables: bool,
    plot: Path | None,
    as_json: bool,
) -> None:
    """Estimate what it costs to send the same data to N engines.

    A process sends one message after another, so if it sent to N engines by itself, the last one would wait for N
    sends. In a tree, engines that have the message pass it on at the same time. This shows how much that saves, and
    which tree is best. With --hosts and --bytes it shows how long large data takes to reach all hosts in each of
    several ways, and which of them Broadleaf chooses. Nothing is sent, and no cluster is needed.

    Examples: `broadleaf plan --engines 100`, `broadleaf plan -n 64 --hosts 16 --bytes 64MB --gbit 1`
    """
    if (hosts is None) != (n_bytes is None):
        raise click.UsageError("--hosts and --bytes must be used together", click.get_current_context())
    if plot is not None:
        require("plan", ("matplotlib",), "--plot")
    from broadleaf import plan
    from broadleaf.plan import tables as planned

    link = plan.Link.measured(latency_us, gbit)
    found = planned.everything(engines, arity, hosts, n_bytes, link)
    if as_json:
        click.echo(json.dumps(found, indent=1))
    elif tables:
        _show_tables(found)
    else:
        _show_ways(found, latency_us)
    if "transfer" in found and not as_json:
        _show_transfer(found["transfer"], engines, latency_us, gbit)
    if plot is not None:
        try:
            written = plan.draw(plot, engines, arity, hosts or 16, link)
        except ImportError as error:
            fail(str(error))
        for path in written:
            click.echo(path, err=as_json)


def _show_ways(found: dict[str, Any], latency_us: float) -> None:
    from broadleaf.plan import LANE_ENGINES

    engines = found["engines"]
    out = console()
    out.print(f"Sending a small message to {count(engines, 'engine')}", style="bold")
    columns = ("WHO SENDS", "LAST ONE WAITS FOR", "THAT IS", "MESSAGES", "")
    table = plain_table(columns, ("WHO SENDS", ""))
    direct = found["direct"]
    table.add_row("the client, to every engine", count(direct["sends"], "send"), _time(direct["sends"], latency_us),
                  f"{direct['messages']:,}", "")  # fmt: skip
    shown = [row for row in found["arities"] if row["depth"]]
    for row in shown:
        mark = "best tree" if row["best"] else ""
        name = f"a tree of {row['arity']} branches, {count(row['depth'], 'level')} deep"
        table.add_row(name, count(row["sends"], "send"), _time(row["sends"], latency_us), f"{row['messages']:,}", mark,
                      style="bold" if mark else None)  # fmt: skip
    ours = found["broadleaf"]
    where = count(ours["hosts"], "host") if ours["hosts"] else "one host"
    table.add_row(f"Broadleaf, engines on {where}", count(ours["sends"], "send"), _time(ours["sends"], latency_us),
                  f"{ours['messages']:,}", "")  # fmt: skip
    fewest = found["fewest_rounds"]
    table.add_row("every process that has it, to others", count(fewest, "send"), _time(fewest, latency_us),
                  f"{engines:,}", "the fewest possible")  # fmt: skip
    out.print(table)
    out.print(_verdict(found), markup=False)
    out.print()
    out.print("A send is one message from one process to another.")
    out.print(f"A process makes one send at a time, which takes {latency_us:g} us here (--latency-us).")
    if shown:
        out.print("In a tree of K branches, the client tells a first member, and each member tells K others.")
        out.print("The members on the last level tell the engines.")
    if -(-engines // max(ours["hosts"], 1)) >= LANE_ENGINES:
        out.print(f"From {LANE_ENGINES} on, engines of one host read the message in shared memory: one send wakes all.")
    if "transfer" not in found:
        out.print("Engines on one host share one copy of large data: to plan for that, give --hosts and --bytes.")
    out.print("--tables shows every depth, with the formulas.")


def _verdict(found: dict[str, Any]) -> str:
    best, direct = found["best"], found["direct"]["sends"]
    if best["sends"] >= direct or not best["depth"]:
        return "For so few engines, no tree of schedulers is faster than the client alone."
    sooner = direct / best["sends"]
    return f"With the best tree, the last engine gets the message {sooner:.1f} times sooner than from the client alone."


def _time(sends: int, latency_us: float) -> str:
    return duration(sends * latency_us / 1e6)


def _show_tables(found: dict[str, Any]) -> None:
    engines, arity, direct = found["engines"], found["arity"], found["direct"]
    published = arity == 2
    out = console()
    title = f"{count(engines, 'engine')}, {arity} branches at each scheduler: sends that the last engine waits for"
    out.print(title, style="bold")
    columns = ("DEPTH", "LEAVES", *(["PUBLISHED"] if published else []), "CORRECTED", "SENDS", "TO DIRECT", "MESSAGES")
    table = plain_table((*columns, ""), ("",))
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
    out.print(f"{count(engines, 'engine')}: the best depth for each number of branches", style="bold")
    table = plain_table(("ARITY", "OPTIMUM", "MINIMUM", "DEPTH", "SENDS", "MESSAGES", ""), ("",))
    for row in found["arities"]:
        table.add_row(
            str(row["arity"]),
            _two_digits(row["optimum_depth"]),
            _two_digits(row["min_sends"]),
            str(row["depth"]),
            f"{row['sends']:,}",
            f"{row['messages']:,}",
            "best" if row["best"] else "",
            style="bold" if row["best"] else None,
        )
    out.print(table)
    out.print(
        "arity: branches   depth: levels   leaves: schedulers on the last level   to direct: sends / direct sends"
    )
    out.print("optimum, minimum: the lowest point of the corrected formula, depth not rounded")
    out.print(
        f"if every process that has the message passed it on: {found['fewest_rounds']} sends; no tree needs fewer"
    )


def _show_transfer(found: dict[str, Any], engines: int, latency_us: float, gbit: float) -> None:
    out = console()
    out.print()
    hosts = count(found["hosts"], "host")
    title = f"Sending {size(found['bytes'])} to {hosts}, at {gbit:g} Gb/s with a latency of {latency_us:g} us"
    out.print(title, style="bold")
    columns = ("WAY", "LAST HOST AFTER", "PIECES", "OF", "CLIENT OUT", "HOST IN", "HOST OUT", "")
    table = plain_table(columns, ("WAY", ""))
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
            "chosen" if row["chosen"] else "" if row["runnable"] else "not used",
            style="bold" if row["chosen"] else None if row["runnable"] else "dim",
        )
    out.print(table)
    for row in found["algorithms"]:
        out.print(f"{row['algorithm']}: {WAYS[row['algorithm']]}", markup=False)
    out.print(f"No algorithm can be faster than {_exact(found['min_possible_s'])}.")
    out.print("HOST IN and HOST OUT are those of the busiest host; its engines share one copy.")
    out.print(f"Sending a copy for each of {count(engines, 'engine')} from the client would take "
              f"{size(found['direct_client_out_bytes'])}.")  # fmt: skip


def _two_digits(value: float) -> str:
    # Rounds halves up, as a reader would who checks 23.125 by hand.
    return f"{math.floor(value * 100 + 0.5) / 100:,.2f}"


def _exact(seconds: float) -> str:
    # Two algorithms may differ by a few percent, which takes more digits than durations usually show.
    if 1 <= seconds < 60:
        return f"{seconds:.3f} s"
    return f"{seconds * 1e3:.3g} ms" if 1e-3 <= seconds < 1 else duration(seconds)
