"""How long a refusal may take, and a check that it comes in time and names its cause."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from broadleaf import ClusterStartError

# Nobody waits longer for a refusal, the time aside in which processes of this machine wait for a processor.
REFUSED_WITHIN_S = 15.0


def idle_s() -> float:
    """Seconds until now in which no process waited for a processor; all where the kernel does not count them."""
    try:
        some = Path("/proc/pressure/cpu").read_text().splitlines()[0]
    except OSError:
        return time.monotonic()
    return time.monotonic() - int(some.rpartition("=")[2]) / 1e6


@contextmanager
def refused(cause: str) -> Iterator[None]:
    """What is done inside is refused with this cause, and within `REFUSED_WITHIN_S`."""
    since_s = idle_s()
    said = "nothing was refused"
    try:
        yield
    except ClusterStartError as error:
        said = str(error)
    assert cause in said, said
    took_s = idle_s() - since_s
    assert took_s < REFUSED_WITHIN_S, f"it was refused after {took_s:.1f} s: {cause}"
