"""What processes hold, according to `/proc`."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from processes import memory_files


@dataclass(frozen=True)
class Footprint:
    """What one process holds."""

    descriptors: int
    memory_files: int
    memory_file_bytes: int
    threads: int
    anonymous_bytes: int

    @classmethod
    def of(cls, pid: int) -> Footprint:
        # A file that a process holds twice takes its memory once.
        files = dict(memory_files(pid))
        status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
        return cls(
            descriptors=len(os.listdir(f"/proc/{pid}/fd")),
            memory_files=len(files),
            memory_file_bytes=sum(files.values()),
            threads=int(status["Threads"]),
            anonymous_bytes=int(status["RssAnon"].split()[0]) * 1024,
        )

    def excess_over(self, start: Footprint) -> dict[str, tuple[int, int]]:
        """Figures that are more than 5 % and more than `MARGINS` above the start, with both values."""
        found = {}
        for name, margin in MARGINS.items():
            now, then = getattr(self, name), getattr(start, name)
            if now > max(then * 1.05, then + margin):
                found[name] = (then, now)
        return found


#: The buffers of clients and engines grow to their longest message, a few megabytes each, and stay.
MARGINS = {
    "descriptors": 10,
    "memory_files": 10,
    "memory_file_bytes": 10 << 20,
    "threads": 10,
    "anonymous_bytes": 64 << 20,
}
