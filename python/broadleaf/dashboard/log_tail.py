"""The end of a log, and what is added to it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

# How much of an existing log is read, and how much of new output at a time.
_FIRST_BYTES = 32 * 1024
_MAX_BYTES = 64 * 1024
_MAX_LINE_CHARACTERS = 500


class LogTail:
    """Reads a log that another process writes."""

    def __init__(self, path: Callable[[], Path]) -> None:
        self._path = path
        self._offset: int | None = None

    def new_lines(self) -> list[str]:
        """The lines added since the last call; at first, those at the end. Returns nothing if the log is gone."""
        try:
            with open(self._path(), "rb") as file:
                end = file.seek(0, 2)
                first = self._offset is None
                start = max(0, end - _FIRST_BYTES) if self._offset is None else self._offset
                if end < start:
                    start = 0
                # If there is very much, only the latest part is returned.
                start = max(start, end - _MAX_BYTES)
                file.seek(start)
                data = file.read(end - start)
        except OSError:
            return []
        whole, newline, rest = data.rpartition(b"\n")
        self._offset = end - len(rest)
        if not newline:
            return []
        lines = whole.decode("utf-8", "replace").split("\n")
        if first and start > 0:
            lines = lines[1:]
        return [line[:_MAX_LINE_CHARACTERS] for line in lines]
