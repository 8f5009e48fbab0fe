"""Acceptance 12 of the laboratory: an effect is found as often as the predicted power says.

Eight factors, resolution V in 64 runs, twice; effects of every factor, or of pairs, at powers from low to high: the
predicted power of the plan and that of simulated studies differ by at most three points.

    PYTHONPATH=lab/tests python lab/tests/acceptance/power.py --seeds 500
"""

from __future__ import annotations

import argparse
import math
import sys

from broadleaf_lab.analysis import frame
from broadleaf_lab.analysis.model.fit import fit
from broadleaf_lab.designs import power
from broadleaf_lab.designs.plan import Plan
from synthetic.system import SyntheticSystem, simulate, two_level

NAMES = [f"f{i}" for i in range(8)]
# Disjoint pairs, so that the average effects stay what they are.
PAIRS = [("f0", "f1"), ("f2", "f3"), ("f4", "f5"), ("f6", "f7")]


def plan_of(system: SyntheticSystem) -> Plan:
    return Plan.make(system.study(kind="resolution5", replicates=2, paths=0, seed=1))


def compare(seeds: int, kind: power.Kind, effect_pct: float, noise: float, first: int = 0) -> tuple[float, float]:
    """Predicted power, and the part of simulated studies with p <= 0.05."""
    size = math.log1p(effect_pct / 100)
    pairs = dict.fromkeys(PAIRS, size) if kind == "pair" else {}
    system = two_level(dict.fromkeys(NAMES, size if kind == "main" else 0.0), pairs, noise=noise)
    plan = plan_of(system)
    wanted = set(NAMES) if kind == "main" else {":".join(pair) for pair in PAIRS}
    told = [p for p in power.precision(plan, system.factors, 100 * noise) if p.name in wanted]
    predicted = sum(power.power_of(effect_pct, p.se, p.residual_df) for p in told) / len(told)
    hits = asked = 0
    for seed in range(first, first + seeds):
        made = fit(system.factors, frame.load(simulate(plan, system, seed), system.factors), drift=False)
        if kind == "main":
            ps = [e.p for e in made.effects()]
        else:
            ps = [i.p for i in made.interactions() if (i.a, i.b) in PAIRS]
        hits += sum(p <= 0.05 for p in ps)
        asked += len(ps)
    return predicted, hits / asked


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=500)
    seeds = parser.parse_args().seeds
    good = True
    cases: list[tuple[power.Kind, float, float]] = [
        ("main", 0.0001, 0.05), ("main", 1.0, 0.05), ("main", 2.0, 0.05), ("main", 3.0, 0.05), ("main", 2.0, 0.03),
        ("pair", 2.0, 0.05), ("pair", 5.0, 0.05), ("pair", 7.0, 0.05), ("pair", 5.0, 0.03),
    ]  # fmt: skip
    for kind, effect, noise in cases:
        predicted, simulated = compare(seeds, kind, effect, noise)
        ok = abs(predicted - simulated) <= 0.03
        good &= ok
        print(f"{kind} {effect:g} % at {100 * noise:g} % noise: predicted {predicted:.3f}, simulated {simulated:.3f} "
              f"({seeds} studies); wanted within 0.03: {'ok' if ok else 'NOT MET'}")  # fmt: skip
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
