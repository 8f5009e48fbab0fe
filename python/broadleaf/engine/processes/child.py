"""The end of a child that a task forked and that returns from the task."""

from __future__ import annotations

import os
import sys
from typing import Any, NoReturn


def end_child(error: BaseException | None) -> NoReturn:
    """Ends this process, which a task forked, as a program of its own would end; `error` is what the task raised here.

    As in a process of `multiprocessing`, threads are waited for, and functions registered with `atexit` are not called:
    they belong to the parent.
    """
    code = 1
    try:
        code = _exit_code(error)
        # Nobody has started a thread if it was not imported.
        shutdown: Any = getattr(sys.modules.get("threading"), "_shutdown", None)
        if shutdown is not None:
            shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)


def _exit_code(error: BaseException | None) -> int:
    if error is None:
        return 0
    if isinstance(error, SystemExit):
        if error.code is None or isinstance(error.code, int):
            return (error.code or 0) & 0xFF
        sys.stderr.write(f"{error.code}\n")
        return 1
    from broadleaf.serialize.errors import traceback_text

    sys.stderr.write(f"{traceback_text(error)[0]}\n")
    return 1
