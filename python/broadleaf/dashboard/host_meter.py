"""How busy this host is: processor, memory and network, of all that runs here."""

from __future__ import annotations

import os
import socket
from typing import Any, NamedTuple


class _Counts(NamedTuple):
    """What the kernel has counted since it booted."""

    at_s: float
    busy_ticks: int
    all_ticks: int
    in_bytes: int
    out_bytes: int


class HostMeter:
    """Tells how busy this host was between two readings."""

    def __init__(self) -> None:
        self._before: _Counts | None = None

    def read(self, at_s: float) -> dict[str, Any]:
        """Figures of this host, None for those that are unknown, as rates are at the first reading."""
        told: dict[str, Any] = {
            "name": socket.gethostname(), "cores": os.cpu_count(), "cpu_percent": None, "free_bytes": None,
            "total_bytes": None, "in_bytes_per_s": None, "out_bytes_per_s": None,
        }  # fmt: skip
        try:
            told["free_bytes"], told["total_bytes"] = _memory()
            now = _Counts(at_s, *_ticks(), *_network())
        except (OSError, ValueError, IndexError, KeyError):
            return told
        before, self._before = self._before, now
        if before is not None and at_s > before.at_s:
            seconds, ticks = at_s - before.at_s, now.all_ticks - before.all_ticks
            if ticks > 0:
                told["cpu_percent"] = round(100 * (now.busy_ticks - before.busy_ticks) / ticks)
            told["in_bytes_per_s"] = max(0, round((now.in_bytes - before.in_bytes) / seconds))
            told["out_bytes_per_s"] = max(0, round((now.out_bytes - before.out_bytes) / seconds))
        return told


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
