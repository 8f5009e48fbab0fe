"""The end of the controller's log, and what is added to it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from broadleaf.engine.written import lines_after


class LogTail:
    """Reads a log that another process writes."""

    def __init__(self, path: Callable[[], Path]) -> None:
        self._path = path
        self._offset: int | None = None

    def new_lines(self) -> list[str]:
        """The lines added since the last call; at first, those at the end. Returns nothing if the log is gone."""
        try:
            self._offset, lines = lines_after(self._path(), self._offset)
        except OSError:
            return []
        return lines
