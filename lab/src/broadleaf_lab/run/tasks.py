"""How many tasks a run has, if one number for all would make the slow configurations take very long.

The cost of starting is spread over a run's tasks. If runs take equally long, it is the same share of each time, so that
ratios of times do not change; with one number of tasks it is the same time in each.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from broadleaf_lab.spec.runs import Run

MARGIN, MAX_STEP = 1.15, 10.0
"""How much longer than wanted a run is meant to take, and by how much at most its tasks are multiplied at once."""


class TasksByConfig:
    """The number of tasks of each configuration, so that its runs take `min_s`: between `minimum` and `maximum`. All
    runs of a configuration have the same number, including those of earlier sessions (`made`).
    """

    def __init__(self, minimum: int, maximum: int, min_s: float, made: Iterable[Run] = ()) -> None:
        self.minimum: int = minimum
        self.maximum: int = maximum
        self._min_s = min_s
        self._known: dict[str, int] = {
            str(row["config_id"]): int(row["n_tasks"])
            for row in made
            if row.get("status") == "ok" and row.get("n_tasks")
        }

    def of(self, config_id: str) -> int | None:
        """The number of a configuration; None if it was not run yet."""
        return self._known.get(config_id)

    def learn(self, config_id: str, trial: Run) -> int:
        """The number of tasks to try next after a run that ended well; the same number if that is final."""
        n, total_s = int(trial["n_tasks"]), max(float(trial["total_s"]), 1e-9)
        if total_s < self._min_s and n < self.maximum:
            # If runs are short, the start hides what a task costs, so the steps are bounded.
            step = min(MAX_STEP, max(MARGIN, MARGIN * self._min_s / total_s))
            return min(self.maximum, max(n + 1, round_up(n * step)))
        self._known[config_id] = n
        return n


def round_up(number: float) -> int:
    """To two leading digits, which are easier to read."""
    size = 10 ** max(0, math.floor(math.log10(number)) - 1)
    return int(math.ceil(number / size) * size)
