"""The closing table: every figure beside ours, in readable units."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from broadleaf.text import number, readable_unit, size

from . import scale, sizes
from .record import LESS_IS_BETTER, OURS, RAW, Record

TITLES = ("OF", "SYSTEM", "WAY", "FIGURE", "MEDIAN", "MIN TO MAX", "BROADLEAF IS")
LEFT = TITLES[:4]
_SKIPPED = "skipped"
# A system's own choices, which do not prevent comparison.
_OWN = ("mode", "config")
_UNIT_WORDS = {"ratio": "", "payloads": "x the data", "copies": "x the data", "payload MB": "MB"}
_WORDS: dict[str, Callable[[Any], str]] = {
    "workers": lambda n: f"{n} workers" if n != 1 else "1 worker",
    "engines": lambda n: f"{n} engines each" if n != 1 else "1 engine each",
    "hosts": lambda n: f"{n} hosts" if n != 1 else "1 host",
    "gbit": lambda gbit: f"{gbit:g} Gb/s",
    "n": lambda n: f"n = {n:,}",
    "ms": lambda ms: f"{ms:g} ms",
    "straggler_s": lambda seconds: f"one of {seconds:g} s",
    "rounds": lambda n: f"{n} rounds" if n != 1 else "1 round",
    "ranks": lambda n: f"{n} ranks",
    "pairs": lambda n: f"{n} pairs" if n != 1 else "1 pair",
    "per_block": lambda n: f"{n} engines a job",
    "idle_s": lambda seconds: f"idle for {seconds:g} s",
    "task_s": lambda seconds: f"tasks of {seconds:g} s",
    "walltime": lambda text: f"walltime {text}",
    "bytes": size,
    "size_bytes": size,
    "topology": lambda topology: f"topology {topology}",
    "beside": lambda what: f"beside {what}",
}


@dataclass(frozen=True)
class Row:
    """One figure of one system. `cells` are those of `TITLES`."""

    record: Record
    cells: tuple[str, ...]


def reference_values(records: Iterable[Record]) -> dict[tuple[str, ...], float]:
    """Our figure for each comparison, from the first of our modes and settings that was run."""
    found: dict[tuple[str, ...], float] = {}
    for r in records:
        if r.peer == OURS and r.median is not None:
            found.setdefault(r.key, r.median)
    return found


def ratio(record: Record, reference: dict[tuple[str, ...], float]) -> float | None:
    """How many times better ours is (below 1: how much worse).

    None for ourselves, with nothing to compare, and of what is a comparison already.
    """
    if record.metric.startswith("of_"):
        return None
    ours = reference.get(record.key)
    if ours is None or ours <= 0 or (record.median or 0) <= 0 or record.peer in (OURS, RAW):
        return None
    assert record.median is not None
    return record.median / ours if record.unit in LESS_IS_BETTER else ours / record.median


def settings(params: dict[str, Any], own: bool = False) -> str:
    """A record's parameters in words: those that systems share, or its `own` modes."""
    chosen = {name: value for name, value in params.items() if (name in _OWN) == own}
    if own:
        return ", ".join(str(value) for value in chosen.values() if value not in ("", "default"))
    return ", ".join(_WORDS[name](value) if name in _WORDS else str(value) for name, value in chosen.items())


def same_settings(some: dict[str, Any], others: dict[str, Any]) -> bool:
    """Whether parameters agree in all that both have, apart from modes."""
    return all(others.get(name, value) == value for name, value in some.items() if name not in _OWN)


def rows(records: list[Record]) -> list[Row]:
    """A row for each record with a figure, in the order of the cases; one unit within a comparison."""
    measured = [r for r in records if r.values]
    reference = reference_values(measured)
    order = list(dict.fromkeys(r.case for r in measured))
    smallest: dict[tuple[str, ...], float] = {}
    for r in measured:
        smallest[r.key] = min(smallest.get(r.key, float("inf")), abs(r.median or 0))
    found = []
    for r in sorted(measured, key=lambda r: order.index(r.case)):
        factor, unit = readable_unit(smallest[r.key], r.unit)
        cells = (
            settings(r.params),
            r.peer,
            settings(r.params, own=True),
            r.metric,
            _amount((r.median or 0) * factor, unit),
            _spread(r, factor),
            _comparison(ratio(r, reference)),
        )
        found.append(Row(r, cells))
    return found


def figure(record: Record) -> str:
    """A record's figure by itself, with its unit."""
    median = record.median or 0.0
    factor, unit = readable_unit(abs(median), record.unit)
    return f"{record.metric} {_amount(median * factor, unit)}"


def _amount(value: float, unit: str) -> str:
    return f"{number(value)} {_UNIT_WORDS.get(unit, unit)}".rstrip()


def _spread(record: Record, factor: float) -> str:
    low, high = number(min(record.values) * factor), number(max(record.values) * factor)
    return "" if low == high else f"{low} to {high}"


def _comparison(times: float | None) -> str:
    if times is None:
        return ""
    return f"{number(times)} x better" if times >= 1 else f"{number(1 / times)} x worse"


def shown_columns(found: list[Row]) -> list[int]:
    """Indices in `TITLES` of the columns with content: not empty, and not only our name."""
    columns = [(column, {row.cells[column] for row in found}) for column in range(len(TITLES))]
    return [column for column, said in columns if said - {""} and (TITLES[column] != "SYSTEM" or said != {OURS})]


def left_out(records: list[Record]) -> list[str]:
    """What was not measured and why, with equal reasons of one system together."""
    reasons: dict[tuple[str, str], list[str]] = {}
    for r in records:
        if r.metric == _SKIPPED:
            reasons.setdefault((r.peer, r.note or "no reason given"), []).append(
                " ".join(filter(None, (r.case, f"({settings(r.params)})" if r.params else "")))
            )
    return [f"not measured: {peer}, {', '.join(dict.fromkeys(what))}: {why}" for (peer, why), what in reasons.items()]


def findings(records: list[Record]) -> list[str]:
    """The ratios within one run that the documentation claims."""

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
        lines.append(f"send: the call returns after {returns / copy:.2f} x the time of a warm memcpy of the same bytes")
    copies = value(peer=OURS, case="send", metric="copies")
    if copies is not None:
        lines.append(f"send: {copies:.2f} copies of the bytes were made in the client")
    lines += [
        f"overhead: throughput, {r.params['of']}: {r.median:.3f} ({min(r.values):.3f} to {max(r.values):.3f})"
        for r in records
        if r.metric == "rate_ratio"
    ]
    return lines + sizes.findings(records) + scale.findings(records)
