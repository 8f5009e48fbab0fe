"""The lock of a future whose state somebody reads while it may change; see `WatchedState`."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future
from types import FrameType

_READERS = Future.__init__.__code__.co_filename
"""The standard library's module that acquires it."""


class WatchedState:
    """What `concurrent.futures` acquires and releases around a look at a future's state: the future's `_condition`.

    It blocks nobody. The change of the state waits until nobody looks, and is then made by the last who did.
    `concurrent.futures.wait` acquires one for each future before it waits, and Ctrl-C in the middle leaves those
    acquired for ever: a lock would then block the thread that reads results.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._lookers: set[int] = set()
        self._change: Callable[[], None] | None = None
        self._then: Callable[[], None] | None = None

    def acquire(self) -> bool:
        """This thread looks at the state, which does not change until `release`."""
        with self._lock:
            self._lookers.add(threading.get_ident())
        return True

    def release(self) -> None:
        """This thread does not look any more."""
        with self._lock:
            self._lookers.discard(threading.get_ident())
        self._change_if_unwatched()

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()

    def change(self, change: Callable[[], None], then: Callable[[], None]) -> None:
        """Calls `change` when nobody looks, and `then` afterwards: at once, unless somebody does."""
        self._change, self._then = change, then
        self._change_if_unwatched()

    def _change_if_unwatched(self) -> None:
        change: Callable[[], None] | None = None
        then: Callable[[], None] | None = None
        try:
            with self._lock:
                self._lookers = {looker for looker in self._lookers if _is_reading(looker)}
                if not self._lookers:
                    change, then = self._change, self._then
                    self._change = self._then = None
                if change is not None:
                    change()
        finally:
            if then is not None:
                then()


def _is_reading(thread: int) -> bool:
    """Whether a thread is in the code that acquires and releases. If Ctrl-C has ended that, it is not."""
    frame: FrameType | None = sys._current_frames().get(thread)
    while frame is not None:
        if frame.f_code.co_filename == _READERS:
            return True
        frame = frame.f_back
    return False
