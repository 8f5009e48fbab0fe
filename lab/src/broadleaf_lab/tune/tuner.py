"""The whole of a tuning: pilot, screening, search, race, confirmation, ablation."""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from broadleaf_lab.analysis.failures import Failing, Failures
from broadleaf_lab.analysis.pairs.paired import Ratio
from broadleaf_lab.designs import build
from broadleaf_lab.errors import DesignError, RunError
from broadleaf_lab.spec.factors import Config, Level, changed
from broadleaf_lab.spec.study import DesignSpec, StudySpec
from broadleaf_lab.tune import failing, race
from broadleaf_lab.tune.meter import Budget, Evaluate, Meter, Trial
from broadleaf_lab.tune.search import ALGORITHMS, Search, ranked
from broadleaf_lab.tune.surrogate import PairModel

_PILOT_RUNS = 6
_SCREENING, _SEARCH, _RACE, _CONFIRM = 0.25, 0.40, 0.10, 0.06
_CANDIDATES = 8
_MIN_RUNS = 80
_MIN_PAIRS = 8
_RANDOM_SAMPLE = 1000


@dataclass(frozen=True, slots=True)
class FrontPoint:
    """The fastest configuration whose settings are all of this tier or below, according to the model and the runs
    together.
    """

    tier: int
    config: dict[str, Level]
    predicted_ratio: float
    loses: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Tuned:
    """The result of a tuning.

    `config` is the recommendation; `is_default` says that nothing proven beats the default. `ratio` is its time over
    the default's on fresh runs, None if the default led the race; `winner_ratio` is that of the race's winner.
    `better_than_pct` is the share of possible configurations that the model expects to be slower.

    `failures` are those of all runs; a setting proven to fail more than its default was left out. `failing` are the
    recommended settings that may fail more often; `winner_failing` contains the failures of the winner's own runs
    compared with the default's. A winner that failed more often is not recommended.
    """

    config: dict[str, Level]
    is_default: bool
    ratio: Ratio | None
    failures: Failures
    failing: tuple[Failing, ...]
    winner_failing: Failing
    winner: dict[str, Level]
    winner_ratio: Ratio | None
    settings: tuple[race.Kept, ...]
    given_up: tuple[str, ...]
    front: tuple[FrontPoint, ...]
    better_than_pct: float
    noise_sd: float
    algorithm: str
    trials: tuple[Trial, ...]

    @property
    def left_out(self) -> tuple[Failing, ...]:
        """The settings that fail more often than their default, and so were not considered."""
        return tuple(it for it in self.failures.worse if it.proven)

    @property
    def speed_up(self) -> Ratio | None:
        """How many times as fast as the default."""
        return None if self.ratio is None else self.ratio.inverse()


def tune(
    study: StudySpec,
    evaluate: Evaluate,
    budget: Budget,
    *,
    algorithm: str = "tpe",
    known: Sequence[Trial] = (),
    seed: int = 1,
    clock: Callable[[], float] = time.monotonic,
    say: Callable[[str], None] = lambda line: None,
) -> Tuned:
    """Tunes `study` within `budget`, measuring with `evaluate`. `known` are runs made before, to start the search with.

    The default is recommended unless a configuration is faster on fresh runs with an interval (95 %) that excludes 1.
    Raises RunError if the default itself cannot be run, and DesignError for an unknown algorithm or too small a budget.
    """
    if algorithm not in ALGORITHMS:
        raise DesignError(f"unknown algorithm {algorithm!r}. Choose one of {', '.join(ALGORITHMS)}.")
    if budget.runs is not None and budget.runs < _MIN_RUNS:
        raise DesignError(f"{budget.runs} runs are too few: tuning needs at least {_MIN_RUNS}.")
    meter = Meter(evaluate, study.factors, study.rules(), budget, clock)
    rng = np.random.default_rng(seed)
    default = study.baseline
    noise_sd = _pilot(meter, default)
    meter.known, meter.known_failed = _levelled(meter, known), _failed_before(meter, known)
    total = meter.total()
    if total < _MIN_RUNS:
        raise DesignError(f"the budget is enough for {total} runs; tuning needs at least {_MIN_RUNS}.")
    bar = functools.partial(failing.bar, meter, study)
    bar()
    say(f"pilot: runs of the default differ by {100 * noise_sd:.1f} %; the budget allows {total} runs")

    if algorithm == "tpe":
        # Earlier runs serve as a screening.
        for config in screening(study, max(0, round(_SCREENING * total) - len(meter.known)), seed):
            if meter.left() == 0:
                break
            if meter.constraints.allows(config):
                meter.measure(config, "screen")
        say(f"screening: {len(meter.trials) - _PILOT_RUNS} runs")
        n_search = round(_SEARCH * total)
    else:
        n_search = round((_SCREENING + _SEARCH) * total)
    Search(meter, rng, seed, bar).run(algorithm, min(n_search, meter.left()))
    for it in bar().worse:
        if it.proven:
            say(f"left out: {it.sentence}")
    explored = meter.explored()
    model = PairModel(study.factors, explored)
    say(
        f"search ({algorithm}): {len(explored)} runs so far, best {min(t.time_us or math.inf for t in explored):.4g} us"
    )

    order = [
        (value, config)
        for value, config in ranked(meter, model, explored, noise_sd)
        if meter.constraints.allows(config) and not failing.beside_default(meter, config, default).suspect
    ]
    candidates = _distinct(meter, [c for _, c in order], model, rng, with_model=algorithm == "tpe")
    winner, _ = race.race(meter, candidates, default, min(round(_RACE * total), meter.left() - 2 * _MIN_PAIRS), rng)
    recommended, ratio, winner_ratio, settings = _decide(meter, study, winner, model, total, rng, say)
    every = failing.found_in(meter)
    if any(it.proven for it in failing.suspects(every, recommended, meter)):
        recommended, ratio, settings = default, winner_ratio, ()
    is_default = meter.id_of(recommended) == meter.id_of(default)
    return Tuned(
        config=dict(recommended),
        is_default=is_default,
        ratio=ratio,
        failures=every,
        failing=failing.suspects(every, recommended, meter),
        winner_failing=failing.beside_default(meter, winner, default),
        winner=dict(winner),
        winner_ratio=winner_ratio,
        settings=settings,
        given_up=given_up(study, recommended),
        front=_front(study, order, model, default),
        better_than_pct=_better_than_pct(meter, model, recommended, rng),
        noise_sd=noise_sd,
        algorithm=algorithm,
        trials=tuple(meter.trials),
    )


def _pilot(meter: Meter, default: Config) -> float:
    """Runs the default a few times; the standard deviation of the logarithm."""
    meter.new_block()
    runs = [meter.measure(default, "pilot") for _ in range(_PILOT_RUNS)]
    logs = [trial.log for trial in runs if trial.time_us is not None]
    if len(logs) < 3:
        raise RunError(
            f"{_PILOT_RUNS - len(logs)} of {_PILOT_RUNS} runs of the default failed: make the workload run reliably "
            f"first."
        )
    return max(float(np.std(logs, ddof=1)), 1e-4)


def _levelled(meter: Meter, known: Sequence[Trial]) -> list[Trial]:
    """Earlier runs that are still possible, at today's speed of the machine: shifted by the default's medians."""
    default = meter.id_of({factor.name: factor.default for factor in meter.factors})
    listed = {factor.name: factor.levels for factor in meter.factors}
    usable = [
        t
        for t in known
        # A sweep may have used levels between those that are searched.
        if t.time_us is not None
        and all(t.config[name] in levels for name, levels in listed.items())
        and meter.constraints.allows(t.config)
    ]
    then = [t.log for t in usable if t.config_id == default]
    now = [t.log for t in meter.succeeded() if t.config_id == default]
    shift = float(np.median(now) - np.median(then)) if then else 0.0
    return [replace(t, time_us=math.exp(t.log + shift)) for t in usable]


def _failed_before(meter: Meter, known: Sequence[Trial]) -> list[Trial]:
    """Earlier runs that failed, at levels that still exist."""
    listed = {factor.name: factor.levels for factor in meter.factors}
    return [t for t in known if t.time_us is None and all(t.config[name] in levels for name, levels in listed.items())]


def screening(study: StudySpec, n_runs: int, seed: int) -> list[dict[str, Level]]:
    """The configurations of a design that shows main effects and pairs as far as `n_runs` runs allow, in random order:
    every configuration, the fraction of resolution V, or the best runs by D-optimality, whichever comes first that is
    small enough.
    """
    if n_runs == 0:
        return []
    rules = study.rules()
    rng = np.random.default_rng(seed)
    rows: list[dict[str, Level]] = []
    for kind, runs in (("full", None), ("resolution5", None), ("dopt", n_runs)):
        if kind == "full" and math.prod(len(factor.levels) for factor in study.factors) > n_runs:
            continue
        try:
            plan = build(replace(study, design=DesignSpec(kind=kind, seed=seed, runs=runs, paths=0)))
        except DesignError:
            continue
        rows = [row.config for row in plan.rows if row.purpose == "design"]
        if len(rows) <= n_runs:
            break
    else:
        # Too few runs for any design: they are left to the search.
        rows = rules.sample(rng, n_runs)
    return [rows[i] for i in rng.permutation(len(rows))]


def _distinct(
    meter: Meter, configs: list[Config], model: PairModel, rng: np.random.Generator, *, with_model: bool
) -> list[Config]:
    """The candidates for the race: the best by estimate, and the model's best even if it was never run."""
    chosen: dict[str, Config] = {}
    if with_model:
        best = model.argmin(meter.constraints, rng)
        chosen[meter.id_of(best)] = best
    for config in configs:
        if len(chosen) == _CANDIDATES:
            break
        chosen.setdefault(meter.id_of(config), config)
    return list(chosen.values())


def _decide(
    meter: Meter, study: StudySpec, winner: Config, model: PairModel, total: int, rng: np.random.Generator,
    say: Callable[[str], None],
) -> tuple[Config, Ratio | None, Ratio | None, tuple[race.Kept, ...]]:  # fmt: skip
    """The recommendation, its ratio, the winner's ratio, and the outcome of the winner's settings."""
    default = study.baseline
    rope = math.log1p(study.rope_pct / 100)
    winner = race.simplified(meter, winner, model, rope)
    if meter.id_of(winner) == meter.id_of(default):
        say("race: the default leads")
        return default, None, None, ()
    n_pairs = min(max(_MIN_PAIRS, round(_CONFIRM * total / 2)), meter.left() // 2)
    first = race.confirm(meter, winner, default, n_pairs, rng)
    say(f"confirmation on {first.n} fresh pairs: {first} of the default's time")
    if (fault := failing.beside_default(meter, winner, default)).suspect:
        say(f"confirmation: {fault.rate.text}; none of {fault.default.runs} of the default's")
        return default, first, first, ()
    if not first.high < 1:
        return default, first, first, ()
    # The last pairs judge what ablation leaves, so their runs are set aside.
    ablation = race.ablate(meter, winner, model, rope, max(0, meter.left() - 2 * _MIN_PAIRS), rng)
    left = changed(ablation.config, meter.factors)
    tested = [setting for setting in ablation.settings if setting.benefit is not None]
    if tested:
        stay = sum(setting.kept for setting in tested)
        say(f"ablation: of {len(tested)} settings that were left out in turn, {stay} stay; {len(left)} stay in all")
    else:
        say("ablation: the budget was too small to leave settings out in turn; all stay")
    if ablation.config == dict(winner) and not failing.beside_default(meter, winner, default).suspect:
        return winner, first, first, ablation.settings
    if left and meter.left() >= 2 * _MIN_PAIRS:
        last = race.confirm(meter, ablation.config, default, min(n_pairs, meter.left() // 2), rng)
        if last.high < 1 and not failing.beside_default(meter, ablation.config, default).suspect:
            return ablation.config, last, first, ablation.settings
    # What is left is not proven by itself; the winner is, unless it has failed since.
    if failing.beside_default(meter, winner, default).suspect:
        return default, first, first, ()
    kept = tuple(replace(setting, kept=True) for setting in ablation.settings)
    return winner, first, first, kept


def given_up(study: StudySpec, config: Config) -> tuple[str, ...]:
    """What the settings of a configuration lose, in words."""
    return tuple(
        f"{name}: {study.factor(name).loses}" for name in changed(config, study.factors) if study.factor(name).loses
    )


def _front(
    study: StudySpec, order: list[tuple[float, Config]], model: PairModel, default: Config
) -> tuple[FrontPoint, ...]:
    """Speed against tier: a point wherever giving up more is expected to be faster."""
    tiers = {factor.name: factor.tier for factor in study.factors}
    start = next((value for value, config in order if config == default), float(model.predict([default])[0]))
    points: list[FrontPoint] = []
    best = 0.0
    for tier in sorted(set(tiers.values())):
        within = [
            (value, config)
            for value, config in order
            if all(tiers[name] <= tier for name in changed(config, study.factors))
        ]
        if not within:
            continue
        # Among those that are as good as the best, the one with the fewest changes.
        rope = math.log1p(study.rope_pct / 100)
        alike = [pair for pair in within if pair[0] <= within[0][0] + rope]
        value, config = min(alike, key=lambda pair: len(changed(pair[1], study.factors)))
        if not points or value - start < best - 1e-9:
            best = value - start
            points.append(FrontPoint(tier, dict(config), math.exp(best), given_up(study, config)))
    return tuple(points)


def _better_than_pct(meter: Meter, model: PairModel, config: Config, rng: np.random.Generator) -> float:
    sample = meter.constraints.sample(rng, _RANDOM_SAMPLE)
    mine = float(model.predict([config])[0])
    return 100.0 * float(np.mean(model.predict(sample) > mine + 1e-9))
