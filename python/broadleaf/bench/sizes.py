"""What the benchmark of sizes says: sizes that cost more than larger ones, and costs beside those of others."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

from broadleaf.text import size

from .record import OURS, RAW, Record

CASE = "sizes"
#: A size is dearer than a larger one if it takes this many times as long.
DEARER = 1.15
#: What ours is to be, beyond the pickler's own time: as many times as fast as another system.
FASTER = 1.5
#: What ours may take to many workers, over one.
SPREAD = 3.0


def ratios(records: list[Record]) -> Iterator[Record]:
    """For each line of a plot, the largest ratio of a size's time to that of a larger one; and for each of our figures
    with several workers, its ratio to that with one.
    """
    curves: defaultdict[tuple[Any, ...], list[Record]] = defaultdict(list)
    for r in _times(records):
        curves[r.params["workers"], *_place(r)[:-1]].append(r)
    for curve in curves.values():
        ordered = sorted(curve, key=lambda r: r.params["size_bytes"])
        pairs = [(_median(a) / _median(b), a, b) for i, a in enumerate(ordered) for b in ordered[i + 1 :]]
        if pairs:
            most, a, b = max(pairs, key=lambda pair: pair[0])
            shared = {name: value for name, value in a.params.items() if name != "size_bytes"}
            note = f"{size(a.params['size_bytes'])} over {size(b.params['size_bytes'])}"
            yield Record(a.peer, a.peer_version, CASE, shared, "of_larger_size", [most], note)
    of_one = {_place(r): _median(r) for r in _times(records) if r.params["workers"] == 1}
    for r in _times(records):
        if r.params["workers"] > 1 and _place(r) in of_one:
            yield Record(r.peer, r.peer_version, CASE, r.params, "of_one_worker", [_median(r) / of_one[_place(r)]])


def findings(records: Iterable[Record]) -> list[str]:
    """Whether each size costs at most what a larger one does, and which of our figures miss what is expected."""
    found = [r for r in records if r.case == CASE and r.values]
    ours = [r for r in found if r.peer == OURS]
    larger = [r for r in ours if r.metric == "of_larger_size"]
    spread = [r for r in ours if r.metric == "of_one_worker"]
    beyond = [(a, b) for a in ours for b in found if a.metric == "beyond_raw" and b.peer != OURS and a.key == b.key]
    lines = []
    if larger:
        dearer = [f"{_name(r)}: {_median(r):.2f} x, {r.note}" for r in larger if _median(r) > DEARER]
        lines += _judged("no size takes longer than a larger one", "dearer than a larger size", dearer)
    if spread:
        longer: defaultdict[str, list[str]] = defaultdict(list)
        for r in spread:
            if _median(r) > SPREAD:
                longer[_name(r)].append(f"{size(r.params['size_bytes'])} {_median(r):.1f} x")
        lines += _judged(f"to all workers in at most {SPREAD:g} x the time to one", "longer to all", _listed(longer))
    if beyond:
        # Ours may also take no longer than the pickler alone; then there is no ratio.
        slower: defaultdict[str, list[str]] = defaultdict(list)
        for a, b in beyond:
            if _median(b) < FASTER * _median(a) and _median(a) > 0:
                times = max(0.0, _median(b)) / _median(a)
                slower[f"{_name(a)}, of {b.peer}"].append(f"{size(a.params['size_bytes'])} {times:.2f} x")
        lines += _judged(f"beyond the pickler at least {FASTER:g} x as fast as others", "less fast", _listed(slower))
    return lines


def _times(records: list[Record]) -> list[Record]:
    return [r for r in records if r.case == CASE and r.metric == "per_value" and r.peer != RAW and r.values]


def _median(record: Record) -> float:
    assert record.median is not None
    return record.median


def _place(record: Record) -> tuple[Any, ...]:
    """What a figure is of, whatever the number of workers."""
    return (record.peer, *(record.params[name] for name in ("config", "mode", "value", "route", "size_bytes")))


def _name(record: Record) -> str:
    """What a figure is of, in words, apart from the size."""
    p = record.params
    words = [p["value"], p["route"], p["mode"], f"{p['workers']} workers" if p["workers"] > 1 else ""]
    return ", ".join(filter(None, words))


def _listed(by_name: dict[str, list[str]]) -> list[str]:
    return [f"{name}: {', '.join(of_sizes)}" for name, of_sizes in by_name.items()]


def _judged(good: str, bad: str, exceptions: list[str]) -> list[str]:
    if not exceptions:
        return [f"sizes: {good}"]
    return [f"sizes: {bad}: {text}" for text in exceptions]
