"""Interrupting the running task: its client does so through the node (SIGURG), and anyone can send SIGINT."""

from __future__ import annotations

import signal
import time
from types import FrameType
from typing import Any

from broadleaf import _native

# An interrupted import leaves a package whose next import fails: its submodules exist, but their names are missing. So
# a request waits for imports, which take less time than a task has before its engine is replaced.
IMPORT_PATIENCE_S = 1.0


def install(engine: _native.Engine) -> None:
    """Sets the handlers of both signals; neither affects an idle engine."""

    def on_interrupt(_number: int, _frame: object) -> None:
        engine.on_interrupted()
        if engine.current_task() is not None:
            # The running task is interrupted now, so a request for it is settled.
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
        if not engine.is_interrupt_requested():
            # Sent for a task that has ended, or to wake this thread for another signal.
            return
        handler: Any = signal.getsignal(signal.SIGINT)
        # A request stays open, and is repeated, until an import has ended or SIGINT is no longer ignored.
        if waits_for_import(frame) or handler == signal.SIG_IGN or not engine.interrupt_pending():
            return
        if handler is None:
            # Set by C code, which knows how to handle it.
            signal.raise_signal(signal.SIGINT)
        elif handler is on_interrupt or handler == signal.SIG_DFL:
            raise KeyboardInterrupt
        else:
            # The task's own.
            handler(signal.SIGINT, frame)

    signal.signal(signal.SIGINT, on_interrupt)
    signal.signal(signal.SIGURG, on_request)
    signal.set_wakeup_fd(engine.wakeup_fd(), warn_on_full_buffer=False)


def is_importing(frame: FrameType | None) -> bool:
    """Whether `frame` is in the middle of an import."""
    while frame is not None:
        code = frame.f_code
        if code.co_name == "_find_and_load" and code.co_filename == "<frozen importlib._bootstrap>":
            return True
        frame = frame.f_back
    return False
