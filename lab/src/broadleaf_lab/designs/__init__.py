"""Designs: which configurations show what, and the plan made from them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from broadleaf_lab.designs.plan import Plan
from broadleaf_lab.errors import DesignError
from broadleaf_lab.spec.constraints import Constraints
from broadleaf_lab.spec.factors import Factor
from broadleaf_lab.spec.study import DESIGNS, StudySpec

if TYPE_CHECKING:
    import numpy as np

    from broadleaf_lab.designs.entries import Chosen

_FULL_UP_TO = 32
_FRACTION_UP_TO = 17
_MANY_PATHS, _FEW_PATHS, _MANY_FACTORS = 40, 20, 15
_MAX_FACTORS, _MIN_PATHS, _PATH_RUNS = 20, 3, 200
_POINTS = 10


def build(study: StudySpec, excludes: Mapping[str, str] | None = None) -> Plan:
    """The plan of a study. `excludes` are additional constraints, such as patches that do not apply together; they
    count as the study's own and are stored in the plan's `spec`.
    """
    try:
        import numpy as np
    except ImportError:
        raise DesignError("a design needs numpy: pip install broadleaf-lab.") from None
    from broadleaf_lab.designs.blocks import arrange

    spec = study.design
    if spec.kind not in DESIGNS:
        raise DesignError(f"unknown design {spec.kind!r}. Choose one of {', '.join(DESIGNS)}.")
    if not study.factors:
        raise DesignError(f"study {study.name!r} has no factors: add [factors.NAME] sections to its file.")
    if spec.replicates < 1 or spec.block_size < 4:
        raise DesignError("design.replicates must be at least 1 and design.block_size at least 4.")
    study = replace(study, constraints={**study.constraints, **(excludes or {})})
    rules = study.rules()
    rules.check()
    rng = np.random.default_rng(spec.seed)
    chosen = [part.repeated(spec.replicates) for part in _chosen(study, rules, rng)]
    controls = [study.baseline, study.all_on]
    rows = arrange(
        [group for part in chosen for group in part.groups],
        [entry for part in chosen for entry in part.loose],
        controls[:1] if controls[0] == controls[1] else controls,
        spec.block_size,
        rng,
    )
    account: dict[str, Any] = {
        "kind": spec.kind,
        "replicates": spec.replicates,
        "block_size": spec.block_size,
        "blocks": rows[-1].block if rows else 0,
        "designs": [part.spec for part in chosen],
        "excludes": dict(excludes or {}),
    }
    return Plan(study.name, spec.seed, rows, account)


def _chosen(study: StudySpec, rules: Constraints, rng: np.random.Generator) -> list[Chosen]:
    from broadleaf_lab.designs import balanced, dopt, listed, orders, two_level

    spec, factors = study.design, study.factors
    kind = spec.kind
    n_paths = spec.paths
    if kind == "auto":
        kind = _automatic(factors, rules, spec.block_size)
        n_paths = _default_paths(factors) if n_paths is None else n_paths
    parts: list[Chosen] = []
    match kind:
        case "full":
            parts.append(two_level.full(factors, rules, spec.block_size))
        case "resolution5":
            parts.append(two_level.resolution5(factors, rules, spec.block_size))
        case "foldover":
            parts.append(two_level.foldover(factors, rules, spec.block_size))
        case "dopt":
            parts.append(dopt.dopt(factors, rules, rng, spec.runs))
        case "balanced":
            parts.append(balanced.balanced(factors, rules, rng, spec.runs))
        case "random":
            parts.append(listed.random(factors, rules, rng, spec.runs or 8 * len(factors)))
        case "explicit":
            parts.append(listed.explicit(factors, rules, spec.rows))
        case "sweep":
            parts.append(listed.sweep(factors, rules, spec.factor))
        case "greedy":
            parts.append(orders.one_by_one(factors, rules))
        case "paths":
            n_paths = _default_paths(factors) if n_paths is None else n_paths
    if n_paths:
        parts.append(orders.paths(factors, rules, rng, n_paths))
    if kind == "edges" or spec.edges:
        parts.append(orders.edges(factors, rules, rng, spec.edges or _POINTS))
    return parts


def _default_paths(factors: Sequence[Factor]) -> int:
    if len(factors) > _MAX_FACTORS:
        # A path costs a run for every factor: with very many, orders would cost more than all other questions of the
        # design.
        return max(_MIN_PATHS, _PATH_RUNS // (len(factors) + 1))
    return _FEW_PATHS if len(factors) > _MANY_FACTORS else _MANY_PATHS


def _automatic(factors: Sequence[Factor], rules: Constraints, block_size: int) -> str:
    """All combinations if these are few; otherwise the fraction that distinguishes pairs; otherwise the best possible
    design.
    """
    if math.prod(len(f.levels) for f in factors) <= _FULL_UP_TO:
        return "full"
    if any(len(f.levels) > 2 for f in factors) or len(factors) > _FRACTION_UP_TO:
        return "dopt"
    from broadleaf_lab.designs import two_level

    try:
        two_level.resolution5(factors, rules, block_size)
    except DesignError:
        return "dopt"
    return "resolution5"
