"""Which configurations are possible: named constraints and nested factors, evaluated without and with a solver.

`allows`, `violated` and `sample` need no solver (`sample` falls back on one if few configurations are possible);
`check` proves with z3 that something is possible at all and every level reachable, and names the obstacles.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from broadleaf_lab.errors import ConstraintError
from broadleaf_lab.spec import expressions
from broadleaf_lab.spec.expressions import AnyOf, Atom, Node
from broadleaf_lab.spec.factors import Config, Factor, Level, column_value

if TYPE_CHECKING:
    import z3

_LARGEST_TABLE = 20_000
"""Combinations one comparison may have; more than that is a constraint over too many factors at once."""


class Integers(Protocol):
    """A source of random integers: `numpy.random.Generator`."""

    def integers(self, low: int, high: int | None = None) -> Any: ...


class Constraints:
    """The constraints of a study, by their names in its file; `when:<factor>` is the condition of a nested factor."""

    def __init__(self, factors: Iterable[Factor], constraints: Mapping[str, str]) -> None:
        self.factors: tuple[Factor, ...] = tuple(factors)
        known = {factor.name: factor for factor in self.factors}
        self._rules: dict[str, Node] = {
            name: expressions.parse(text, known, f"constraint {name!r}") for name, text in constraints.items()
        }
        self._when: dict[str, Node] = {}
        for factor in self.factors:
            if factor.when is not None:
                node = expressions.parse(factor.when, known, f"factor {factor.name!r}, key 'when'")
                self._when[factor.name] = node
                self._rules[f"when:{factor.name}"] = AnyOf((node, _is_default(factor)))
        self._order = self._nesting_order()

    def __len__(self) -> int:
        return len(self._rules)

    def _nesting_order(self) -> list[Factor]:
        """The nested factors, each after those that its condition refers to."""
        waiting = {name: expressions.names(node) & set(self._when) for name, node in self._when.items()}
        order: list[Factor] = []
        while waiting:
            ready = [name for name, needs in waiting.items() if not needs & set(waiting)]
            if not ready:
                names = tuple(f"when:{name}" for name in waiting)
                raise ConstraintError(
                    f"the conditions of {', '.join(waiting)} are circular: let one of them depend only on others, "
                    f"and write the rest as constraints.",
                    names,
                )
            order += [factor for factor in self.factors if factor.name in ready]
            for name in ready:
                del waiting[name]
        return order

    def allows(self, config: Config) -> bool:
        """Whether a configuration violates nothing."""
        return all(expressions.holds(node, config) for node in self._rules.values())

    def violated(self, config: Config) -> list[str]:
        """Names of the constraints that a configuration violates."""
        return [name for name, node in self._rules.items() if not expressions.holds(node, config)]

    def together(self) -> list[set[str]]:
        """The factors of each constraint."""
        return [expressions.names(node) for node in self._rules.values()]

    def nested_pairs(self) -> set[str]:
        """The pairs, as `a:b` and `b:a`, of a nested factor and one in its condition. It is not a design's fault that
        such a pair cannot be distinguished from the effects.
        """
        pairs = {(name, other) for name, node in self._when.items() for other in expressions.names(node)}
        return {f"{a}:{b}" for one, other in pairs for a, b in ((one, other), (other, one))}

    def exists(self, factor: str, config: Config) -> bool:
        """Whether a nested factor exists in a configuration; others always do."""
        return factor not in self._when or expressions.holds(self._when[factor], config)

    def settle(self, config: Config) -> dict[str, Level]:
        """The configuration with every nested factor that does not exist in it at its default."""
        settled = dict(config)
        for factor in self._order:
            if not expressions.holds(self._when[factor.name], settled):
                settled[factor.name] = factor.default
        return settled

    def sample(self, rng: Integers, n: int) -> list[dict[str, Level]]:
        """`n` possible configurations, drawn independently; a nested factor is drawn if it exists."""
        found: list[dict[str, Level]] = []
        tries = 0
        while len(found) < n and tries < 200 * (n + 10):
            tries += 1
            config = self.settle({f.name: f.levels[int(rng.integers(0, len(f.levels)))] for f in self.factors})
            if self.allows(config):
                found.append(config)
            if tries == 2000 and len(found) < 10:
                break
        if len(found) < n:
            solver = self.solver()
            found += [solver.draw(rng) for _ in range(n - len(found))]
        return found

    def neighbours(self, config: Config) -> list[dict[str, Level]]:
        """Possible configurations that differ from one in the level of one factor."""
        near = [{**config, f.name: level} for f in self.factors for level in f.levels if level != config[f.name]]
        return [other for other in near if self.allows(other)]

    def check(self) -> None:
        """Raises ConstraintError, with the names of the constraints to blame, if nothing is possible, the baseline is
        not, or a level never is.
        """
        solver = self.solver()
        core = solver.blame()
        if core is not None:
            raise ConstraintError(
                f"no configuration satisfies the constraints: {_listed(core)} contradict each other. Weaken one.", core
            )
        problems: list[str] = []
        names: list[str] = []
        default = {factor.name: factor.default for factor in self.factors}
        if broken := self.violated(default):
            problems.append(f"the baseline, every factor at its default, violates {_listed(broken)}")
            names += broken
        for factor in self.factors:
            for level in factor.levels:
                core = solver.blame(factor, level)
                if core is not None:
                    problems.append(
                        f"level {column_value(level)!r} of {factor.name!r} can never be reached because of "
                        f"{_listed(core)}"
                    )
                    names += core
        if problems:
            raise ConstraintError(
                "; ".join(problems) + ". Weaken a constraint or drop the level.", tuple(dict.fromkeys(names))
            )

    def solver(self, prefix: str = "") -> ConstraintSolver:
        """The constraints in z3; variables of solvers with different prefixes differ."""
        return ConstraintSolver(self.factors, self._rules, prefix)


def _is_default(factor: Factor) -> Atom:
    return Atom((factor.name,), lambda config: config[factor.name] == factor.default)


def _listed(names: Sequence[str]) -> str:
    return " and ".join(repr(name) for name in names) if names else "the levels themselves"


class ConstraintSolver:
    """Constraints as z3 terms: a Bool for each off/on factor, a Bool for each level of the others."""

    def __init__(self, factors: Sequence[Factor], rules: Mapping[str, Node], prefix: str = "") -> None:
        try:
            import z3
        except ImportError:
            raise ConstraintError("this needs z3: pip install broadleaf-lab.") from None
        self.z3 = z3
        self.factors: tuple[Factor, ...] = tuple(factors)
        self._by_name = {factor.name: factor for factor in factors}
        self._rules = rules
        self._variables: dict[str, list[z3.BoolRef]] = {
            f.name: [z3.Bool(f"{prefix}{f.name}#{i}") for i in range(1 if f.is_bool else len(f.levels))]
            for f in factors
        }

    @functools.cached_property
    def _tracked(self) -> z3.Solver:
        solver = self.z3.Solver()
        solver.add(*self.domain())
        for name, node in self._rules.items():
            solver.assert_and_track(self.term(node), self.z3.Bool(f"rule {name}"))
        return solver

    def is_(self, factor: Factor, level: Level) -> z3.BoolRef:
        """The term "this factor is at this level"."""
        variables = self._variables[factor.name]
        if factor.is_bool:
            return variables[0] if level else self.z3.Not(variables[0])
        return variables[factor.levels.index(level)]

    def domain(self) -> list[z3.BoolRef]:
        """Terms that say that every factor is at exactly one level."""
        return [self.z3.PbEq([(v, 1) for v in self._variables[f.name]], 1) for f in self.factors if not f.is_bool]

    def term(self, node: Node) -> z3.BoolRef:
        """The term of an expression. Its atoms are tabulated with the same test that `allows` uses."""
        z3 = self.z3
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
        z3 = self.z3
        factors = [self._by_name[name] for name in atom.names]
        size = 1
        for factor in factors:
            size *= len(factor.levels)
        if size > _LARGEST_TABLE:
            raise ConstraintError(
                f"one comparison over {', '.join(atom.names)} has {size} combinations: split it with `and` or `or`."
            )
        rows = [
            z3.And([self.is_(f, level) for f, level in zip(factors, levels, strict=True)])
            for levels in itertools.product(*(f.levels for f in factors))
            if atom.test(dict(zip(atom.names, levels, strict=True)))
        ]
        return z3.Or(rows)

    def terms(self) -> list[z3.BoolRef]:
        """Everything that must hold."""
        return [*self.domain(), *(self.term(node) for node in self._rules.values())]

    def blame(self, factor: Factor | None = None, level: Level = False) -> tuple[str, ...] | None:
        """None if possible (with `factor` at `level`), otherwise a set of constraints that make it impossible, none of
        which can be omitted.
        """
        z3 = self.z3
        wanted = [self.is_(factor, level)] if factor is not None else []
        if self._tracked.check(*wanted) == z3.sat:
            return None
        core = [str(term).removeprefix("rule ") for term in self._tracked.unsat_core() if str(term).startswith("rule ")]
        return tuple(name for name in self._smallest(core, wanted))

    def _smallest(self, core: list[str], wanted: list[z3.BoolRef]) -> list[str]:
        # z3's core need not be minimal: drop what is not needed, one at a time.
        kept = [name for name in self._rules if name in core]
        for name in list(kept):
            solver = self.z3.Solver()
            solver.add(*self.domain(), *wanted, *(self.term(self._rules[other]) for other in kept if other != name))
            if solver.check() == self.z3.unsat:
                kept.remove(name)
        return kept

    def config(self, model: z3.ModelRef) -> dict[str, Level]:
        """The configuration of a model."""
        found: dict[str, Level] = {}
        for factor in self.factors:
            values = [bool(self.z3.is_true(model.eval(v, model_completion=True))) for v in self._variables[factor.name]]
            found[factor.name] = values[0] if factor.is_bool else factor.levels[values.index(True)]
        return found

    def draw(self, rng: Integers) -> dict[str, Level]:
        """One possible configuration: factors in random order take a random level that is still possible."""
        fixed: list[z3.BoolRef] = []
        waiting = list(self.factors)
        while waiting:
            factor = waiting.pop(int(rng.integers(0, len(waiting))))
            levels = list(factor.levels)
            while levels:
                term = self.is_(factor, levels.pop(int(rng.integers(0, len(levels)))))
                if not levels or self._tracked.check(*fixed, term) == self.z3.sat:
                    fixed.append(term)
                    break
        if self._tracked.check(*fixed) != self.z3.sat:
            core = self.blame()
            raise ConstraintError(f"no configuration satisfies {_listed(core or ())}.", core or ())
        return self.config(self._tracked.model())
