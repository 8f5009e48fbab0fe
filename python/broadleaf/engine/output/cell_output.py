"""What a cell writes and displays, kept with its reply for clients that did not run it."""

from __future__ import annotations

import sys
from typing import Any

from broadleaf.engine.output import publish
from broadleaf.engine.output.streams import Record, TaskStream


class CellOutput:
    """A context in which the cell's output is recorded."""

    def __init__(self) -> None:
        self._records: list[tuple[str, TaskStream, Record, Record | None]] = []
        self._displays: list[dict[str, Any]] = []
        self._before: Any = None

    def __enter__(self) -> CellOutput:
        task = publish.current_task()
        for name, stream in (("stdout", sys.stdout), ("stderr", sys.stderr)):
            if type(stream) is TaskStream:
                record = Record(task)
                self._records.append((name, stream, record, stream.record(record)))
        self._before = publish.record(task, self._displays)
        return self

    def __exit__(self, *_: object) -> None:
        for _name, stream, _record, before in self._records:
            stream.record(before)
        publish.restore(self._before)

    def content(self) -> dict[str, Any]:
        """`stdout`, `stderr` and `displays`, as far as they are not empty."""
        found: dict[str, Any] = {name: text for name, _, record, _ in self._records if (text := record.text())}
        if self._displays:
            found["displays"] = self._displays
        return found
