"""Decides when a controller that has ended is started again, and when that is given up: from its inputs alone."""

from __future__ import annotations

# Pauses before the first start after the controller's end, the second, and so on. There is no start after the last one.
_PAUSES_S = (0.0, 1.0, 2.0, 4.0, 8.0)
# A controller that was up for so long has started: the ends before count no more.
_STEADY_S = 60.0


class Restarts:
    """The ends of a cluster's controller, and the starts that followed. Times are in seconds, of any one clock.

    There are at most five starts in a row after which the controller was not up for a minute, so at most five in any
    minute.
    """

    def __init__(self) -> None:
        self._n_ends = 0
        """Ends in a row, and starts that failed."""
        self._up_since: float | None = None
        self._due_at = 0.0
        self.why_given_up: str = ""
        """Why it is not started again; '' if it is."""

    def came_up(self, now: float) -> None:
        """It was started."""
        self._up_since = now

    def ended(self, now: float, reason: str) -> None:
        """It has ended, or was not started."""
        if self._up_since is not None and now - self._up_since >= _STEADY_S:
            self._n_ends = 0
        self._up_since = None
        self._n_ends += 1
        if self._n_ends > len(_PAUSES_S):
            self.give_up(
                f"it was started {len(_PAUSES_S)} times, and never lasted for a minute; the last time: {reason}"
            )
        else:
            self._due_at = now + _PAUSES_S[self._n_ends - 1]

    def give_up(self, reason: str) -> None:
        """It cannot be started, now or later."""
        self.why_given_up = reason

    def pause_s(self, now: float) -> float:
        """Time until the next start."""
        return max(0.0, self._due_at - now)
