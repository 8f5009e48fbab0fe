"""How many tasks a run has, and how often to repeat within a run.

One number applies to the whole study: otherwise a faster treatment would get a larger batch, and the effect of the
batch size would be taken for the treatment's. Only if the slowest configuration would take more than twenty times as
long as the fastest does each have its own.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from broadleaf_lab.errors import RunError
from broadleaf_lab.run.command import uses
from broadleaf_lab.run.environments.environment import HERE, Environments, Variant
from broadleaf_lab.run.outcome import Invalid
from broadleaf_lab.run.single import Quiet, Runner
from broadleaf_lab.run.tasks import MARGIN, MAX_STEP, TasksByConfig, round_up
from broadleaf_lab.spec.factors import Config, Level
from broadleaf_lab.spec.lock import read_lock, write_lock
from broadleaf_lab.spec.runs import Run
from broadleaf_lab.spec.study import Calibrate, StudySpec

_ROUNDS = 25
_MAX_RANGE = 20.0
"""With one number of tasks, the slowest of the calibrating runs may take so many times as long as the fastest."""
PILOT_STARTS = 6
PILOT_ITERATIONS = 5
MAX_ITERATIONS = 20
PILOT_LIMIT_S = 15.0
"""A start of the pilot that takes longer ends it."""


@dataclass(frozen=True, slots=True)
class Calibration:
    """The calibration for every run of a study. `fastest_s` is the duration of the fastest calibrating run; the spreads
    are relative standard deviations between starts and between iterations of one start, None if no pilot was made.
    `min_tasks` is None if all runs have `n_tasks`; otherwise each configuration has its own number between the two.
    """

    n_tasks: int
    iterations: int
    fastest_s: float | None = None
    sd_start_pct: float | None = None
    sd_iteration_pct: float | None = None
    min_tasks: int | None = None

    @classmethod
    def load(cls, study: StudySpec) -> Calibration | None:
        """The calibration that runs of this study were made with, if there are any."""
        table = read_lock(study.directory).get("calibration")
        if table is None:
            return None
        try:
            return cls(**table)
        except TypeError:
            raise RunError(
                f"{study.directory}/study.lock.toml: [calibration] does not have the expected keys."
            ) from None

    def save(self, study: StudySpec) -> None:
        """Stores it for later runs."""
        write_lock(study.directory, {"calibration": {name: getattr(self, name) for name in self.__slots__}})

    def runner(
        self,
        environments: Environments,
        *,
        quiet: Quiet | None = None,
        made: Iterable[Run] = (),
    ) -> Runner:
        """A runner whose runs can be compared with those made before; `made` are earlier runs of the study."""
        tasks = None
        if self.min_tasks is not None:
            tasks = TasksByConfig(self.min_tasks, self.n_tasks, environments.study.calibrate.min_s, made)
        return Runner(
            environments,
            n_tasks=self.n_tasks,
            iterations=self.iterations,
            quiet=quiet,
            tasks=tasks,
        )


def calibrate(
    environments: Environments,
    variant: Variant = HERE,
    *,
    only: Config | None = None,
    quiet: Quiet | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> Calibration:
    """Chooses the number of tasks so that the faster of baseline and all-on takes `min_s`, and whether each
    configuration has its own. If the study leaves the iterations at 1 and the workload can repeat itself, it chooses
    these as well. With `only`, that configuration takes the place of both. Raises RunError if the first of them cannot
    be run at all.
    """
    study = environments.study
    limits = study.calibrate
    runner = Runner(environments, n_tasks=limits.min_tasks, iterations=1, quiet=quiet)
    first = study.baseline if only is None else only
    fastest_s: float | None = None
    min_tasks: int | None = None
    if limits.n_tasks is not None:
        runner.n_tasks = limits.n_tasks
    elif uses(study, "n_tasks"):
        configs = [first]
        if only is None and (other := reachable_all_on(runner, variant)) != first:
            configs.append(other)
        fastest_s, min_tasks = _grow(runner, variant, configs, limits, say)
        if min_tasks is not None:
            runner.tasks = TasksByConfig(min_tasks, runner.n_tasks, limits.min_s)
    else:
        runner.n_tasks = 1
    iterations, sd_start, sd_iteration = study.iterations, None, None
    if uses(study, "iterations") and study.iterations == 1:
        say(f"pilot: {PILOT_STARTS} starts of {PILOT_ITERATIONS} iterations")
        runner.try_out(first, variant)
        runner.iterations = PILOT_ITERATIONS + 1
        iterations, sd_start, sd_iteration = pilot(runner, first, variant)
    return Calibration(runner.n_tasks, iterations, fastest_s, sd_start, sd_iteration, min_tasks)


def _grow(
    runner: Runner, variant: Variant, configs: Sequence[Config], limits: Calibrate, say: Callable[[str], None]
) -> tuple[float, int | None]:
    """Multiplies the tasks until every run of these configurations takes `min_s`. Returns how long the fastest then
    takes and, if the slowest is far slower, with how many tasks it takes that long.
    """
    study, min_s, max_tasks = runner.study, limits.min_s, limits.max_tasks
    fastest = math.inf
    each_s: dict[int, float] = {}
    for _ in range(_ROUNDS):
        times = []
        for index, config in enumerate(configs):
            if each_s.get(index, 0.0) * runner.n_tasks > _MAX_RANGE * min_s:
                # Its time is known: repeating it would take as long as all others.
                continue
            row = runner.run(config, variant, n_tasks=runner.n_tasks)
            if row["status"] == "ok":
                times.append(float(row["total_s"]))
                each_s[index] = times[-1] / runner.n_tasks
                if row["n_tasks"] != runner.n_tasks:
                    # It does not accept a number of tasks: its own report counts.
                    runner.n_tasks = row["n_tasks"]
                    return times[-1], None
            elif config is configs[0]:
                raise RunError(
                    f"study {study.name!r}: the baseline cannot be run ({row['status']}): {row['error']} Run the "
                    "command by hand."
                )
        if not times:
            break
        fastest = min(times)
        tasks = "1 task" if runner.n_tasks == 1 else f"{runner.n_tasks:,} tasks"
        say(f"calibrating: the fastest configuration runs {tasks} in {fastest:.3f} s")
        if fastest >= min_s or runner.n_tasks >= max_tasks:
            break
        # Far from the goal, the start-up hides what a task costs, so the steps are bounded.
        step = min(MAX_STEP, max(MARGIN, MARGIN * min_s / fastest))
        runner.n_tasks = min(max_tasks, max(runner.n_tasks + 1, round_up(runner.n_tasks * step)))
    slowest, quickest = max(each_s.values()), min(each_s.values())
    if slowest <= _MAX_RANGE * quickest:
        return fastest, None
    min_tasks = min(runner.n_tasks, max(1, round_up(MARGIN * min_s / slowest)))
    say(
        f"a task takes {slowest / quickest:.0f} times as long in the slowest of these as in the fastest: each "
        f"configuration has its own number of tasks, from {min_tasks:,} to {runner.n_tasks:,}, so that its runs take "
        f"{min_s:g} s"
    )
    return fastest, min_tasks


def reachable_all_on(runner: Runner, variant: Variant = HERE) -> dict[str, Level]:
    """All on, except for levels that this machine does not have."""
    study = runner.study
    config = study.all_on
    for factor in study.factors:
        if runner.can_run(config, variant):
            break
        if not runner.can_run({**study.baseline, factor.name: config[factor.name]}, variant):
            config[factor.name] = factor.default
    # Without the excluded level, the rest of the configuration may be impossible.
    return config if study.rules().allows(config) else study.baseline


def pilot(runner: Runner, config: Config, variant: Variant = HERE) -> tuple[int, float | None, float | None]:
    """Measures how starts and iterations vary and what they cost.

    Returns the most efficient number of iterations per start, and the spreads between starts and between iterations in
    percent; 1 and no spreads if there is nothing to optimise.
    """
    starts: list[list[float]] = []
    start_cost_s, iteration_cost_s = [], []
    for _ in range(PILOT_STARTS):
        try:
            times, finished = runner.iteration_times_us(config, variant)
        except Invalid as error:
            raise RunError(f"study {runner.study.name!r}: the pilot of the baseline failed: {error}") from None
        if len(times) < 2 or finished.duration_s > PILOT_LIMIT_S:
            # It reports no iterations, or takes so long that its start hardly counts: there is nothing to optimise.
            return 1, None, None
        each_s = statistics.mean(times) * runner.tasks_of(config) / 1e6
        iteration_cost_s.append(each_s)
        start_cost_s.append(max(0.0, finished.duration_s - each_s * len(times)))
        starts.append([math.log(t) for t in times[1:]])
    var_start, var_iteration = variance_components(starts)
    chosen = kalibera_jones(var_start, var_iteration, statistics.mean(start_cost_s), statistics.mean(iteration_cost_s))
    # One more: the first is dropped as a warm-up.
    return chosen + 1, 100 * math.sqrt(var_start), 100 * math.sqrt(var_iteration)


def variance_components(starts: Sequence[Sequence[float]]) -> tuple[float, float]:
    """Variance between starts and between iterations within a start (one-way random effects, equal sizes)."""
    size = len(starts[0])
    within = statistics.mean(statistics.variance(start) for start in starts)
    between = statistics.variance([statistics.mean(start) for start in starts])
    return max(0.0, between - within / size), within


def kalibera_jones(var_start: float, var_iteration: float, cost_start: float, cost_iteration: float) -> int:
    """Iterations per start that give the narrowest interval for the time: ceil(sqrt(cost ratio x variance ratio)),
    between 1 and 20."""
    if var_iteration <= 0 or cost_start <= 0:
        return 1
    if var_start <= 0 or cost_iteration <= 0:
        return MAX_ITERATIONS
    best = math.sqrt((cost_start / cost_iteration) * (var_iteration / var_start))
    return max(1, min(MAX_ITERATIONS, math.ceil(best)))
