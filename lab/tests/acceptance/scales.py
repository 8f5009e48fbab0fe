"""Acceptance 9 of the laboratory: effects that add in microseconds are recognised as such, and so are ratios and rates.

Six factors, all 64 configurations twice, 5 % noise, random effects without interactions on one scale: at least 95 of
100 seeds name that scale.

    PYTHONPATH=lab/tests python lab/tests/acceptance/scales.py --seeds 100
"""

from __future__ import annotations

import argparse
import sys

import numpy as np
from broadleaf_lab.analysis import frame
from broadleaf_lab.analysis.model.fit import fit
from broadleaf_lab.analysis.model.scale import Scale
from broadleaf_lab.designs.plan import Plan
from synthetic.system import SyntheticSystem, simulate, two_level

K = 6


def truth(seed: int, scale: Scale) -> SyntheticSystem:
    """Effects that bring 1000 us to somewhat above 200 us together, on one scale."""
    rng = np.random.default_rng(seed)
    parts = rng.dirichlet(np.full(K, 2.0))
    total = {"us": -800.0, "log": float(np.log(0.2)), "rate": 4000.0}[scale]
    return two_level({f"f{i}": float(total * parts[i]) for i in range(K)}, base_us=1000.0, scale=scale, noise=0.05)


def found(seed: int, scale: Scale) -> Scale:
    """The scale that is found."""
    system = truth(seed, scale)
    plan = Plan.make(system.study(kind="full", replicates=2, paths=0, seed=seed))
    return fit(
        system.factors, frame.load(simulate(plan, system, seed), system.factors), scale="auto", pairs=False
    ).scale


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=100)
    seeds = parser.parse_args().seeds
    good = True
    scales: tuple[tuple[Scale, float], ...] = (("us", 1.0), ("log", 0.0), ("rate", -1.0))
    for scale, power in scales:
        right = sum(found(seed, scale) == scale for seed in range(seeds)) / seeds
        ok = right >= 0.95
        good &= ok
        met = "ok" if ok else "NOT MET"
        print(f"truth on {scale:4}: lambda {power:g} found {right:.3f} of {seeds} seeds; wanted 0.95: {met}")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
