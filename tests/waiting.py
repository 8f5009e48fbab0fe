"""Waits for something that is about to happen."""

import time
from collections.abc import Callable


def until(condition: Callable[[], object], timeout_s: float = 30.0) -> bool:
    """Whether `condition` became true within `timeout_s`; it is checked a hundred times a second."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True
