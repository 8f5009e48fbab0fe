"""When a scheduler is asked for news of jobs: each call costs it something."""

from __future__ import annotations

import time
from collections.abc import Iterable

# A first call comes early, to know why jobs are pending.
_FIRST_AFTER_S = 3.0
_EVERY_S = 30.0
# A scheduler tells of a job's end a little later than the job does.
_ENDING_S = 0.5


class News:
    """Says when the next call is due."""

    def __init__(self) -> None:
        self._next_at = 0.0
        self._asked_at = float("-inf")
        self._ended: set[str] = set()

    def expect_first(self) -> None:
        """Jobs have just been submitted."""
        self._next_at = max(time.monotonic() + _FIRST_AFTER_S, self._asked_at + _EVERY_S)

    def want_now(self) -> None:
        """Whoever asks next gets news at once."""
        self._next_at = 0.0

    def want_ends(self) -> None:
        """Jobs have ended, and the scheduler has not told so yet."""
        self._next_at = time.monotonic() + _ENDING_S

    def are_due(self, ended: Iterable[str]) -> bool:
        """Whether to call now: every 30 s, and for each job whose log says that it has ended.

        Args:
            ended: The jobs whose logs say so.

        Returns:
            Whether to call. If so, the call is counted as made.
        """
        if time.monotonic() < self._next_at and self._ended.issuperset(ended):
            return False
        self._ended.update(ended)
        self._asked_at = time.monotonic()
        self._next_at = self._asked_at + _EVERY_S
        return True
