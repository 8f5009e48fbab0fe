"""Which configurations are possible: named constraints and nested factors, and a search for what satisfies them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from broadleaf_lab.errors import ConstraintError
from broadleaf_lab.spec import expressions
from broadleaf_lab.spec.expressions import AnyOf, Atom, Node
from broadleaf_lab.spec.factors import Config, Factor, Level, column_value

_EFFORT = 50_000
"""Steps that a search may take; where more are needed, the constraints tie too many factors together."""


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

    @property
    def nodes(self) -> tuple[Node, ...]:
        """The trees of all rules."""
        return tuple(self._rules.values())

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
        return factor not in self._when or bool(expressions.holds(self._when[factor], config))

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
        return found + [self._drawn(rng) for _ in range(n - len(found))]

    def _drawn(self, rng: Integers) -> dict[str, Level]:
        """One where few are possible: factors in random order take a random level that is still possible."""
        fixed: dict[str, Level] = {}
        waiting = list(self.factors)
        while waiting:
            factor = waiting.pop(int(rng.integers(0, len(waiting))))
            levels = list(factor.levels)
            while levels:
                level = levels.pop(int(rng.integers(0, len(levels))))
                if self.completed({**fixed, factor.name: level}) is not None:
                    fixed[factor.name] = level
                    break
            else:
                core = self._blamed(fixed)
                raise ConstraintError(f"no configuration satisfies {_listed(core)}.", core)
        return {factor.name: fixed[factor.name] for factor in self.factors}

    def neighbours(self, config: Config) -> list[dict[str, Level]]:
        """Possible configurations that differ from one in the level of one factor."""
        near = [{**config, f.name: level} for f in self.factors for level in f.levels if level != config[f.name]]
        return [other for other in near if self.allows(other)]

    def check(self) -> None:
        """Raises ConstraintError, with the names of the constraints to blame, if nothing is possible, the baseline is
        not, or a level never is.
        """
        if self.completed({}) is None:
            core = self._blamed({})
            raise ConstraintError(
                f"no configuration satisfies the constraints: {_listed(core)} contradict each other. Relax one.",
                core,
            )
        problems: list[str] = []
        names: list[str] = []
        default = {factor.name: factor.default for factor in self.factors}
        if broken := self.violated(default):
            problems.append(f"the baseline, every factor at its default, violates {_listed(broken)}")
            names += broken
        for factor in self.factors:
            for level in factor.levels:
                if self.completed({factor.name: level}) is None:
                    core = self._blamed({factor.name: level})
                    problems.append(
                        f"level {column_value(level)!r} of {factor.name!r} can never be reached because of "
                        f"{_listed(core)}"
                    )
                    names += core
        if problems:
            raise ConstraintError(
                "; ".join(problems) + ". Relax a constraint or drop the level.", tuple(dict.fromkeys(names))
            )

    def completed(self, fixed: Config, without: Collection[str] = ()) -> dict[str, Level] | None:
        """A possible configuration with these levels, or None. The rules `without` do not count."""
        nodes = [node for name, node in self._rules.items() if name not in without]
        effort = iter(range(_EFFORT))
        found = dict(fixed)
        # What no rule ties together is searched apart.
        for linked in _linked(nodes):
            tied = {name for node in linked for name in expressions.names(node)}
            waiting = [factor for factor in self.factors if factor.name in tied and factor.name not in found]
            whole = _completed(found, waiting, linked, effort)
            if whole is None:
                return None
            found = whole
        return {factor.name: found.get(factor.name, factor.default) for factor in self.factors}

    def _blamed(self, fixed: Config) -> tuple[str, ...]:
        """Rules that make these levels impossible, none of which can be omitted."""
        core = list(self._rules)
        for name in self._rules:
            if self.completed(fixed, without=self._rules.keys() - {*core} | {name}) is None:
                core.remove(name)
        return tuple(core)


def _linked(nodes: Iterable[Node]) -> list[list[Node]]:
    """The rules in groups that share no factor."""
    groups: list[tuple[set[str], list[Node]]] = []
    for node in nodes:
        names, linked = expressions.names(node), [node]
        for group in [group for group in groups if group[0] & names]:
            groups.remove(group)
            names, linked = names | group[0], group[1] + linked
        groups.append((names, linked))
    return [linked for _, linked in groups]


def _completed(
    config: dict[str, Level], waiting: Sequence[Factor], nodes: Sequence[Node], effort: Iterator[int]
) -> dict[str, Level] | None:
    """The configuration with levels for the waiting factors such that the rules hold: a depth-first search."""
    if next(effort, None) is None:
        names = ", ".join(sorted({name for node in nodes for name in expressions.names(node)}))
        raise ConstraintError(
            f"the constraints tie too many factors together to determine which configurations are possible: {names}."
        )
    if any(expressions.holds(node, config) is False for node in nodes):
        return None
    if not waiting:
        return config
    factor, *rest = waiting
    for level in (factor.default, *factor.others):
        found = _completed({**config, factor.name: level}, rest, nodes, effort)
        if found is not None:
            return found
    return None


def _is_default(factor: Factor) -> Atom:
    return Atom((factor.name,), lambda config: config[factor.name] == factor.default)


def _listed(names: Sequence[str]) -> str:
    return " and ".join(repr(name) for name in names) if names else "the levels themselves"
