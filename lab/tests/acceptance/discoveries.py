"""Acceptance 3 of the laboratory: few of the interactions called real are false, and the real ones are found.

Eight factors (one a placebo), resolution V in 64 runs, twice, 5 % noise. Four planted pairs of five standard errors:
at least 95 % found at q <= 0.05, at most 6 % of what is found false on average, with and without planted pairs. The
placebo's 95 % interval covers zero 93 to 97 times in a hundred.

    PYTHONPATH=lab/tests python lab/tests/acceptance/discoveries.py --seeds 1000
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from broadleaf_lab.analysis import frame
from broadleaf_lab.analysis.model.fit import fit
from broadleaf_lab.designs import power
from broadleaf_lab.designs.plan import Plan
from synthetic.system import simulate, two_level

NAMES = [*(f"f{i}" for i in range(7)), "placebo"]
PLANTED = [("f0", "f1"), ("f0", "f2"), ("f3", "f4"), ("f5", "f6")]
STANDARD_ERRORS = 5.0


@dataclass(frozen=True, slots=True)
class Rates:
    """What was counted over all seeds. `found` is nan where nothing was planted."""

    false_discovery: float
    found: float
    placebo_covers_zero: float
    seeds: int


def run(seeds: int, planted: bool, first: int = 0, noise: float = 0.05, **options: Any) -> Rates:
    """The rates over seeds; `options` are those of the synthetic system."""
    rng = np.random.default_rng(first)
    effects = {name: 0.0 if name == "placebo" else float(rng.uniform(-0.3, 0.1)) for name in NAMES}
    system = two_level(effects, noise=noise, **options)
    plan = Plan.make(system.study(kind="resolution5", replicates=2, paths=0, seed=1))
    se = {p.name: p.se for p in power.precision(plan, system.factors, 100 * noise)}
    if planted:
        signs = (1, -1, 1, -1)
        sizes = {pair: sign * STANDARD_ERRORS * se[":".join(pair)] for pair, sign in zip(PLANTED, signs, strict=True)}
        system = replace(system, pairs=sizes)
    proportions, hits, covered = [], 0, 0
    for seed in range(first, first + seeds):
        made = fit(system.factors, frame.load(simulate(plan, system, seed), system.factors))
        called = {(i.a, i.b) for i in made.interactions() if i.q <= 0.05}
        wrong = [pair for pair in called if system.interaction(*pair) == 0]
        proportions.append(len(wrong) / max(len(called), 1))
        hits += sum(pair in called for pair in PLANTED)
        placebo = next(e for e in made.effects() if e.factor == "placebo")
        covered += placebo.ci_low <= 0 <= placebo.ci_high
    found = hits / (len(PLANTED) * seeds) if planted else float("nan")
    return Rates(float(np.mean(proportions)), found, covered / seeds, seeds)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000)
    seeds = parser.parse_args().seeds
    good = True
    for planted in (True, False):
        rates = run(seeds, planted)
        checks = [
            ("false discovery rate", rates.false_discovery, rates.false_discovery <= 0.06, "at most 0.06"),
            (
                "placebo covers zero",
                rates.placebo_covers_zero,
                0.93 <= rates.placebo_covers_zero <= 0.97,
                "0.93 to 0.97",
            ),
        ]
        if planted:
            checks.append(("planted pairs found", rates.found, rates.found >= 0.95, "at least 0.95"))
        print(f"{'four pairs of 5 SE' if planted else 'no pairs'}, {seeds} seeds:")
        for name, value, ok, wanted in checks:
            good &= ok
            print(f"  {name:22} {value:.4f}; wanted {wanted}: {'ok' if ok else 'NOT MET'}")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
