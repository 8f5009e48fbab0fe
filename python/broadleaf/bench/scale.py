"""What the benchmark of scale says: how the cost of the same work grows with the number of workers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from .record import OURS, Record

CASE = "scale"


class Limit(NamedTuple):
    """What a figure may be with this many workers."""

    metric: str
    workers: int
    least: float = 0.0
    most: float = float("inf")


#: What ours is to keep. A start is compared with that of 100 workers, anything else with the fewest.
LIMITS = (
    Limit("of_rate_of_fewest", 100, least=0.7),
    Limit("of_rate_of_fewest", 400, least=0.5),
    Limit("of_rate_of_fewest", 1000, least=0.3),
    Limit("of_round_trip_of_fewest", 1000, most=1.2),
    Limit("of_start_of_100", 400, most=4.5),
    Limit("of_start_of_100", 1000, most=12.0),
    Limit("delivered_per_worker", 100, most=11.0),
    Limit("delivered_per_worker", 1000, most=16.0),
    Limit("idle_switches", 1000, most=2.0),
    Limit("idle_processor", 1000, most=2.0),
)
# By case and metric: the ratio that is taken of it, and the number of workers to compare with, or 0 for the fewest.
_RATIOS = {
    ("throughput", "roundtrip"): ("of_rate_of_fewest", 0),
    ("latency", "roundtrip_median"): ("of_round_trip_of_fewest", 0),
    (CASE, "ready"): ("of_start_of_100", 100),
}


def ratios(records: list[Record]) -> Iterator[Record]:
    """The figures of each number of workers over those of few, and what a call to all takes for each worker."""
    for (case, metric), (name, reference) in _RATIOS.items():
        taken = {r.params["workers"]: r for r in records if (r.case, r.metric) == (case, metric) and r.values}
        fewest = reference or min(taken, default=0)
        of_fewest = taken.get(fewest)
        if of_fewest is None or not of_fewest.median:
            continue
        for workers, r in sorted(taken.items()):
            if workers > fewest and r.median is not None:
                yield _figure(r, name, r.median / of_fewest.median, f"over {fewest} workers")
    for r in records:
        if (r.case, r.metric) == ("fan-out", "delivered") and r.median is not None:
            yield _figure(r, "delivered_per_worker", r.median * 1e3 / r.params["workers"])


def _figure(of: Record, metric: str, value: float, note: str | None = None) -> Record:
    return Record(of.peer, of.peer_version, CASE, {"workers": of.params["workers"]}, metric, [value], note)


def findings(records: Iterable[Record]) -> list[str]:
    """Which of our figures miss what they are to keep."""
    ours = {(r.metric, r.params["workers"]): r for r in records if r.case == CASE and r.peer == OURS and r.values}
    found = [(limit, ours[limit.metric, limit.workers]) for limit in LIMITS if (limit.metric, limit.workers) in ours]
    missed = [
        f"scale: {limit.metric} with {limit.workers:,} workers is {r.median:.3g}, not {_wanted(limit)}"
        for limit, r in found
        if r.median is not None and not limit.least <= r.median <= limit.most
    ]
    return missed or (["scale: each figure is within its limit"] if found else [])


def _wanted(limit: Limit) -> str:
    return f"at least {limit.least:g}" if limit.least else f"at most {limit.most:g}"
