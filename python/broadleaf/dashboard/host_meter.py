"""How busy hosts are: processor, memory and network, of all that runs there."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, NamedTuple


class Counts(NamedTuple):
    """What a host's kernel has counted since it booted, and what is so now."""

    at_s: float
    cores: int
    busy_ticks: int
    all_ticks: int
    free_bytes: int
    total_bytes: int
    in_bytes: int
    out_bytes: int


class HostMeter:
    """Tells how busy a host was between two readings."""

    def __init__(self) -> None:
        self._before: Counts | None = None

    def read(self, now: Counts | None) -> dict[str, Any]:
        """Figures of the host, None for those that are unknown, as rates are at the first reading.

        A reading that is not newer than the last one tells nothing.
        """
        told: dict[str, Any] = {
            "cores": None, "cpu_percent": None, "free_bytes": None, "total_bytes": None, "in_bytes_per_s": None,
            "out_bytes_per_s": None,
        }  # fmt: skip
        before = self._before
        if now is None or (before is not None and now.at_s <= before.at_s):
            return told
        self._before = now
        told["cores"] = now.cores
        if now.total_bytes:
            told.update(free_bytes=now.free_bytes, total_bytes=now.total_bytes)
        if before is not None:
            seconds, ticks = now.at_s - before.at_s, now.all_ticks - before.all_ticks
            if ticks > 0:
                told["cpu_percent"] = round(100 * (now.busy_ticks - before.busy_ticks) / ticks)
            told["in_bytes_per_s"] = max(0, round((now.in_bytes - before.in_bytes) / seconds))
            told["out_bytes_per_s"] = max(0, round((now.out_bytes - before.out_bytes) / seconds))
        return told


def counts_here(at_s: float) -> Counts | None:
    """Those of this host, None if they cannot be read."""
    try:
        return Counts(at_s, os.cpu_count() or 1, *_ticks(), *_memory(), *_network())
    except (OSError, ValueError, IndexError, KeyError):
        return None


def counts_of(measured: Mapping[str, Any]) -> Counts:
    """Those that a relay told of its host."""
    return Counts(measured["at_ns"] / 1e9, *(measured[fact] for fact in Counts._fields[1:]))


def _ticks() -> tuple[int, int]:
    """Time of all processors together that was used, and in total: `proc_stat(5)`."""
    with open("/proc/stat", "rb") as file:
        # user, nice, system, idle, iowait, irq, softirq, steal; guests' time is in the first two.
        ticks = [int(word) for word in file.readline().split()[1:9]]
    return sum(ticks) - ticks[3] - ticks[4], sum(ticks)


def _memory() -> tuple[int, int]:
    """Memory that is free or can be freed, and all memory, in bytes: `proc_meminfo(5)`."""
    with open("/proc/meminfo", encoding="ascii") as file:
        facts = dict(line.split(":", 1) for line in file)
    available, total = (int(facts[name].split()[0]) * 1024 for name in ("MemAvailable", "MemTotal"))
    return available, total


def _network() -> tuple[int, int]:
    """Bytes that all interfaces have received and sent, except the one of this host to itself."""
    received, sent = 0, 0
    with open("/proc/net/dev", encoding="ascii") as file:
        for line in list(file)[2:]:
            name, _, counts = line.partition(":")
            if name.strip() != "lo":
                numbers = counts.split()
                received += int(numbers[0])
                sent += int(numbers[8])
    return received, sent
