"""What an engine does at a `breakpoint()`, and the exceptions of failed tasks that it keeps for a debugger."""

from __future__ import annotations

import os
import sys
from collections import OrderedDict
from typing import Any

from broadleaf.engine.output import publish

# By number, latest last.
_kept: OrderedDict[int, BaseException] = OrderedDict()
_max_kept = 0
_n_failed = 0


def install(keep_failed_frames: int) -> None:
    """Makes `breakpoint()` debug the task that calls it, and keeps this many exceptions."""
    global _max_kept
    _max_kept = keep_failed_frames
    sys.breakpointhook = on_breakpoint


def on_breakpoint(*args: Any, **options: Any) -> None:
    """The `sys.breakpointhook` of an engine. Like Python's own, it follows PYTHONBREAKPOINT if that is set."""
    if "PYTHONBREAKPOINT" in os.environ or not publish.in_task():
        sys.__breakpointhook__(*args, **options)
        return
    from broadleaf.engine.interactive import debugger

    debugger.debug(sys._getframe(1), options.get("header"))


def keep(error: BaseException) -> int | None:
    """Keeps what a task raised, with its frames; returns the number that `kept` takes, or None if nothing is kept."""
    global _n_failed
    if not _max_kept:
        return None
    _n_failed += 1
    _kept[_n_failed] = error
    while len(_kept) > _max_kept:
        _kept.popitem(last=False)
    return _n_failed


def kept(number: int) -> BaseException:
    """The exception with this number. Raises `LookupError` if it is no longer kept."""
    if number not in _kept:
        raise LookupError(
            f"the frames of this failure are gone: its engine keeps the frames of {_max_kept} failed tasks"
        )
    return _kept[number]
