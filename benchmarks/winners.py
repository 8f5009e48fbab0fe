"""Which of several ways is the fastest, where all took turns: by ratios within rounds, with intervals."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import median

from broadleaf.bench.record import Interval, Record, ratio_interval
from broadleaf.bench.table import settings
from broadleaf.text import number, readable_unit

TITLES = ("OF", "SYSTEM", "WAY", "MEDIAN", "TIMES THE FASTEST", "WHICH IS")
LEFT = (*TITLES[:3], TITLES[5])
FASTEST, AS_FAST, SLOWER = "the fastest", "as fast", "slower"


@dataclass(frozen=True)
class Standing:
    """One way: the median of its times, and their ratio to those of the fastest in the same rounds."""

    way: str
    median: float
    of_fastest: Interval
    verdict: str


def standings(times: Mapping[str, list[float]]) -> list[Standing]:
    """All ways, the one with the smallest median first.

    A way is *slower* if the whole interval of its ratio lies above 1, and *as fast* if not: then these rounds do not
    tell the two apart. `times` has one number for each round, in the same order for each way.
    """
    order = sorted(times, key=lambda way: median(times[way]))
    found = []
    for way in order:
        of_fastest = ratio_interval(times[way], times[order[0]])
        is_slower = of_fastest.low > 1
        verdict = FASTEST if way == order[0] else SLOWER if is_slower else AS_FAST
        found.append(Standing(way, median(times[way]), of_fastest, verdict))
    return found


def rows(records: Iterable[Record], metric: str) -> list[tuple[str, ...]]:
    """The cells of `TITLES` for each way of each comparison, in the order in which these were measured."""
    compared: dict[tuple[str, ...], list[Record]] = {}
    for record in records:
        if record.metric == metric and record.values:
            compared.setdefault(record.key, []).append(record)
    found: list[tuple[str, ...]] = []
    for group in compared.values():
        by_name = {str(index): record for index, record in enumerate(group)}
        ordered = standings({name: record.values for name, record in by_name.items()})
        factor, unit = readable_unit(ordered[0].median, group[0].unit)
        for standing in ordered:
            record = by_name[standing.way]
            low, middle, high = standing.of_fastest
            is_fastest = standing.verdict == FASTEST
            found.append((
                settings(record.params),
                record.peer,
                settings(record.params, own=True),
                f"{number(standing.median * factor)} {unit}",
                "" if is_fastest else f"{middle:.2f} ({low:.2f} to {high:.2f})",
                standing.verdict,
            ))  # fmt: skip
    return found
