"""Running a task while another one waits: the new task must not see the state of the waiting one."""

from __future__ import annotations

import sys
from collections.abc import Callable

from broadleaf.engine.surroundings import Surroundings
from broadleaf.serialize.errors import without_context

# Calls between a task and the one on top of it that Python counts as recursion but that have no frame.
_NATIVE_CALLS = 16


class NestedRuns:
    """Runs tasks on top of others of the same thread."""

    def __init__(self, surroundings: Surroundings) -> None:
        self._surroundings = surroundings
        self._frames_below = 0
        self._levels = 0
        self.handled: BaseException | None = None
        """What the task below handles while it waits: the context of every exception that the one on top raises."""

    def run(self, run: Callable[[], None]) -> None:
        """Calls `run` without a running event loop, with what every task finds, and with as many frames as a task that
        is not nested has."""
        asyncio = sys.modules.get("asyncio")
        loop = asyncio._get_running_loop() if asyncio is not None else None
        before = self._frames_below, self.handled
        self._levels += 1
        self._frames_below = _n_frames() + self._levels * _NATIVE_CALLS
        self.handled = sys.exception()
        limit = sys.getrecursionlimit() - before[0]
        sys.setrecursionlimit(limit + self._frames_below)
        if asyncio is not None and loop is not None:
            asyncio._set_running_loop(None)
        aside = self._surroundings.set_aside()
        try:
            run()
        finally:
            self._surroundings.put_back(aside)
            if asyncio is not None and loop is not None:
                asyncio._set_running_loop(loop)
            # The task may have set another limit on purpose.
            limit = sys.getrecursionlimit() - self._frames_below
            self._frames_below, self.handled = before
            self._levels -= 1
            sys.setrecursionlimit(limit + self._frames_below)

    def forget_handled(self, error: BaseException) -> None:
        """Removes the exceptions that the task below is handling from the context of an exception of the task on
        top."""
        without_context(error, self.handled)


def _n_frames() -> int:
    frame = sys._getframe()
    n = 1
    while frame.f_back is not None:
        frame = frame.f_back
        n += 1
    return n
