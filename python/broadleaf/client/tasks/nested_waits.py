"""Waiting in a task for something other than a result, while its engine runs other tasks."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any
from weakref import ref


def wait_until(
    link: Any, is_done: Callable[[], bool], wait: Callable[[float | None], Any], timeout: float | None
) -> None:
    """Waits up to `timeout` seconds for an effect of a result: with `wait`, or in a task with `link`."""
    if link.frees_engine():
        link.wait_for(is_done, timeout)
    else:
        wait(timeout)


class ResultsEvent(threading.Event):
    """An event of somebody who waits for results: a task frees its engine in the meantime, and Ctrl-C aborts them."""

    def __init__(self, link: Any, result_type: Any) -> None:
        super().__init__()
        self._link = link
        self._result_type = result_type
        # Bare references: Ctrl-C in a callback of theirs, which a WeakSet has, would be swallowed.
        self._results: list[ref[Any]] = []

    def add(self, result: Any) -> None:
        """The waiter waits for this result, too."""
        self._results.append(ref(result))

    def wait(self, timeout: float | None = None) -> bool:
        """See `threading.Event.wait`."""
        try:
            wait_until(self._link, self.is_set, super().wait, timeout)
        except KeyboardInterrupt:
            living = [result for each in self._results if (result := each()) is not None]
            self._result_type.abort_all(living)
            raise
        return self.is_set()


class Waiters(list[Any]):
    """The waiters of a result, as `concurrent.futures.wait` and `as_completed` put themselves there."""

    def __init__(self, result: Any) -> None:
        super().__init__()
        self._result = ref(result)

    def append(self, waiter: Any) -> None:
        """Adds a waiter."""
        result = self._result()
        if result is not None:
            if not isinstance(waiter.event, ResultsEvent):
                waiter.event = ResultsEvent(result.origin.client.link, type(result))
            waiter.event.add(result)
        super().append(waiter)
