"""Which commits changed the speed: a grid of commits is measured in turn, change points become candidates, and fresh
runs of parent against child decide.

What is measured is a `Measure`, so that a synthetic history is searched by the same code as a repository.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Protocol

import numpy as np
from scipy.special import stdtr

from broadleaf_lab.analysis import frame as frames
from broadleaf_lab.analysis.multiplicity import holm
from broadleaf_lab.analysis.pairs.deltas import median_variance
from broadleaf_lab.analysis.pairs.intervals import mean_interval
from broadleaf_lab.analysis.pairs.paired import Ratio, ratio
from broadleaf_lab.errors import AnalysisError

REPLICATES = 5
ALPHA = 0.05
_POWER_Z = 2.3263
_MIN_PAIRS, _MAX_PAIRS = 8, 60
_WIDER = 3
_BISECT_ALPHA = 0.01


class Measure(Protocol):
    """Runs one configuration (by its name) at one commit (by its index) once: microseconds per task, None if it failed.
    `purpose` and `block` are for the record."""

    def __call__(self, commit: int, config: str, /, *, purpose: str, block: int) -> float | None: ...


@dataclass(frozen=True, slots=True)
class Point:
    """One commit of the grid under one configuration."""

    commit: int
    config: str
    median_us: float
    n: int


@dataclass(frozen=True, slots=True)
class Change:
    """A commit that changed the speed. `ratio` is its time relative to the previous commit's, on fresh pairs of runs;
    `p` is adjusted for all candidates.
    """

    commit: int
    config: str
    ratio: Ratio
    p: float


@dataclass(frozen=True, slots=True)
class Unresolved:
    """A proven change between two commits whose exact position fresh runs could not settle: after `first`, up to
    `last`.
    """

    first: int
    last: int
    config: str
    ratio: Ratio


@dataclass(frozen=True, slots=True)
class History:
    """What was measured and found. `spread` is the standard deviation of the logarithm of a run."""

    points: tuple[Point, ...]
    changes: tuple[Change, ...]
    unresolved: tuple[Unresolved, ...]
    candidates: int
    spread: float
    runs: int


@dataclass
class _Runs:
    """Makes the runs and counts them."""

    measure: Measure
    rng: np.random.Generator
    made: int = 0
    block: int = 0

    def logs(self, entries: Sequence[tuple[int, str]], purpose: str) -> list[float | None]:
        """One block: every (commit, configuration) once in random order; their log times."""
        self.block += 1
        found: list[float | None] = [None] * len(entries)
        for index in self.rng.permutation(len(entries)):
            commit, config = entries[index]
            self.made += 1
            time_us = self.measure(commit, config, purpose=purpose, block=self.block)
            found[index] = math.log(time_us) if time_us is not None and time_us > 0 else None
        return found

    def differences(self, before: int, after: int, config: str, n: int) -> list[float]:
        """Log time of `after` minus that of `before` on `n` fresh pairs."""
        found: list[float] = []
        for _ in range(n):
            one, other = self.logs([(before, config), (after, config)], "history")
            if one is not None and other is not None:
                found.append(other - one)
        return found


def search(
    n_commits: int,
    configs: Sequence[str],
    measure: Measure,
    *,
    points: int | None = None,
    replicates: int = REPLICATES,
    seed: int = 1,
    say: Callable[[str], None] = lambda line: None,
) -> History:
    """The changes among commits 0 to `n_commits` - 1, of which `points` (all, if None) make the grid.

    Raises AnalysisError if there are too few commits, or too few runs that ended well.
    """
    if n_commits < 2 or replicates < 2:
        raise AnalysisError("a history needs at least two commits and two replicates.")
    runs = _Runs(measure, np.random.default_rng(seed))
    grid = coarse_grid(n_commits, n_commits if points is None else points)
    logs: dict[tuple[int, str], list[float]] = {(c, config): [] for c in grid for config in configs}
    rounds: dict[str, list[float]] = {config: [] for config in configs}
    entries = list(logs)
    for number in range(replicates):
        # Every replicate is a round over all commits, so that drift affects all alike; subtracting the round's mean
        # removes it.
        made = dict(zip(entries, runs.logs(entries, "history"), strict=True))
        for config in configs:
            ended = {entry: log for entry, log in made.items() if entry[1] == config and log is not None}
            if ended:
                rounds[config].append(statistics.fmean(ended.values()))
            for entry, log in ended.items():
                logs[entry].append(log - rounds[config][-1])
        if number == 0 and (failed := [config for config in configs if not rounds[config]]):
            raise AnalysisError(
                f"configuration {failed[0]!r}: none of {len(grid)} runs in the first round succeeded, so no more were "
                "made. Their errors are in history.csv."
            )
        say(f"round {number + 1} of {replicates}: {len(entries)} runs")
    spread = pooled_sd(list(logs.values()))
    level = {config: statistics.fmean(means) for config, means in rounds.items() if means}
    medians = tuple(
        Point(c, config, math.exp(level[config] + statistics.median(times)), len(times))
        for (c, config), times in logs.items()
        if times
    )
    suspects: list[_Suspect] = []
    for config in configs:
        there = [c for c in grid if logs[c, config]]
        if len(there) < 2:
            raise AnalysisError(f"configuration {config!r} ran at {len(there)} of {len(grid)} commits: too few.")
        series = [statistics.median(logs[c, config]) for c in there]
        typical = statistics.median(len(logs[c, config]) for c in there)
        starts = change_points(series, spread * math.sqrt(median_variance(round(typical))))
        ends = [0, *starts, len(series)]
        levels = [statistics.fmean(series[a:b]) for a, b in pairwise(ends)]
        for index, (before, after) in zip(starts, pairwise(levels), strict=True):
            # The step between whole levels: two single commits differ by chance, and the largest differences were
            # selected.
            suspects.append(_Suspect(there[index - 1], there[index], config, after - before))
    say(f"{len(suspects)} candidates; runs differ by {100 * spread:.1f} %")
    changes, unresolved = _decide(runs, suspects, n_commits, spread, say)
    return History(medians, tuple(changes), tuple(unresolved), len(suspects), spread, runs.made)


def coarse_grid(n_commits: int, points: int) -> list[int]:
    """`points` commits, evenly spaced from the first to the last."""
    points = max(2, min(points, n_commits))
    return sorted({round(i * (n_commits - 1) / (points - 1)) for i in range(points)})


def pooled_sd(groups: Sequence[Sequence[float]]) -> float:
    """The standard deviation within groups. Raises AnalysisError without a group of two."""
    sd, degrees = frames.pooled_sd(np.concatenate(groups), np.repeat(np.arange(len(groups)), list(map(len, groups))))
    if degrees == 0:
        raise AnalysisError("no commit ran twice, so noise cannot be distinguished from change. Use more replicates.")
    return max(sd, 1e-6)


def change_points(series: Sequence[float], sd: float) -> list[int]:
    """Indices at which a new level begins: optimal partitioning (PELT) of squared error, with a penalty of
    2 sd^2 ln n for each change."""
    import ruptures

    signal = np.asarray(series, dtype=float)[:, None]
    if len(signal) < 2:
        return []
    penalty = 2 * sd**2 * math.log(len(signal))
    found: list[int] = ruptures.Pelt(model="l2", min_size=1, jump=1).fit(signal).predict(pen=penalty)
    return [int(index) for index in found[:-1]]


def pairs_for(step: float, spread: float) -> int:
    """Pairs of runs that prove three quarters of a log step with 99 % power, at the 1 % that Holm leaves of 5 % with a
    few candidates. A step that was searched for is smaller than it looks.
    """
    sure = max(0.75 * abs(step), spread / 4)
    needed = 2 * (spread / sure) ** 2 * (2.5758 + _POWER_Z) ** 2
    return max(_MIN_PAIRS, min(_MAX_PAIRS, math.ceil(needed)))


def two_sided_p(differences: Sequence[float]) -> float:
    """p of "no difference" by the paired t test; 1 with fewer than two pairs."""
    if len(differences) < 2:
        return 1.0
    sd = statistics.stdev(differences)
    if sd == 0:
        return 1.0 if differences[0] == 0 else 0.0
    t = abs(statistics.fmean(differences)) / (sd / math.sqrt(len(differences)))
    return float(2 * stdtr(len(differences) - 1, -t))


@dataclass
class _Suspect:
    """A candidate with the result of its fresh runs. The change is after `first`, and at `last` at the latest."""

    first: int
    last: int
    config: str
    step: float
    differences: list[float] = field(default_factory=list)

    @property
    def p(self) -> float:
        return two_sided_p(self.differences)


def _decide(
    runs: _Runs, suspects: Sequence[_Suspect], n_commits: int, spread: float, say: Callable[[str], None]
) -> tuple[list[Change], list[Unresolved]]:
    """Fresh runs of parent against child for every candidate, with Holm's correction over all; an interval is bisected,
    and a candidate that is not proven is searched for a few commits to either side.
    """
    for suspect in suspects:
        suspect.differences = runs.differences(
            suspect.first, suspect.last, suspect.config, pairs_for(suspect.step, spread)
        )
    # Half of the error budget goes to the candidates as found, half to the wider search.
    adjusted = holm([s.p for s in suspects])
    changes: list[Change] = []
    unresolved: list[Unresolved] = []
    missed: list[_Suspect] = []
    for suspect, p in zip(suspects, adjusted, strict=True):
        if p <= ALPHA / 2:
            _settle(runs, suspect, p, spread, changes, unresolved)
        else:
            missed.append(suspect)
    wider = [_widened(suspect, n_commits) for suspect in missed]
    wider = [s for s in wider if not any(c.config == s.config and s.first < c.commit <= s.last for c in changes)]
    for suspect in wider:
        suspect.differences = runs.differences(
            suspect.first, suspect.last, suspect.config, pairs_for(suspect.step, spread)
        )
    adjusted = holm([s.p for s in wider])
    for suspect, p in zip(wider, adjusted, strict=True):
        known = any(c.config == suspect.config and suspect.first < c.commit <= suspect.last for c in changes)
        if p <= ALPHA / 2 and not known:
            _settle(runs, suspect, p, spread, changes, unresolved)
    for change in changes:
        say(f"commit {change.commit}: {change.config} takes {change.ratio} of the time before it")
    return sorted(changes, key=lambda c: (c.config, c.commit)), unresolved


def _widened(suspect: _Suspect, n_commits: int) -> _Suspect:
    """The neighbouring commits too: noise can move a change point by one position of the grid."""
    more = max(_WIDER, suspect.last - suspect.first)
    return _Suspect(max(0, suspect.first - more), min(n_commits - 1, suspect.last + more), suspect.config, suspect.step)


def _settle(
    runs: _Runs, suspect: _Suspect, p: float, spread: float, changes: list[Change], unresolved: list[Unresolved]
) -> None:
    """Bisects a proven interval down to one commit."""
    size = ratio(suspect.differences)
    step = statistics.fmean(suspect.differences)
    first, last, config = suspect.first, suspect.last, suspect.config
    while last - first > 1:
        middle = (first + last) // 2
        side = _side(runs, first, middle, last, config, step, spread)
        if side is None:
            unresolved.append(Unresolved(first, last, config, size))
            return
        first, last = (middle, last) if side < 0 else (first, middle)
    changes.append(Change(last, config, size, p))


def _side(runs: _Runs, first: int, middle: int, last: int, config: str, step: float, spread: float) -> int | None:
    """-1 if `middle` is like the commits before the change, 1 if like those after it, None if no number of runs made
    that clear.
    """
    scores: list[float] = []
    limit = 4 * pairs_for(step, spread)
    while len(scores) < limit:
        before, here, after = runs.logs([(first, config), (middle, config), (last, config)], "history")
        if before is None or here is None or after is None:
            limit -= 1
            continue
        # Above 0 on the side of the later commit, whichever way the step goes.
        scores.append((here - (before + after) / 2) * math.copysign(1.0, step))
        if len(scores) >= 5:
            found = mean_interval(scores, _BISECT_ALPHA)
            if found.low > 0 or found.high < 0:
                return 1 if found.low > 0 else -1
    if len(scores) < 2:
        return None
    found = mean_interval(scores, 0.2)
    return None if found.low <= 0 <= found.high else (1 if found.low > 0 else -1)
