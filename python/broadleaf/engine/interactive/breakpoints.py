"""What an engine does at a `breakpoint()`, and the exceptions of failed tasks that it keeps for a debugger."""

from __future__ import annotations

import os
import sys
from collections import OrderedDict
from typing import Any

from broadleaf.engine.output import publish

# By number, the newest last.
_kept: OrderedDict[int, BaseException] = OrderedDict()
_most_kept = 0
_n_failed = 0


def install(keep_failed_frames: int) -> None:
    """Has `breakpoint()` debug the task that calls it, and so many exceptions kept."""
    global _most_kept
    _most_kept = keep_failed_frames
    sys.breakpointhook = on_breakpoint


def on_breakpoint(*args: Any, **options: Any) -> None:
    """The `sys.breakpointhook` of an engine. As Python's own, it does what PYTHONBREAKPOINT says, if that is set."""
    if "PYTHONBREAKPOINT" in os.environ or not publish.in_task():
        sys.__breakpointhook__(*args, **options)
        return
    from broadleaf.engine.interactive import debugger

    debugger.debug(sys._getframe(1), options.get("header"))


def keep(error: BaseException) -> int | None:
    """Keeps what a task raised, with its frames; the number that `kept` takes, or None where nothing is kept."""
    global _n_failed
    if not _most_kept:
        return None
    _n_failed += 1
    _kept[_n_failed] = error
    while len(_kept) > _most_kept:
        _kept.popitem(last=False)
    return _n_failed


def kept(number: int) -> BaseException:
    """The exception of this number. Raises `LookupError` where it is not kept any more."""
    if number not in _kept:
        raise LookupError(f"the frames of this failure are gone: its engine keeps those of {_most_kept} failed tasks")
    return _kept[number]
