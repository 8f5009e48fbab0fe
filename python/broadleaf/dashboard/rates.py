"""Changes between two updates of a cluster, per second."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Rates:
    """What has changed between two updates, per second."""

    tasks_per_s: float
    bytes_per_s: float
    busy_percent: float
    """Mean share of the time that tasks took, over all engines."""


@dataclass(frozen=True)
class Look:
    """A cluster's status, and the time of the request in seconds of the monotonic clock."""

    at_s: float
    status: dict[str, Any]

    def since(self, before: Look) -> Rates:
        """Rates between the previous update and this one."""
        seconds = self.at_s - before.at_s
        now, then = self.status, before.status
        done = sum(now["controller"]["resolved"].values()) - sum(then["controller"]["resolved"].values())
        received = max(0, now["links"]["bytes_in"] - then["links"]["bytes_in"])
        shares = self.busy_shares(before)
        busy = min(100.0, 100 * sum(shares.values()) / len(shares)) if shares else 0.0
        return Rates(done / seconds, received / seconds, busy)

    def busy_shares(self, before: Look) -> dict[int, float]:
        """The share of the time between the updates that each engine's tasks took.

        Time is counted when a task ends, so a task longer than the interval may count for more than the interval.
        """
        seconds = self.at_s - before.at_s
        busy_before = {engine["engine"]: engine["busy_ns"] for engine in before.status["engines"]}
        return {
            engine["engine"]: max(0.0, engine["busy_ns"] - busy_before.get(engine["engine"], engine["busy_ns"]))
            / 1e9
            / seconds
            for engine in self.status["engines"]
        }
