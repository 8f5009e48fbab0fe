"""The closing table: every figure beside ours."""

from collections.abc import Iterable
from typing import Any

from .environments import OURS, RAW
from .record import LESS_IS_BETTER, Record


def number(value: float | None) -> str:
    """Three significant digits, thousands separated."""
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def reference_values(records: Iterable[Record]) -> dict[tuple[str, ...], float]:
    """Our figure for each comparison: of the first of our modes and settings that was run."""
    found: dict[tuple[str, ...], float] = {}
    for r in records:
        if r.peer == OURS and r.median is not None:
            found.setdefault(r.key, r.median)
    return found


def ratio(record: Record, reference: dict[tuple[str, ...], float]) -> float | None:
    """How many times better ours is (below 1: how much worse); None where there is nothing to compare."""
    ours = reference.get(record.key)
    if ours is None or not ours or not record.median or record.peer == RAW:
        return None
    return record.median / ours if record.unit in LESS_IS_BETTER else ours / record.median


def rows(records: list[Record]) -> list[tuple[str, ...]]:
    """The table's cells: case, parameters, system, way, metric, median, spread, unit, ours against it."""
    reference = reference_values(records)
    order = list(dict.fromkeys(r.case for r in records))
    cells: list[tuple[str, ...]] = []
    for r in sorted(records, key=lambda r: order.index(r.case)):
        own = {k: v for k, v in r.params.items() if k in ("mode", "config") and v not in ("", "default")}
        shared = {k: v for k, v in r.params.items() if k not in ("mode", "config")}
        times = ratio(r, reference)
        cells.append(
            (
                r.case,
                " ".join(f"{k}={v}" for k, v in shared.items()),
                r.peer,
                ", ".join(str(v) for v in own.values()),
                r.metric,
                number(r.median),
                f"{number(min(r.values))} - {number(max(r.values))}" if r.values else (r.note or "")[:60],
                r.unit,
                "" if times is None else f"{times:.3g} x",
            )
        )
    return cells


def findings(records: list[Record]) -> list[str]:
    """The ratios within one run that the documentation's claims are about."""

    def value(**wanted: Any) -> float | None:
        for r in records:
            if all(
                {"peer": r.peer, "case": r.case, "metric": r.metric, **r.params}.get(k) == v for k, v in wanted.items()
            ):
                return r.median
        return None

    lines = []
    for metric in ("roundtrip_median", "roundtrip_p99"):
        plain = value(peer=RAW, case="raw_rtt", kind="unix", metric=metric)
        unix = value(peer=OURS, case="latency", config="unix", metric=metric)
        if plain and unix:
            lines.append(f"latency: {metric} is {unix / plain:.2f} x the raw unix-socket round trip of this run")
        tls = value(peer=OURS, case="latency", config="tcp + tls", metric=metric)
        if unix and tls:
            lines.append(f"latency: {metric} through TCP with TLS is {tls / unix:.2f} x that of the unix socket")
    copy = value(peer=RAW, case="raw_memcpy_many", metric="copy_time")
    returns = value(peer=OURS, case="send", metric="returns")
    if copy and returns:
        lines.append(f"send: the caller goes on after {returns / copy:.2f} x one warm memcpy of the same bytes")
    copies = value(peer=OURS, case="send", metric="copies")
    if copies is not None:
        lines.append(f"send: {copies:.2f} copies of the bytes were made in the client")
    lines += [
        f"overhead: throughput, {r.params['of']}: {r.median:.3f} ({min(r.values):.3f} to {max(r.values):.3f})"
        for r in records
        if r.metric == "rate_ratio"
    ]
    return lines


def show(records: list[Record]) -> None:
    """Prints the table and the findings on the terminal."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title="Medians; the last column says how many times better ours is", title_style="")
    for heading in ("case", "parameters", "system", "way", "metric"):
        table.add_column(heading, overflow="fold")
    for heading in ("median", "min - max", "unit", "ours"):
        table.add_column(heading, justify="right", overflow="fold")
    previous = ""
    for cells in rows(records):
        if previous and cells[0] != previous:
            table.add_section()
        previous = cells[0]
        table.add_row(*cells)
    console = Console()
    if not console.is_terminal:
        console.width = 180
    console.print(table)
    for text in findings(records):
        console.print(text)
