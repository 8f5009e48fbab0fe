"""What a task of the zoo does. Each returns how long it took inside the task, in seconds.

Only the standard library: these run in the engines of every system.
"""

from __future__ import annotations

import os
import tempfile
import time

_PAGE_BYTES = 4096
_WRITE_BYTES = 1 << 20


def sleep(duration_s: float) -> float:
    """Waits without using the processor."""
    begin = time.perf_counter()
    if duration_s > 0:
        time.sleep(duration_s)
    return time.perf_counter() - begin


def cpu(n_steps: int) -> float:
    """A fixed amount of integer arithmetic: it takes longer on a busy core."""
    begin = time.perf_counter()
    state = 1
    for _ in range(n_steps):
        state = (state * 1103515245 + 12345) & 0x7FFFFFFF
    return time.perf_counter() - begin


def memory(n_bytes: int) -> float:
    """Fresh memory, every page of it written."""
    begin = time.perf_counter()
    block = bytearray(n_bytes)
    pages = len(range(0, n_bytes, _PAGE_BYTES))
    block[::_PAGE_BYTES] = b"\x01" * pages
    del block
    return time.perf_counter() - begin


def io(n_bytes: int) -> float:
    """A temporary file written, forced to the disk, read back and removed."""
    begin = time.perf_counter()
    with tempfile.TemporaryFile() as file:
        piece = bytes(min(n_bytes, _WRITE_BYTES))
        left = n_bytes
        while left > 0:
            left -= file.write(piece[:left])
        file.flush()
        os.fsync(file.fileno())
        file.seek(0)
        while file.read(_WRITE_BYTES):
            pass
    return time.perf_counter() - begin


def steps_for(duration_s: float) -> int:
    """Number of steps of `cpu` that take about `duration_s` on an idle core here, by the fastest of five trials."""
    trial = 20_000
    fastest = min(cpu(trial) for _ in range(5))
    return max(1, round(trial * duration_s / fastest)) if duration_s > 0 else 0
