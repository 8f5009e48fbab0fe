"""When a scheduler is asked for news of jobs: each call costs it something.

On average it is one call in 30 s: any other call postpones the regular ones.
"""

from __future__ import annotations

import time
from collections.abc import Iterable

# A first call comes early, to know why jobs are pending.
_FIRST_AFTER_S = 3.0
_EVERY_S = 30.0
# A scheduler tells of a job's end later than the job does. It is asked again after ever longer times.
_ENDING_S = 0.5
_ENDING_FACTOR = 1.5
# How long other calls may postpone the regular ones.
_AHEAD_S = 120.0


class News:
    """Says when the next call is due."""

    def __init__(self) -> None:
        self._regular_at = 0.0
        self._early_at = float("inf")
        self._repeat_at = float("inf")
        self._repeat_after_s = _ENDING_S
        self._ended: set[str] = set()

    def expect_first(self) -> None:
        """Jobs have just been submitted."""
        now = time.monotonic()
        if not self._regular_at:
            self._regular_at = now + _EVERY_S
            self._early_at = now + _FIRST_AFTER_S
        elif self._regular_at < now:  # there were no jobs to ask for
            self._regular_at = now + _FIRST_AFTER_S

    def want_now(self) -> None:
        """Whoever asks next gets news at once."""
        self._early_at = 0.0

    def want_ends(self) -> None:
        """The scheduler does not know yet that jobs have ended. The call is repeated."""
        self._repeat_at = time.monotonic() + self._repeat_after_s
        self._repeat_after_s = min(self._repeat_after_s * _ENDING_FACTOR, _EVERY_S)

    def are_due(self, ended: Iterable[str]) -> bool:
        """Whether to call now: on average every 30 s, and soon after a job's log says that it has ended.

        Args:
            ended: The jobs whose logs say so.

        Returns:
            Whether to call. If so, the call is counted as made.
        """
        now = time.monotonic()
        if not self._ended.issuperset(ended):
            self._ended.update(ended)
            self._repeat_after_s = _ENDING_S
            # Once early calls have postponed the regular ones for long, further ends wait.
            self._early_at = min(self._early_at, max(now, self._regular_at - _AHEAD_S))
        if now < min(self._regular_at, self._early_at, self._repeat_at):
            return False
        self._regular_at = min(max(self._regular_at, now) + _EVERY_S, now + _AHEAD_S + _EVERY_S)
        self._early_at = self._repeat_at = float("inf")
        return True
