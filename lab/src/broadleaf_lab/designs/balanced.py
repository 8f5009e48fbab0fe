"""Balanced designs by solver: each level equally often, each pair of levels about equally often, and for every factor
some pairs of runs that differ in it alone."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from broadleaf_lab.designs.entries import Chosen, loose
from broadleaf_lab.errors import DesignError
from broadleaf_lab.spec import expressions
from broadleaf_lab.spec.constraints import Constraints
from broadleaf_lab.spec.expressions import Atom, Node
from broadleaf_lab.spec.factors import Factor, Level

if TYPE_CHECKING:
    import numpy as np
    import z3

_LARGEST_TABLE = 20_000
"""Combinations one comparison may have; more than that is a constraint over too many factors at once."""
_EFFORT = 10_000_000
"""What z3 may spend on one attempt, in its own deterministic unit: some seconds."""


@dataclass(frozen=True, slots=True)
class _Slack:
    """The allowed difference of counts from balance; None for any. `free` factors are in no constraint, `bound` ones
    are; `share` is a fraction of the runs.
    """

    free_levels: int | None
    free_pairs: int | None
    bound_share: float | None


# If constraints and nesting make full balance impossible, it comes as close as possible.
_LADDER = (_Slack(0, 2, 0.125), _Slack(0, 2, 0.25), _Slack(0, 2, None), _Slack(1, 3, None), _Slack(None, None, None))


def balanced(
    factors: Sequence[Factor], rules: Constraints, rng: np.random.Generator, runs: int | None = None
) -> Chosen:
    """`runs` runs (default: four for every factor, at least 16, a multiple of 4), of which two differ in the
    first factor alone, two in the second alone, and so on. `spec` says how far from balance the levels and the pairs
    are."""
    min_runs = 2 * len(factors)
    n = runs if runs is not None else max(16, -(-2 * min_runs // 4) * 4)
    if n < min_runs:
        raise DesignError(
            f"{n} runs are too few to include a pair of runs for each of {len(factors)} factors: set design.runs to "
            f"at least {min_runs}."
        )
    seed = int(rng.integers(0, 2**31))
    for slack in _LADDER:
        configs = _solve(factors, rules, n, slack, seed)
        if configs is not None:
            order = rng.permutation(len(configs))
            return loose(
                "balanced", [configs[int(i)] for i in order], flips_per_factor=1, **_imbalance(factors, configs)
            )
    raise DesignError(
        f"under these constraints, no set of {n} runs has, for each factor, a pair of runs that differ only in that "
        "factor. Choose kind 'edges', which uses the pairs that exist."
    )


def _solve(
    factors: Sequence[Factor], rules: Constraints, n: int, slack: _Slack, seed: int
) -> list[dict[str, Level]] | None:
    try:
        import z3
    except ImportError:
        raise DesignError("a balanced design needs z3: pip install 'broadleaf-lab[balanced]'.") from None

    solver = z3.Solver()
    solver.set("random_seed", seed % 1_000_000)
    solver.set("rlimit", _EFFORT)
    runs = [_Run(factors, f"run{i}.") for i in range(n)]
    for run in runs:
        solver.add(*run.domain(), *map(run.term, rules.nodes))
    for index, factor in enumerate(factors):
        _differ_only(solver, runs[2 * index], runs[2 * index + 1], factor)
    together = rules.together()
    bound = {name for names in together for name in names}
    share = None if slack.bound_share is None else max(2, math.floor(slack.bound_share * n))
    for factor in factors:
        allowed = share if factor.name in bound else slack.free_levels
        if allowed is not None:
            for level in factor.levels:
                low, high = n // len(factor.levels) - allowed, -(-n // len(factor.levels)) + allowed
                _count(solver, [run.is_(factor, level) for run in runs], low, high)
    for one, other in itertools.combinations(factors, 2):
        # A constraint between two factors makes them unbalanced.
        if any({one.name, other.name} <= names for names in together):
            continue
        allowed = share if {one.name, other.name} & bound else slack.free_pairs
        if allowed is not None:
            cell = n / (len(one.levels) * len(other.levels))
            for a, b in itertools.product(one.levels, other.levels):
                both = [z3.And(run.is_(one, a), run.is_(other, b)) for run in runs]
                _count(solver, both, cell - allowed, cell + allowed)
    if solver.check() != z3.sat:
        return None
    model = solver.model()
    return [run.config(model) for run in runs]


def _differ_only(solver: z3.Solver, run: _Run, other: _Run, factor: Factor) -> None:
    import z3

    for each in run.factors:
        for level in each.levels:
            if each.name == factor.name:
                solver.add(z3.Not(z3.And(run.is_(each, level), other.is_(each, level))))
            else:
                solver.add(run.is_(each, level) == other.is_(each, level))


def _count(solver: z3.Solver, terms: Sequence[z3.BoolRef], low: float, high: float) -> None:
    import z3

    weighted = [(term, 1) for term in terms]
    if low > 0:
        solver.add(z3.PbGe(weighted, math.ceil(low)))
    solver.add(z3.PbLe(weighted, math.floor(high)))


def _imbalance(factors: Sequence[Factor], configs: Sequence[dict[str, Level]]) -> dict[str, Any]:
    n = len(configs)
    levels = max(
        abs(sum(c[f.name] == level for c in configs) - n / len(f.levels)) for f in factors for level in f.levels
    )
    pairs = max(
        (
            abs(
                sum(c[one.name] == a and c[other.name] == b for c in configs)
                - n / (len(one.levels) * len(other.levels))
            )
            for one, other in itertools.combinations(factors, 2)
            for a, b in itertools.product(one.levels, other.levels)
        ),
        default=0.0,
    )
    return {"level_imbalance": round(levels, 2), "pair_imbalance": round(pairs, 2)}


class _Run:
    """A run whose configuration is sought: a Bool for each off/on factor, a Bool for each level of the others."""

    def __init__(self, factors: Sequence[Factor], prefix: str) -> None:
        import z3

        self.factors: tuple[Factor, ...] = tuple(factors)
        self._variables: dict[str, list[z3.BoolRef]] = {
            f.name: [z3.Bool(f"{prefix}{f.name}#{i}") for i in range(1 if f.is_bool else len(f.levels))]
            for f in factors
        }

    def is_(self, factor: Factor, level: Level) -> z3.BoolRef:
        """The term "this factor is at this level"."""
        import z3

        variables = self._variables[factor.name]
        if factor.is_bool:
            return variables[0] if level else z3.Not(variables[0])
        return variables[factor.levels.index(level)]

    def domain(self) -> list[z3.BoolRef]:
        """Terms that say that every factor is at exactly one level."""
        import z3

        return [z3.PbEq([(v, 1) for v in self._variables[f.name]], 1) for f in self.factors if not f.is_bool]

    def term(self, node: Node) -> z3.BoolRef:
        """The term of an expression. Its atoms are tabulated."""
        import z3

        match node:
            case expressions.Not():
                return z3.Not(self.term(node.item))
            case expressions.All():
                return z3.And([self.term(item) for item in node.items])
            case expressions.AnyOf():
                return z3.Or([self.term(item) for item in node.items])
            case Atom():
                return self._table(node)

    def _table(self, atom: Atom) -> z3.BoolRef:
        import z3

        factors = [factor for factor in self.factors if factor.name in atom.names]
        if (size := math.prod(len(factor.levels) for factor in factors)) > _LARGEST_TABLE:
            raise DesignError(
                f"one comparison over {', '.join(atom.names)} has {size} combinations: split it with `and` or `or`."
            )
        configs = [
            dict(zip((f.name for f in factors), levels, strict=True))
            for levels in itertools.product(*(f.levels for f in factors))
        ]
        return z3.Or([z3.And([self.is_(f, it[f.name]) for f in factors]) for it in configs if atom.test(it)])

    def config(self, model: z3.ModelRef) -> dict[str, Level]:
        """Its configuration in a model."""
        import z3

        found: dict[str, Level] = {}
        for factor in self.factors:
            values = [bool(z3.is_true(model.eval(v, model_completion=True))) for v in self._variables[factor.name]]
            found[factor.name] = values[0] if factor.is_bool else factor.levels[values.index(True)]
        return found
