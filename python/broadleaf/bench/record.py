"""One figure of one system, the JSON line every benchmark prints; an interval for a ratio; and the machine."""

import json
import os
import platform
import random
import re
import statistics
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

from broadleaf.text import size

#: The names of our own side, and of the bare machine, among the systems of a run.
OURS = "broadleaf"
RAW = "raw"

UNITS = {
    "roundtrip_median": "us",
    "roundtrip_p99": "us",
    "time_per_task": "us",
    "time": "us",
    "per_value": "s",
    "of_larger_size": "ratio",
    "of_one_worker": "ratio",
    "sent": "tasks/s",
    "roundtrip": "tasks/s",
    "items": "items/s",
    "efficiency": "ratio",
    "efficiency_of_plain": "ratio",
    "elapsed": "s",
    "new_program": "s",
    "last_short_task": "s",
    "stranded": "tasks",
    "bandwidth": "GB/s",
    "memcpy": "GB/s",
    "copy_time": "ms",
    "sleep": "ms",
    "returns": "ms",
    "complete": "ms",
    "copies": "copies",
    "ready": "s",
    "after_first_line": "s",
    "first_line": "s",
    "scheduler_calls": "calls",
    "beyond_raw": "s",
    "status_calls": "calls",
    "status_calls_in_30_s": "calls",
    "submissions": "calls",
    "first_result": "s",
    "released_after": "s",
    "certified_after": "s",
    "starts": "starts",
    "complete_starts": "starts",
    "worlds": "worlds",
    "clean": "worlds",
    "runs": "runs",
    "succeeded": "runs",
    "pair_time": "s",
    "rate": "tasks/s",
    "static_rate": "tasks/s",
    "of_static_rate": "ratio",
    "turnovers": "turnovers",
    "lost": "tasks",
    "ran_twice": "tasks",
    "pss_per_worker": "MB",
    "pss_other_processes": "MB",
    "client_growth": "MB",
    "controller_growth": "MB",
    "rate_with": "tasks/s",
    "rate_without": "tasks/s",
    "rate_ratio": "ratio",
    "delivered": "ms",
    "first": "ms",
    "payload": "payload MB",
    "client_processor": "us",
    "client_bytes_sent": "bytes",
    "pss_growth": "MB",
    "pss_share": "copies",
    "client_faults": "faults",
    "node_faults": "faults",
    "client_faults_of_small": "faults",
    "node_faults_of_small": "faults",
    "last_engine": "ms",
    "last_host": "ms",
    "link_latency": "us",
    "of_chain_model": "ratio",
    "raw_chain": "ms",
    "of_raw_chain": "ratio",
    "of_best_plan": "ratio",
    "of_tcp": "ratio",
    "bytes_into_host": "payloads",
    "small_task": "us",
    "small_task_of_idle": "ratio",
}
LESS_IS_BETTER = {"us", "ms", "s", "MB", "tasks", "copies", "bytes", "calls", "faults"}


@dataclass(frozen=True)
class Record:
    """A figure with its spread. `values` holds the repeats; only their summary is written."""

    peer: str
    peer_version: str
    case: str
    params: dict[str, Any]
    metric: str
    values: list[float] = field(repr=False)
    note: str | None = None

    @property
    def unit(self) -> str:
        """Found by the metric's name, which may end in a number of workers."""
        return UNITS.get(self.metric) or UNITS.get(re.sub(r"_\d+$", "", self.metric), "")

    @property
    def median(self) -> float | None:
        return statistics.median(self.values) if self.values else None

    @property
    def key(self) -> tuple[str, ...]:
        """What two systems' records must share to be compared: case, metric and all parameters except their modes."""
        shared = {k: v for k, v in self.params.items() if k not in ("mode", "config")}
        return (self.case, self.metric, json.dumps(shared, sort_keys=True))

    def as_dict(self) -> dict[str, Any]:
        found = asdict(self)
        values = found.pop("values")
        note = found.pop("note")
        found |= {
            "unit": self.unit,
            "median": self.median,
            "min": min(values, default=None),
            "max": max(values, default=None),
            "n_runs": len(values),
        }
        return found | ({"note": note} if note else {})

    def line(self) -> str:
        return json.dumps(self.as_dict())


def skipped(peer: str, version: str, case: str, params: dict[str, Any], why: str) -> Record:
    """Records that a system has no figure here, and why."""
    return Record(peer, version, case, params, "skipped", [], why[:400])


class Interval(NamedTuple):
    low: float
    middle: float
    high: float


def ratio_interval(
    numerator: list[float], denominator: list[float], resamples: int = 4000, level: float = 0.95
) -> Interval:
    """The median of the ratios of two series taken in pairs, with its percentile bootstrap interval.

    A ratio is taken within a pair, so what the machine did to both at once cancels. The draws are seeded: the same
    series give the same interval.
    """
    if len(numerator) != len(denominator) or not numerator:
        raise ValueError(f"series of {len(numerator)} and {len(denominator)} values cannot be paired")
    ratios = [a / b for a, b in zip(numerator, denominator, strict=True)]
    source = random.Random(0)
    draws = sorted(statistics.median(source.choices(ratios, k=len(ratios))) for _ in range(resamples))
    tail = (1 - level) / 2
    return Interval(draws[int(tail * resamples)], statistics.median(ratios), draws[int((1 - tail) * resamples) - 1])


def machine_facts(isolation: str) -> dict[str, object]:
    """The machine, the interpreter and how the runs are kept apart, as flat values."""
    return {
        "processor": _first_line("/proc/cpuinfo", "model name"),
        "cores": len(os.sched_getaffinity(0)),
        "memory": size(int(_first_line("/proc/meminfo", "MemTotal").split()[0]) << 10),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "load": f"{os.getloadavg()[0]:.2f}",
        "isolation": isolation,
    }


def machine_line(known: dict[str, object]) -> str:
    return "machine: " + ", ".join(f"{name} {value}" for name, value in known.items())


def _first_line(path: str, name: str) -> str:
    with open(path) as f:
        return next((text.split(":", 1)[1].strip() for text in f if text.startswith(name)), "0 unknown")
