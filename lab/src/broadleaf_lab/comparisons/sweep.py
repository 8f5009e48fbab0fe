"""Varies one factor over its levels: scaling and response curves."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from broadleaf_lab.analysis.pairs.intervals import Interval, mean_interval
from broadleaf_lab.errors import RunError
from broadleaf_lab.run.environments.environment import with_excludes
from broadleaf_lab.run.planned import ready
from broadleaf_lab.run.single import Quiet, record
from broadleaf_lab.spec.factors import Config, Factor, Level, config_id
from broadleaf_lab.spec.runs import Run, RunsFile
from broadleaf_lab.spec.study import StudySpec

REPLICATES = 5


@dataclass(frozen=True, slots=True)
class Point:
    """One level of a sweep. `ratio` is its time over that of the reference level, from runs of the same block; None for
    the reference itself, and if too few runs ended well.
    """

    level: Level
    runs: int
    failed: int
    median_us: float | None
    ratio: Interval | None


@dataclass(frozen=True, slots=True)
class Sweep:
    """A response curve."""

    factor: str
    reference: Level
    points: tuple[Point, ...]

    @property
    def best(self) -> Point | None:
        """The fastest level."""
        measured = [point for point in self.points if point.median_us is not None]
        return min(measured, key=lambda point: point.median_us or math.inf, default=None)

    def exponents(self) -> list[tuple[Level, Level, float]]:
        """Between neighbouring positive levels of a numeric factor, the exponent with which time depends on it: -1 is
        perfect scaling, 0 none.
        """
        numeric = [
            (float(point.level), point)
            for point in self.points
            if isinstance(point.level, int | float) and not isinstance(point.level, bool)
        ]
        usable = [(x, point) for x, point in sorted(numeric, key=lambda pair: pair[0]) if x > 0 and point.median_us]
        return [
            (a.level, b.level, math.log((b.median_us or 1) / (a.median_us or 1)) / math.log(y / x))
            for (x, a), (y, b) in pairwise(usable)
        ]


def sweep(
    study: StudySpec,
    factor: Factor,
    *,
    levels: Sequence[Level] = (),
    context: Config | None = None,
    replicates: int = REPLICATES,
    quiet: Quiet | None = None,
    on_run: Callable[[Run, int, int], None] | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> Sweep:
    """Measures the levels in `context` (the baseline if None), `replicates` times, each time in a different order. Runs
    made before count: a sweep that was stopped continues. Levels that the constraints forbid are left out. Raises
    RunError if fewer than two are left.
    """
    study = with_excludes(study)
    context = context or study.baseline
    rules = study.rules()
    configs = {level: rules.settle({**context, factor.name: level}) for level in levels or factor.levels}
    configs = {level: config for level, config in configs.items() if rules.allows(config)}
    if len(configs) < 2:
        raise RunError(
            f"factor {factor.name!r}: the constraints leave {len(configs)} levels here. Try another context."
        )
    ids = {level: config_id(config, study.factors) for level, config in configs.items()}
    environments, calibration = ready(study, list(configs.values()), quiet=quiet, say=say)
    runner = calibration.runner(environments, quiet=quiet)
    rng = random.Random(study.design.seed)
    with RunsFile(study.runs_path, study.factors, study.responses) as runs:
        done = {(row["config_id"], row["replicate"]) for row in runs.rows if row["purpose"] == "sweep"}
        block = runs.next_block
        made, total = 0, len(configs) * replicates
        for replicate in range(replicates):
            order = rng.sample(list(configs), len(configs))
            for position, level in enumerate(order):
                made += 1
                if (ids[level], replicate) in done:
                    continue
                kept = record(runner, runs, configs[level], block=block + replicate, order_in_block=position,
                              purpose="sweep", replicate=replicate)  # fmt: skip
                if on_run is not None:
                    on_run(kept, made, total)
        rows = [row for row in runs.rows if row["purpose"] == "sweep"]
    reference = factor.default if factor.default in configs else next(iter(configs))
    return Sweep(factor.name, reference, tuple(_points(rows, ids, reference)))


def _points(rows: Sequence[Run], ids: dict[Level, str], reference: Level) -> list[Point]:
    by_id: dict[str, dict[int, Run]] = {}
    for row in rows:
        by_id.setdefault(row["config_id"], {})[row["replicate"]] = row
    against = by_id.get(ids[reference], {})
    points = []
    for level, key in ids.items():
        here = by_id.get(key, {})
        times = {r: row["time_per_task_us"] for r, row in here.items() if row["status"] == "ok"}
        logs = [
            math.log(us / against[r]["time_per_task_us"])
            for r, us in times.items()
            if level != reference and r in against and against[r]["status"] == "ok"
        ]
        points.append(
            Point(
                level,
                len(times),
                len(here) - len(times),
                statistics.median(times.values()) if times else None,
                mean_interval(logs) if len(logs) > 1 else None,
            )
        )
    return points
