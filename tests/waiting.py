"""Waits for something that is about to happen."""

import time
from collections.abc import Callable
from typing import Any


def until(condition: Callable[[], object], timeout_s: float = 30.0) -> bool:
    """Whether `condition` became true within `timeout_s`; it is checked a hundred times a second."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def until_shown(text: str, result: Any, capsys: Any) -> str:
    """What was printed, once `text` was, while the output of `result` is streamed."""
    shown = ""

    def is_shown() -> bool:
        nonlocal shown
        result.wait(0.01)
        shown += capsys.readouterr().out
        return text in shown

    assert until(is_shown), shown
    return shown
