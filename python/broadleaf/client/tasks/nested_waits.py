"""Waiting in a task for something other than a result, while its engine runs other tasks."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any


def wait_until(
    link: Any, is_done: Callable[[], bool], wait: Callable[[float | None], Any], timeout: float | None
) -> None:
    """Waits up to `timeout` seconds for an effect of a result: with `wait`, or in a task with `link`."""
    if link.frees_engine():
        link.wait_for(is_done, timeout)
    else:
        wait(timeout)


class TaskEvent(threading.Event):
    """An event whose waiter is a task."""

    def __init__(self, link: Any) -> None:
        super().__init__()
        self._link = link

    def wait(self, timeout: float | None = None) -> bool:
        """See `threading.Event.wait`."""
        wait_until(self._link, self.is_set, super().wait, timeout)
        return self.is_set()


class Waiters(list[Any]):
    """The waiters of a future, as `concurrent.futures.wait` and `as_completed` put themselves there."""

    def __init__(self, link: Any) -> None:
        super().__init__()
        self._link = link

    def append(self, waiter: Any) -> None:
        """Adds a waiter; a task's waiter frees its engine while it waits."""
        if self._link.frees_engine() and not isinstance(waiter.event, TaskEvent):
            waiter.event = TaskEvent(self._link)
        super().append(waiter)
