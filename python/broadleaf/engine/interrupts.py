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
# A task may ignore SIGINT for as long as something must not be interrupted. An earlier one may have left it so.
IGNORED_PATIENCE_S = 1.0
# A task with a handler of its own for SIGINT has this long to end by itself before a request is repeated.
HANDLER_PATIENCE_S = 1.0


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

    handled_by: int | None = None
    handled_at_s = 0.0

    def is_being_handled() -> bool:
        return handled_by == engine.current_task() and time.monotonic() - handled_at_s < HANDLER_PATIENCE_S

    ignored_by: int | None = None
    ignored_at_s = 0.0

    def waits_while_ignored() -> bool:
        nonlocal ignored_by, ignored_at_s
        if ignored_by != engine.current_task():
            ignored_by, ignored_at_s = engine.current_task(), time.monotonic()
        return time.monotonic() - ignored_at_s < IGNORED_PATIENCE_S

    def on_request(_number: int, frame: FrameType | None) -> None:
        if not engine.is_interrupt_requested():
            # Sent for a task that has ended, or to wake this thread for another signal.
            return
        if is_being_handled() or waits_for_import(frame):
            # The request stays open, so it is repeated.
            return
        handler: Any = signal.getsignal(signal.SIGINT)
        if handler == signal.SIG_IGN and waits_while_ignored():
            return
        if handler is on_interrupt or handler in (signal.SIG_DFL, signal.SIG_IGN):
            if engine.interrupt_pending():
                raise KeyboardInterrupt
        elif handler is None:
            # Set by C code, which knows how to handle it.
            signal.raise_signal(signal.SIGINT)
        elif callable(handler):
            # The task's own. The request stays open until the task ends.
            nonlocal handled_by, handled_at_s
            handled_by, handled_at_s = engine.current_task(), time.monotonic()
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
