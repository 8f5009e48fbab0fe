"""Lines that several engines print, shown once."""

from __future__ import annotations

import sys
from collections import deque
from typing import TYPE_CHECKING

from broadleaf.client.results.metadata import STDOUT
from broadleaf.errors.display import id_ranges

if TYPE_CHECKING:
    from broadleaf.client.results.async_result import AsyncResult


class LineGroups:
    """One stream of all tasks of a result, line by line: the first lines of all engines together, then the second.

    The lines of an engine stay in order. A line number is shown once every engine has printed its line, or has ended.
    """

    def __init__(self, result: AsyncResult, stream: int) -> None:
        self._result = result
        self._kind, self._is_stdout = ("stdout", True) if stream == STDOUT else ("stderr", False)
        # For each task, the lines that are not shown yet; the last one may be incomplete.
        self._lines: list[deque[str]] = [deque() for _ in range(result.n_parts)]

    def add(self, part: int, text: str) -> None:
        """Adds what a task has written."""
        lines = self._lines[part]
        if lines and not lines[-1].endswith("\n"):
            text = lines.pop() + text
        *whole, rest = text.split("\n")
        lines.extend(line + "\n" for line in whole)
        if rest:
            lines.append(rest)

    def show(self, is_end: bool = False) -> None:
        """Shows the line numbers that are complete, and all of them at the end."""
        shown: list[tuple[tuple[int, ...], list[str]]] = []
        while any(self._lines) and (is_end or all(map(self._has_next, range(len(self._lines))))):
            alike: dict[str, list[int]] = {}
            for part, lines in enumerate(self._lines):
                if lines:
                    alike.setdefault(lines.popleft().rstrip("\n"), []).append(part)
            for text, parts in alike.items():
                if shown and shown[-1][0] == tuple(parts):
                    shown[-1][1].append(text)
                else:
                    shown.append((tuple(parts), [text]))
        for engines, texts in shown:
            self._write(engines, texts)

    def _has_next(self, part: int) -> bool:
        lines = self._lines[part]
        if self._result.part_done(part):
            return True
        return len(lines) > 1 or (len(lines) == 1 and lines[0].endswith("\n"))

    def _write(self, parts: tuple[int, ...], texts: list[str]) -> None:
        engines = {engine for part in parts if (engine := self._result._engine_id(part)) is not None}
        label = f"[{self._kind}:{id_ranges(engines)}]"
        file = sys.stdout if self._is_stdout else sys.stderr
        print(label, "\n".join(texts), sep="\n" if len(texts) > 1 else " ", file=file)
