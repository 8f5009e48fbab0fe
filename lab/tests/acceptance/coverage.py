"""Acceptance 2 of the laboratory: 95 % intervals contain the truth 93 to 97 times in a hundred.

Eight factors, resolution V in 64 runs, twice, 5 % noise, 300 random truths: pooled coverage of the intervals of main
effects, pairs, path steps (as the model predicts them, and of greedy paths measured again) and of comparisons. Again
with a skewed tail and 3 % of runs three times too slow: at least 92 %.

    PYTHONPATH=lab/tests python lab/tests/acceptance/coverage.py --seeds 300
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import numpy as np
from broadleaf_lab.analysis import frame
from broadleaf_lab.analysis.model.fit import Covariance, fit
from broadleaf_lab.analysis.paths import path as paths
from broadleaf_lab.comparisons.compare import Side, conclude
from broadleaf_lab.designs.plan import Plan
from broadleaf_lab.spec.constraints import Constraints
from broadleaf_lab.spec.factors import column_value
from synthetic.system import SyntheticSystem, simulate, two_level

K = 8
PATH_REPLICATES = 5
CONTEXTS, PAIRS = 16, 2
Counts = dict[str, list[int]]


def truth(seed: int, noise: float = 0.05) -> SyntheticSystem:
    """Random effects of up to 30 %, of which two are none, and eight interactions."""
    rng = np.random.default_rng(seed)
    names = [f"f{i}" for i in range(K)]
    effects = dict(zip(names, [*rng.uniform(-0.3, 0.1, K - 2), 0.0, 0.0], strict=True))
    pairs = {}
    for _ in range(8):
        a, b = sorted(rng.choice(K, 2, replace=False))
        pairs[names[a], names[b]] = float(rng.uniform(-0.15, 0.15))
    return two_level({n: float(e) for n, e in effects.items()}, pairs, noise=noise)


def plan_of(system: SyntheticSystem, seed: int) -> Plan:
    """The plan under test."""
    return Plan.make(system.study(kind="resolution5", replicates=2, paths=0, seed=seed))


def one(seed: int, counts: Counts, covariance: Covariance = "HC2", **noise: float) -> None:
    """Adds (contained, asked) of every kind of interval of one seed to `counts`."""
    system = replace(truth(seed), **noise)
    factors = system.factors
    rng = np.random.default_rng([seed, 1])
    runs = frame.load(simulate(plan_of(system, seed), system, seed), factors)
    made = fit(factors, runs, covariance=covariance)
    count(counts, "main", [(e.ci_low, e.ci_high, system.average_effect(e.factor)) for e in made.effects()])
    count(counts, "pair", [(i.ci_low, i.ci_high, system.interaction(i.a, i.b)) for i in made.interactions()])

    order = [factors[i].name for i in rng.permutation(K)]
    predicted = paths.custom(made, order, scale="log")
    count(counts, "path, model", path_truth(system, predicted))
    greedy = paths.greedy(made, scale="log")
    if greedy.order:
        fresh = frame.load(again(system, greedy, rng), factors)
        count(counts, "path, measured again", path_truth(system, paths.remeasured(greedy, factors, fresh, "log")))
    count(counts, "compare", [comparison(system, factor.name, rng) for factor in factors])


def path_truth(system: SyntheticSystem, path: paths.Path) -> list[tuple[float, float, float]]:
    """Interval and truth of every step of a path on the log scale."""
    nodes = path.configs(system.factors)
    return [
        (step.ci_low, step.ci_high, system.contrast(step.factor, node))
        for step, node in zip(path.order, nodes, strict=False)
    ]


def again(system: SyntheticSystem, path: paths.Path, rng: np.random.Generator) -> list[dict[str, object]]:
    """Fresh runs of a path's nodes, each block all nodes in random order."""
    rows: list[dict[str, object]] = []
    nodes = path.configs(system.factors)
    for block in range(PATH_REPLICATES):
        for at in rng.permutation(len(nodes)):
            time = system.time_us(nodes[at], rng, float(len(rows)))
            levels = {name: column_value(level) for name, level in nodes[at].items()}
            rows.append(
                {"status": "ok", "time_per_task_us": time, "block": block, "started_unix": float(len(rows)), **levels}
            )
    return rows


def comparison(system: SyntheticSystem, changed: str, rng: np.random.Generator) -> tuple[float, float, float]:
    """What `compare` concludes of a change in pairs of runs in random contexts, and the change's average effect."""
    study = system.study()
    contexts = Constraints(system.factors, {}).sample(rng, CONTEXTS)
    sides = [({**c, changed: False}, {**c, changed: True}) for c in contexts]
    ratios = [
        [float(np.log(system.time_us(b, rng, 0.0) / system.time_us(a, rng, 0.0))) for _ in range(PAIRS)]
        for a, b in sides
    ]
    found = conclude(study, Side("off"), Side("on"), sides, ratios)
    return float(np.log(found.low)), float(np.log(found.high)), system.average_effect(changed)


def count(counts: Counts, kind: str, intervals: Sequence[tuple[float, float, float]]) -> None:
    """Counts the intervals (low, high, truth) that contain the truth."""
    counts[kind][0] += sum(low <= true <= high for low, high, true in intervals)
    counts[kind][1] += len(intervals)


def run(seeds: int, covariance: Covariance = "HC2", first: int = 0, **noise: float) -> dict[str, tuple[float, int]]:
    """Coverage and number of intervals by kind."""
    counts: Counts = defaultdict(lambda: [0, 0])
    for seed in range(first, first + seeds):
        one(seed, counts, covariance, **noise)
    return {kind: (hit / asked, asked) for kind, (hit, asked) in counts.items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=300)
    parser.add_argument("--covariance", choices=["HC2", "HC3", "nonrobust"], default="HC2")
    asked = parser.parse_args()
    covariance: Literal["HC2", "HC3", "nonrobust"] = asked.covariance
    good = True
    cases: list[tuple[str, dict[str, float], float, float]] = [
        ("normal noise 5 %", {}, 0.93, 0.97),
        ("tail of mean 5 % and 3 % of runs x 3", {"tail": 0.05, "outliers": 0.03, "outlier_factor": 3.0}, 0.92, 1.0),
    ]
    for name, noise, low, high in cases:
        print(f"{name}, {asked.seeds} seeds, {covariance}:")
        for kind, (coverage, n) in run(asked.seeds, covariance, **noise).items():
            inside = low <= coverage <= high
            good &= inside
            met = "ok" if inside else "NOT MET"
            print(f"  {kind:22} {coverage:.4f} of {n:5} intervals; wanted {low} to {high}: {met}")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
