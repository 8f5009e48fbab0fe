"""Designs that apply factors one at a time: random orders from the baseline, and neighbourhoods of random points."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from broadleaf_lab.designs.entries import Chosen, Entry
from broadleaf_lab.spec.constraints import Constraints
from broadleaf_lab.spec.factors import Factor, Level, baseline

if TYPE_CHECKING:
    import numpy as np


def paths(factors: Sequence[Factor], rules: Constraints, rng: np.random.Generator, n: int) -> Chosen:
    """`n` random orders: each starts at the baseline and applies the factors one by one, as far as the constraints
    allow. A factor that is not possible yet is tried again after each step.
    """
    groups = []
    short = 0
    for number in range(1, n + 1):
        order = [factors[int(i)] for i in rng.permutation(len(factors))]
        configs = walk(order, rules, baseline(factors))
        short += len(configs) <= len(factors)
        groups.append(tuple(Entry("path", config, number, step) for step, config in enumerate(configs)))
    spec = {"kind": "paths", "runs": sum(map(len, groups)), "paths": n, "incomplete": short}
    return Chosen(spec, groups=tuple(groups))


def walk(order: Sequence[Factor], rules: Constraints, start: dict[str, Level]) -> list[dict[str, Level]]:
    """The configurations from `start` on, each with one more factor: the first in the order that can be applied."""
    configs = [start]
    waiting = list(order)
    while True:
        for factor in waiting:
            following = {**configs[-1], factor.name: factor.on}
            if rules.allows(following):
                configs.append(following)
                waiting.remove(factor)
                break
        else:
            return configs


def edges(factors: Sequence[Factor], rules: Constraints, rng: np.random.Generator, n: int) -> Chosen:
    """`n` random points, each with every possible configuration that differs from it in one factor."""
    groups = []
    for point in rules.sample(rng, n):
        around = [Entry("edge", config) for config in (point, *rules.neighbours(point))]
        groups.append(tuple(around))
    return Chosen({"kind": "edges", "runs": sum(map(len, groups)), "points": n}, groups=tuple(groups))


def one_by_one(factors: Sequence[Factor], rules: Constraints) -> Chosen:
    """The baseline, and every factor alone at every level: where a greedy path takes its first step."""
    start = baseline(factors)
    entries = tuple(Entry("design", config) for config in (start, *rules.neighbours(start)))
    return Chosen({"kind": "greedy", "runs": len(entries)}, loose=entries)
