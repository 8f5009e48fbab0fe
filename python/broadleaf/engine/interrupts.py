"""Interrupting the task that runs: by its client through the node (SIGURG), or by whoever sends SIGINT."""

from __future__ import annotations

import signal
from typing import Any

from broadleaf import _native


def install(engine: _native.Engine) -> None:
    """Sets the handlers of both signals; neither does anything to an engine that runs no task."""

    def on_interrupt(_number: int, _frame: object) -> None:
        if engine.current_task() is not None:
            # What runs is interrupted now, so a request for it is done with.
            engine.interrupt_pending()
            raise KeyboardInterrupt

    def on_request(_number: int, frame: object) -> None:
        handler: Any = signal.getsignal(signal.SIGINT)
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
