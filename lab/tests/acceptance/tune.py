"""Acceptance 10: tuning recommends the default if nothing helps, finds what greedy search misses, and never runs an
impossible configuration.

    PYTHONPATH=lab/tests python lab/tests/acceptance/tune.py --null 200 --trap 100

Prints the figures; the exit code is 0 if all hold.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from broadleaf_lab.spec.factors import Config, Factor, Level
from broadleaf_lab.tune.meter import Budget
from broadleaf_lab.tune.tuner import Tuned, tune
from synthetic.system import SyntheticSystem, two_level

NOISE = 0.02
WITHIN = 1.02


def null_landscape(noise: float = NOISE) -> SyntheticSystem:
    """Eight factors that do nothing."""
    return two_level(dict.fromkeys("abcdefgh", 0.0), noise=noise)


def sign_flip_trap(noise: float = NOISE) -> SyntheticSystem:
    """`tempt` helps alone and hinders beside the pair of `a` and `b`, each of which hinders alone; together these two
    are best. Two more help, four do nothing, and one of them excludes another."""
    effects = {
        "tempt": -0.25,
        "a": 0.10,
        "b": 0.10,
        "d": -0.08,
        "e": -0.06,
        "f": 0.0,
        "g": 0.0,
        "h": 0.0,
        "placebo": 0.0,
    }
    pairs = {("a", "b"): -0.75, ("tempt", "a"): 0.30, ("tempt", "b"): 0.20}
    return replace(
        two_level(effects, pairs, noise=noise), constraints={"one_of": "not (d and f)", "no_gh": "not (g and h)"}
    )


def best_us(system: SyntheticSystem) -> float:
    """The time of the best possible configuration, by trying all."""
    study = system.study()
    rules = study.rules()
    names = [factor.name for factor in study.factors]
    configs = (
        dict(zip(names, levels, strict=True)) for levels in itertools.product(*(f.levels for f in study.factors))
    )
    return min(system.mean_us(config) for config in configs if rules.allows(config))


@dataclass
class Recorder:
    """Measures on a synthetic system, and records any impossible configuration."""

    system: SyntheticSystem
    rng: np.random.Generator
    runs: int = 0
    impossible: int = 0

    def __post_init__(self) -> None:
        self.rules = self.system.study().rules()

    def __call__(self, config: Config, /, *, purpose: str, block: int) -> float | None:
        self.runs += 1
        self.impossible += not self.rules.allows(config)
        return self.system.time_us(config, self.rng, 0.0)


def tuned(system: SyntheticSystem, seed: int, runs: int, algorithm: str = "tpe") -> tuple[Tuned, Recorder]:
    """One tuning from a seed."""
    recorder = Recorder(system, np.random.default_rng([seed, 77]))
    found = tune(system.study(), recorder, Budget(runs=runs), algorithm=algorithm, seed=seed)
    return found, recorder


def levels(config: Mapping[str, Level], factors: tuple[Factor, ...]) -> str:
    return " ".join(f.name for f in factors if config[f.name] != f.default) or "default"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--null", type=int, default=200, help="tunings of the null landscape")
    parser.add_argument("--trap", type=int, default=100, help="tunings of the trap, by each algorithm")
    parser.add_argument("--runs", type=int, default=240, help="budget of each")
    parser.add_argument("--first", type=int, default=0, help="first seed")
    given = parser.parse_args()
    failed = False
    impossible = overspent = 0

    begin = time.perf_counter()
    wrong = 0
    for seed in range(given.first, given.first + given.null):
        found, recorder = tuned(null_landscape(), seed, given.runs)
        wrong += not found.is_default
        impossible += recorder.impossible
        overspent += recorder.runs > given.runs
    if given.null:
        share = wrong / given.null
        ok = share <= 0.05
        failed |= not ok
        print(
            f"null landscape: {wrong} of {given.null} recommend something else than the default"
            f" ({100 * share:.1f} %, at most 5 %): {'ok' if ok else 'FAILED'};"
            f" {time.perf_counter() - begin:.0f} s"
        )

    system = sign_flip_trap()
    best = best_us(system)
    losses: dict[str, list[float]] = {}
    for algorithm in ("tpe", "greedy", "random") if given.trap else ():
        begin = time.perf_counter()
        losses[algorithm] = []
        extra = 0
        for seed in range(given.first, given.first + given.trap):
            found, recorder = tuned(system, seed, given.runs, algorithm)
            losses[algorithm].append(system.mean_us(found.config) / best)
            impossible += recorder.impossible
            overspent += recorder.runs > given.runs
            extra += sum(found.config[name] != False for name in ("f", "g", "h", "placebo"))  # noqa: E712
        within = sum(loss <= WITHIN for loss in losses[algorithm]) / given.trap
        print(
            f"trap, {algorithm}: within 2 % of the optimum {100 * within:.0f} %,"
            f" median {statistics.median(losses[algorithm]):.3f} of the optimum's time, worst"
            f" {max(losses[algorithm]):.3f}; idle settings kept {extra / given.trap:.2f};"
            f" {time.perf_counter() - begin:.0f} s"
        )
    if given.trap:
        within = sum(loss <= WITHIN for loss in losses["tpe"]) / given.trap
        beats = sum(a < b - 1e-9 for a, b in zip(losses["tpe"], losses["greedy"], strict=True)) / given.trap
        ok = within >= 0.9 and beats >= 0.9
        failed |= not ok
        print(
            f"trap: within 2 % in {100 * within:.0f} % (at least 90), better than greedy in {100 * beats:.0f} %:"
            f" {'ok' if ok else 'FAILED'}"
        )
    failed |= impossible > 0 or overspent > 0
    print(f"impossible configurations run: {impossible}; tunings over their budget: {overspent}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
