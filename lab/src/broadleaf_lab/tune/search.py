"""Searches for fast configurations: TPE with a pair model, or greedy and random search for comparison."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from broadleaf_lab.errors import DesignError
from broadleaf_lab.spec.factors import Config, Factor, Level
from broadleaf_lab.tune.meter import Meter, Trial
from broadleaf_lab.tune.surrogate import PairModel, changes_of_one

if TYPE_CHECKING:
    import optuna

ALGORITHMS = ("tpe", "greedy", "random")
_MODEL_EVERY = 5
_BAR_EVERY = 20
_MAX_REPEATS = 2
_TRIES = 3


@dataclass
class Search:
    """What every algorithm needs. `seed` makes it repeatable."""

    meter: Meter
    rng: np.random.Generator
    seed: int
    bar: Callable[[], object] = lambda: None
    """Called now and then: takes what is proven to fail out of the meter's constraints."""

    def run(self, algorithm: str, n_runs: int) -> None:
        """Spends `n_runs` runs; afterwards they are in the meter's record."""
        match algorithm:
            case "tpe":
                self._optuna(n_runs)
            case "greedy":
                self._greedy(n_runs)
            case "random":
                for number in range(n_runs):
                    if number % _BAR_EVERY == 0:
                        self.bar()
                    self.meter.measure(self.meter.constraints.sample(self.rng, 1)[0], "tune")
            case _:
                raise DesignError(f"unknown algorithm {algorithm!r}. Choose one of {', '.join(ALGORITHMS)}.")

    # Samplers ------------------------------------------------------------------------------------

    def _tpe_sampler(self) -> optuna.samplers.BaseSampler:
        import optuna

        with warnings.catch_warnings():
            # multivariate, group and constant_liar are marked experimental.
            warnings.simplefilter("ignore")
            return optuna.samplers.TPESampler(
                multivariate=True, group=True, constant_liar=True, n_startup_trials=10, seed=self.seed
            )

    def _optuna(self, n_runs: int) -> None:
        import optuna

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        space = _Space(self.meter)
        study = optuna.create_study(direction="minimize", sampler=self._tpe_sampler())
        study.add_trials([space.trial(trial) for trial in self.meter.explored()])
        for number in range(1, n_runs + 1):
            if number % _BAR_EVERY == 0:
                self.bar()
            if number % _MODEL_EVERY == 0:
                measured = self.meter.measure(self.model_choice(), "tune")
                if measured.time_us is not None:
                    study.add_trial(space.trial(measured))
                continue
            self._ask(study, space)

    def _ask(self, study: optuna.Study, space: _Space) -> None:
        """One run of what the sampler proposes. A configuration that is impossible, or was run often enough, is
        reported as failed.
        """
        import optuna

        known: list[dict[str, Level]] = []
        for _ in range(_TRIES):
            trial = study.ask()
            config = space.suggest(trial)
            possible = self.meter.constraints.allows(config)
            if not possible or self.meter.times_seen(config) >= _MAX_REPEATS:
                study.tell(trial, state=optuna.trial.TrialState.FAIL)
                known += [config] if possible else []
                continue
            measured = self.meter.measure(config, "tune")
            if measured.time_us is None:
                study.tell(trial, state=optuna.trial.TrialState.FAIL)
            else:
                study.tell(trial, measured.log)
            return
        measured = self.meter.measure(self._nearby(known), "tune")
        if measured.time_us is not None:
            study.add_trial(space.trial(measured))

    def _nearby(self, known: Sequence[Config]) -> dict[str, Level]:
        """One change from a configuration that was proposed but is already known; otherwise any."""
        if known:
            near = changes_of_one(known[-1], self.meter.factors, self.meter.constraints)
            new = [config for config in near if self.meter.times_seen(config) < _MAX_REPEATS]
            if new:
                return new[int(self.rng.integers(0, len(new)))]
        return self.meter.constraints.sample(self.rng, 1)[0]

    def model_choice(self) -> dict[str, Level]:
        """The best configuration according to the pair model of all runs, among those not run often enough."""
        trials = self.meter.explored()
        model = PairModel(self.meter.factors, trials)
        often = {t.config_id: t.config for t in trials if self.meter.times_seen(t.config) >= _MAX_REPEATS}
        return model.argmin(self.meter.constraints, self.rng, list(often.values()))

    # Greedy --------------------------------------------------------------------------------------

    def _greedy(self, n_runs: int) -> None:
        """From the default, applies the best feasible single change again and again, until none helps."""
        here: dict[str, Level] = {factor.name: factor.default for factor in self.meter.factors}
        left = n_runs
        while left > 0:
            self.bar()
            near = changes_of_one(here, self.meter.factors, self.meter.constraints)
            if not near:
                return
            repeats = max(1, min(3, left // (len(near) + 1)))
            means: dict[str, float] = {}
            for config in [here, *near] * repeats:
                if left == 0:
                    return
                left -= 1
                self.meter.measure(config, "tune")
            for config in [here, *near]:
                logs = [t.log for t in self.meter.succeeded() if t.config == config]
                if logs:
                    means[self.meter.id_of(config)] = sum(logs) / len(logs)
            best = min(near, key=lambda c: means.get(self.meter.id_of(c), float("inf")))
            if means.get(self.meter.id_of(best), float("inf")) >= means.get(self.meter.id_of(here), float("inf")):
                return
            here = best


class _Space:
    """Configurations as Optuna's parameters. A nested factor is a parameter only where it exists."""

    def __init__(self, meter: Meter) -> None:
        self._meter = meter
        self._plain = [factor for factor in meter.factors if factor.when is None]
        self._nested = [factor for factor in meter.factors if factor.when is not None]
        self._default: dict[str, Level] = {factor.name: factor.default for factor in meter.factors}

    def suggest(self, trial: optuna.Trial) -> dict[str, Level]:
        """What the sampler proposes."""
        config = dict(self._default)
        for factor in self._plain:
            config[factor.name] = _suggested(trial, factor)
        waiting = list(self._nested)
        while ready := [factor for factor in waiting if self._meter.constraints.exists(factor.name, config)]:
            config[ready[0].name] = _suggested(trial, ready[0])
            waiting.remove(ready[0])
        return self._meter.constraints.settle(config)

    def trial(self, measured: Trial) -> optuna.trial.FrozenTrial:
        """A run as a finished trial."""
        import optuna

        there = self._plain + [f for f in self._nested if self._meter.constraints.exists(f.name, measured.config)]
        return optuna.trial.create_trial(
            params={factor.name: _as_parameter(factor, measured.config) for factor in there},
            distributions={factor.name: _distribution(factor) for factor in there},
            value=measured.log,
        )


def _distribution(factor: Factor) -> Any:
    from optuna.distributions import CategoricalDistribution, IntDistribution

    # A numeric factor's levels are steps, whose order the sampler can use.
    return IntDistribution(0, len(factor.levels) - 1) if factor.is_numeric else CategoricalDistribution(factor.levels)


def _as_parameter(factor: Factor, config: Config) -> Any:
    level = config[factor.name]
    return factor.levels.index(level) if factor.is_numeric else level


def _suggested(trial: optuna.Trial, factor: Factor) -> Level:
    if factor.is_numeric:
        index: int = trial.suggest_int(factor.name, 0, len(factor.levels) - 1)
        return factor.levels[index]
    # One of the levels it was given; its own type also allows None.
    return cast(Level, trial.suggest_categorical(factor.name, factor.levels))


def ranked(meter: Meter, model: PairModel, trials: Sequence[Trial], noise_sd: float) -> list[tuple[float, Config]]:
    """The configurations that were run, by their estimated log time: the model's value and the mean of the runs, each
    weighted by its reliability, so that one lucky run does not lead the list.
    """
    groups: dict[str, list[Trial]] = {}
    for trial in trials:
        groups.setdefault(trial.config_id, []).append(trial)
    configs = [group[0].config for group in groups.values()]
    predicted = model.predict(configs)
    model_variance = max(model.residual_sd**2 - noise_sd**2, 0.1 * noise_sd**2, 1e-12)
    found: list[tuple[float, Config]] = []
    for config, group, value in zip(configs, groups.values(), predicted, strict=True):
        mean = sum(t.log for t in group) / len(group)
        weight = len(group) / max(noise_sd**2, 1e-12)
        estimate = (value / model_variance + mean * weight) / (1 / model_variance + weight)
        found.append((float(estimate), config))
    return sorted(found, key=lambda pair: pair[0])
