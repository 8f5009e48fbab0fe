"""Measures the nodes of a path again, with fresh runs in interleaved blocks, because a path chosen for looking fast
looks faster than it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from broadleaf_lab.analysis.model.scale import Scale
from broadleaf_lab.analysis.paths.path import Path, PathStep, remeasured
from broadleaf_lab.designs.plan import Plan, PlanRow
from broadleaf_lab.spec.factors import Factor, column_value

_KEY = "paths_again"


def plan_again(plan: Plan, path: Path, factors: Sequence[Factor], name: str, replicates: int = 5) -> Plan:
    """The plan with every node of a path added, `replicates` times, in blocks of one run of each in random order.
    `name` identifies them later."""
    rng = np.random.default_rng(1)
    nodes = path.configs(factors)
    number = max((row.row for row in plan.rows), default=-1) + 1
    block = max((row.block for row in plan.rows), default=-1) + 1
    first = number
    added = []
    for replicate in range(replicates):
        for position, at in enumerate(rng.permutation(len(nodes)).tolist()):
            # No path_id: the steps are not a sample of random orders.
            added.append(PlanRow(number, "confirm", block + replicate, position, None, at, replicate, nodes[at]))
            number += 1
    steps = [[step.factor, column_value(step.level)] for step in path.order]
    entry = {"name": name, "steps": steps, "first_row": first, "last_row": number - 1}
    others = [other for other in plan.spec.get(_KEY, []) if other["name"] != name]
    return replace(plan, rows=(*plan.rows, *added), spec={**plan.spec, _KEY: [*others, entry]})


def measured_again(
    plan: Plan, frame: pd.DataFrame, factors: Sequence[Factor], name: str, scale: Scale = "us"
) -> Path | None:
    """The path with that name from its fresh runs; None if it was never planned. AnalysisError if runs are missing."""
    entry: dict[str, Any] | None = next((e for e in plan.spec.get(_KEY, []) if e["name"] == name), None)
    if entry is None:
        return None
    by_name = {factor.name: factor for factor in factors}
    steps = tuple(
        PathStep(factor, by_name[factor].parse(level), 0.0, 0.0, 0.0, 0.0, by_name[factor].tier)
        for factor, level in entry["steps"]
    )
    kind = name if name in ("greedy", "nice") else "custom"
    rows = frame[frame["plan_row"].between(entry["first_row"], entry["last_row"])]
    return remeasured(Path(steps, kind, scale, 0.0), factors, rows, scale)  # type: ignore[arg-type]
