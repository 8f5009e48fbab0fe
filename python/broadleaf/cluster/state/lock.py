"""A cluster's lock: among the threads of a process and, for clusters that outlive it, among processes."""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Callable
from pathlib import Path

from broadleaf.private_files import open_private

LOCK_FILE = "state.lock"


class StateLock:
    """Held while a cluster's state is read and changed. The same thread may take it again."""

    def __init__(self) -> None:
        self._threads = threading.RLock()
        self._depth = 0
        self._descriptor = -1
        self._path: Path | None = None
        self._on_taken: Callable[[], None] | None = None

    def share(self, directory: Path, on_taken: Callable[[], None]) -> None:
        """From now on, other processes that share the directory are kept out as well.

        `on_taken` is called each time this process takes the lock, because another one may have changed something.
        """
        self._path, self._on_taken = directory / LOCK_FILE, on_taken

    def __enter__(self) -> None:
        self._threads.acquire()
        self._depth += 1
        if self._depth > 1 or self._path is None or self._on_taken is None:
            return
        try:
            self._descriptor = open_private(self._path, os.O_RDWR)
        except FileNotFoundError:
            return  # the cluster's directory is gone, and the cluster with it
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX)
            self._on_taken()
        except BaseException:
            self.__exit__()
            raise

    def __exit__(self, *_: object) -> None:
        self._depth -= 1
        if not self._depth and self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
        self._threads.release()
