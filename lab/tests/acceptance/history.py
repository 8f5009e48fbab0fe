"""Acceptance 11: a step of 3 % among 200 commits is found within one commit, and none is found if there is none.

    python lab/tests/acceptance/history.py --histories 200

Prints the figures; the exit code is 0 if all hold.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from dataclasses import dataclass

import numpy as np
from broadleaf_lab.comparisons.history import History, search

NOISE = 0.02
STEP = 0.03


@dataclass
class SyntheticHistory:
    """Commits of 1000 us per task, slower by `step` from commit `at` on (None: never), and a machine that drifts."""

    at: int | None
    rng: np.random.Generator
    step: float = STEP
    noise: float = NOISE
    drift: float = 0.0
    runs: int = 0

    def __call__(self, commit: int, config: str, /, *, purpose: str, block: int) -> float | None:
        self.runs += 1
        slower = math.log1p(self.step) if self.at is not None and commit >= self.at else 0.0
        return 1000 * math.exp(slower + self.drift * self.runs / 1000 + self.rng.normal(0, self.noise))


def searched(at: int | None, seed: int, commits: int = 200, points: int | None = None, drift: float = 0.0) -> History:
    """The search of one synthetic history."""
    measure = SyntheticHistory(at, np.random.default_rng([seed, 5]), drift=drift)
    return search(commits, ["baseline"], measure, points=points, replicates=5, seed=seed)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--histories", type=int, default=200)
    parser.add_argument("--commits", type=int, default=200)
    parser.add_argument("--only", default="", help="scenes whose name has this in it")
    given = parser.parse_args()
    failed = False
    for name, points, drift in (("every commit", None, 0.0), ("every commit, drift of 10 %", None, 0.1),
                                ("every fourth commit, then bisection", given.commits // 4, 0.0)):  # fmt: skip
        if given.only not in name:
            continue
        begin = time.perf_counter()
        chance = np.random.default_rng(11)
        near = exact = nothing = extra = runs = 0
        for seed in range(given.histories):
            at = int(chance.integers(10, given.commits - 10))
            found = searched(at, seed, given.commits, points, drift)
            near += any(abs(change.commit - at) <= 1 for change in found.changes)
            exact += any(change.commit == at for change in found.changes)
            extra += sum(abs(change.commit - at) > 1 for change in found.changes)
            runs += found.runs
            none = searched(None, 100_000 + seed, given.commits, points, drift)
            nothing += not none.changes and not none.unresolved
        n = given.histories
        ok = near / n >= 0.95 and nothing / n >= 0.95
        failed |= not ok
        print(
            f"{name}: step of 3 % within one commit in {100 * near / n:.1f} %, exact in {100 * exact / n:.1f} %,"
            f" {extra} other changes claimed; nothing claimed where there is nothing in {100 * nothing / n:.1f} %;"
            f" {runs / n:.0f} runs a history: {'ok' if ok else 'FAILED'}; {time.perf_counter() - begin:.0f} s"
        )
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
