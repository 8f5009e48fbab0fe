"""Interrupting the task that runs: by its client through the node (SIGURG), or by whoever sends SIGINT."""

from __future__ import annotations

import signal
import time
from types import FrameType
from typing import Any

from broadleaf import _native

# An import that is cut short leaves a package whose next import fails: its submodules are there, their names are not.
# So a request waits for imports, which is less than a task has before its engine is replaced.
IMPORT_PATIENCE_S = 1.0


def install(engine: _native.Engine) -> None:
    """Sets the handlers of both signals; neither does anything to an engine that runs no task."""

    def on_interrupt(_number: int, _frame: object) -> None:
        if engine.current_task() is not None:
            # What runs is interrupted now, so a request for it is done with.
            engine.interrupt_pending()
            raise KeyboardInterrupt

    importing_since_s: float | None = None

    def waits_for_import(frame: FrameType | None) -> bool:
        nonlocal importing_since_s
        if not is_importing(frame):
            importing_since_s = None
            return False
        if importing_since_s is None:
            importing_since_s = time.monotonic()
        if time.monotonic() - importing_since_s < IMPORT_PATIENCE_S:
            return True
        importing_since_s = None
        return False

    def on_request(_number: int, frame: FrameType | None) -> None:
        handler: Any = signal.getsignal(signal.SIGINT)
        if waits_for_import(frame):
            # The request stays open, so it is repeated.
            return
        if handler is on_interrupt:
            # A request that comes late was meant for a task that has ended.
            if engine.interrupt_pending():
                raise KeyboardInterrupt
        elif handler is None:
            # Set by C code, which knows what to do.
            signal.raise_signal(signal.SIGINT)
        elif callable(handler):
            # The task's own. The request stays open, so it is repeated until the task ends.
            handler(signal.SIGINT, frame)
        elif handler == signal.SIG_DFL and engine.interrupt_pending():
            raise KeyboardInterrupt

    signal.signal(signal.SIGINT, on_interrupt)
    signal.signal(signal.SIGURG, on_request)


def is_importing(frame: FrameType | None) -> bool:
    """Whether a module is being imported where `frame` is."""
    while frame is not None:
        code = frame.f_code
        if code.co_name == "_find_and_load" and code.co_filename == "<frozen importlib._bootstrap>":
            return True
        frame = frame.f_back
    return False
