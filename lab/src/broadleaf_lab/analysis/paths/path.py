"""Ways from the slow to the fast setting, one treatment after the other, and what each step changes along the way."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
import pandas as pd

from broadleaf_lab.analysis.frame import cells, coded, configs
from broadleaf_lab.analysis.model import scale as scales
from broadleaf_lab.analysis.model.scale import Scale
from broadleaf_lab.errors import AnalysisError
from broadleaf_lab.spec.factors import Factor, Level

if TYPE_CHECKING:
    from broadleaf_lab.analysis.known import Known
    from broadleaf_lab.analysis.model.fit import Fit
    from broadleaf_lab.spec.constraints import Constraints

_DRAWS = 2000
Kind = Literal["greedy", "nice", "custom", "shapley", "measured"]


@dataclass(frozen=True, slots=True)
class PathStep:
    """The application of one treatment: the path's value before and after it, in the unit of the path's scale.

    `ci_low` and `ci_high` bound the step's change, `after - before` (on "log" the logarithm of the ratio)."""

    factor: str
    level: Level
    before: float
    after: float
    ci_low: float
    ci_high: float
    tier: int = 1

    @property
    def change(self) -> float:
        """The change of the step."""
        return self.after - self.before


@dataclass(frozen=True, slots=True)
class Path:
    """A path: its steps, and whether they are predicted by the model or measured again."""

    order: tuple[PathStep, ...]
    kind: Kind
    scale: Scale
    start: float
    source: Literal["model", "measured"] = "model"
    log_steps: tuple[tuple[float, float, float], ...] = ()
    """The logarithm of every step's ratio with its interval; none for shares averaged over orders."""

    @property
    def end(self) -> float:
        """The end of the path."""
        return self.order[-1].after if self.order else self.start

    @property
    def total(self) -> float:
        """The sum of the steps' changes."""
        return float(sum(step.change for step in self.order))

    def configs(self, factors: Sequence[Factor]) -> list[dict[str, Level]]:
        """The configurations along the path, from the baseline on: the ones to measure again."""
        config = {f.name: f.default for f in factors}
        out = [config]
        for step in self.order:
            config = {**config, step.factor: step.level}
            out.append(config)
        return out


def greedy(
    fit: Fit, constraints: Constraints | None = None, scale: Scale = "us", all_steps: bool = False,
    known: Known | None = None,
) -> Path:  # fmt: skip
    """At each step, takes the possible treatment that leads to the lowest predicted time.

    Stops if no treatment is proven to help (95 % interval of its ratio below 1), unless `all_steps` is set; with
    `known`, only settings that help according to this record are taken. Steps chosen because they look good look better
    than they are: measure `Path.configs` again and use `remeasured`.
    """
    return _predicted(fit, _greedy(fit, constraints, all_steps, known), "greedy", scale)


def _greedy(
    fit: Fit, constraints: Constraints | None, all_steps: bool, known: Known | None
) -> list[tuple[Factor, Level]]:
    state = {f.name: f.default for f in fit.factors}
    chosen: list[tuple[Factor, Level]] = []
    candidates = [
        (factor, level)
        for factor in fit.factors
        for level in factor.others
        if known is None or all_steps or known.can_help(factor.name, level)
    ]
    while True:
        moves = [
            (factor, level)
            for factor, level in candidates
            if factor.name not in {f.name for f, _ in chosen} and _possible(fit, constraints, state, factor, level)
        ]
        taken = None
        for move in _ranked(fit, state, moves):
            it = fit.changes([{**state, move[0].name: move[1]}], [state])[0]
            if all_steps or (it.low > 0 if fit.scale == "rate" else it.high < 0):
                taken = move
                break
        if taken is None:
            return chosen
        chosen.append(taken)
        state = {**state, taken[0].name: taken[1]}


def _ranked(fit: Fit, state: Mapping[str, Level], moves: Sequence[tuple[Factor, Level]]) -> list[tuple[Factor, Level]]:
    """The moves, the one that leads to the lowest predicted time first."""
    if not moves:
        return []
    value = fit.coding.rows([{**state, f.name: level} for f, level in moves])[:, fit.kept] @ fit.treatment_params
    return [moves[int(index)] for index in np.argsort(-value if fit.scale == "rate" else value, kind="stable")]


def nice(
    fit: Fit, constraints: Constraints | None = None, scale: Scale = "us", all_steps: bool = False,
    known: Known | None = None,
) -> Path:  # fmt: skip
    """The treatments of the greedy path, those of the nicest tier first: shows what can be gained before anything has
    to be given up. It ends where the greedy path ends.
    """
    state = {f.name: f.default for f in fit.factors}
    left = _greedy(fit, constraints, all_steps, known)
    chosen: list[tuple[Factor, Level]] = []
    while left:
        # A treatment that needs another waits for it.
        possible = [move for move in left if _possible(fit, constraints, state, *move)] or left
        tier = min(factor.tier for factor, _ in possible)
        taken = _ranked(fit, state, [move for move in possible if move[0].tier == tier])[0]
        left.remove(taken)
        chosen.append(taken)
        state = {**state, taken[0].name: taken[1]}
    return _predicted(fit, chosen, "nice", scale)


def custom(
    fit: Fit,
    order: Sequence[str | tuple[str, Level]],
    constraints: Constraints | None = None,
    scale: Scale = "us",
) -> Path:
    """The user's order: factor names, each at its treated level, or (name, level). Raises AnalysisError for a step that
    the constraints forbid, or a factor that the study does not have.
    """
    by_name = {f.name: f for f in fit.factors}
    state = {f.name: f.default for f in fit.factors}
    chosen: list[tuple[Factor, Level]] = []
    for entry in order:
        name, level = (entry, None) if isinstance(entry, str) else entry
        if name not in by_name:
            raise AnalysisError(f"factor {name!r} cannot be on a path: choose among {', '.join(by_name)}.")
        factor = by_name[name]
        level = factor.on if level is None else factor.parse(level)
        state = {**state, name: level}
        if name in {f.name for f, _ in chosen}:
            raise AnalysisError(f"factor {name!r} is on the path twice: name each factor once.")
        if constraints is not None and not constraints.allows(_whole(state, constraints)):
            broken = ", ".join(constraints.violated(_whole(state, constraints)))
            raise AnalysisError(
                f"the path cannot apply {name!r} here, because that would violate {broken}. Leave it out or "
                "change the order."
            )
        chosen.append((factor, level))
    return _predicted(fit, chosen, "custom", scale)


def shapley(fit: Fit, end: Mapping[str, Level] | None = None, scale: Scale = "us") -> Path:
    """Every factor's share averaged over all orders, drawn as a path from the largest gain to the largest loss."""
    from broadleaf_lab.analysis.paths.shapley import shapley as shares_of

    found = shares_of(fit, end, scale)
    sign = -1.0 if scale == "rate" else 1.0
    tiers = {f.name: f.tier for f in fit.factors}
    steps = []
    at = found.before
    for share in sorted(found.shares, key=lambda share: sign * share.contribution):
        after = at + share.contribution
        steps.append(PathStep(share.factor, share.level, at, after, share.ci_low, share.ci_high, tiers[share.factor]))
        at = after
    return Path(tuple(steps), "shapley", scale, found.before)


def _possible(
    fit: Fit, constraints: Constraints | None, state: Mapping[str, Level], factor: Factor, level: Level
) -> bool:
    config = {**state, factor.name: level}
    if not fit.coding.exists(factor.name, config) or (
        constraints is not None and not constraints.allows(_whole(config, constraints))
    ):
        return False
    return fit.estimable(fit.coding.row(config) - fit.coding.row(state))


def _whole(config: Mapping[str, Level], constraints: Constraints) -> dict[str, Level]:
    """A configuration with the factors that never varied, at their defaults."""
    return {**{f.name: f.default for f in constraints.factors}, **config}


def _predicted(fit: Fit, chosen: Sequence[tuple[Factor, Level]], kind: Kind, scale: Scale) -> Path:
    state = {f.name: f.default for f in fit.factors}
    nodes = [state]
    for factor, level in chosen:
        state = {**state, factor.name: level}
        nodes.append(state)
    rows = fit.coding.rows(nodes)
    model = rows[:, fit.kept] @ fit.treatment_params
    values = model if scale == fit.scale else scales.transform(scales.to_us(model, fit.scale), scale)
    draws = None
    if scale != fit.scale:
        drawn = fit.draws(nodes, np.random.default_rng(1), _DRAWS)
        draws = scales.transform(scales.to_us(drawn, fit.scale), scale)
    logs = []
    steps = []
    changes = fit.changes(nodes[1:], nodes[:-1]) if chosen else []
    for number, ((factor, level), it) in enumerate(zip(chosen, changes, strict=True)):
        if draws is None:
            low, high = it.low, it.high
        else:
            low, high = map(float, np.nanquantile(draws[number + 1] - draws[number], [0.025, 0.975]))
        if fit.scale == "log":
            logs.append((it.estimate, it.low, it.high))
        steps.append(
            PathStep(factor.name, level, float(values[number]), float(values[number + 1]), low, high, factor.tier)
        )
    return Path(tuple(steps), kind, scale, float(values[0]), log_steps=tuple(logs))


def remeasured(path: Path, factors: Sequence[Factor], frame: pd.DataFrame, scale: Scale = "us") -> Path:
    """The same path from fresh runs of its configurations, several times each in interleaved blocks.

    A step is the mean over blocks of the difference of logarithms within the block, and its interval uses t over the
    blocks. The nodes are geometric means, so that the steps still add up. AnalysisError if a node has no run, or fewer
    than two blocks have both ends of a step.
    """
    nodes = path.configs(factors)
    cell, kept = cells(frame, factors)
    number = {tuple(config.values()): index for index, config in enumerate(kept)}
    logs = np.log(frame["y_us"].to_numpy(dtype=float))
    block = frame["block"].to_numpy()
    by_node = []
    for node in nodes:
        key = tuple(node[f.name] for f in factors)
        if key not in number:
            raise AnalysisError(
                "a node of this path was not measured again: run its configurations (`Path.configs`) first."
            )
        here = cell == number[key]
        by_node.append(pd.Series(logs[here]).groupby(block[here]).mean())
    from scipy import stats

    steps, found = [], []
    at = float(by_node[0].mean())
    start = at
    for step, (before, after) in zip(path.order, itertools.pairwise(by_node), strict=True):
        paired = (after - before).dropna()
        if len(paired) < 2:
            raise AnalysisError(
                f"step {step.factor!r}: fewer than two blocks have runs before and after it; run more replicates."
            )
        mean, se = float(paired.mean()), float(paired.std(ddof=1) / np.sqrt(len(paired)))
        half = float(stats.t.ppf(0.975, len(paired) - 1)) * se
        low, high = mean - half, mean + half
        found.append((mean, low, high))
        values = scales.transform(np.exp(np.array([at, at + mean, at + low, at + high])), scale)
        ends = sorted((float(values[2] - values[0]), float(values[3] - values[0])))
        steps.append(PathStep(step.factor, step.level, float(values[0]), float(values[1]), ends[0], ends[1], step.tier))
        at += mean
    first = float(scales.transform(np.exp(np.array([start])), scale)[0])
    return Path(tuple(steps), path.kind, scale, first, "measured", tuple(found))


@dataclass(frozen=True, slots=True)
class PathVectors:
    """Measured paths as points: one row per path, and one column per factor with what the factor changed on that path.

    `values` are microseconds per task, or log2 ratios. `orders` gives the order in which each path applied its factors;
    a factor that a path could not apply changed nothing there. `levels` are the medians at the nodes, from the baseline
    on. `noise` are the differences between single runs of one configuration in log units, mostly at nodes that all
    paths share.
    """

    path_ids: tuple[int, ...]
    factors: tuple[str, ...]
    values: np.ndarray
    orders: tuple[tuple[str, ...], ...]
    levels: tuple[tuple[float, ...], ...]
    noise: np.ndarray
    log2: bool

    @property
    def frame(self) -> pd.DataFrame:
        """As a table: path_id, then a column per factor."""
        table = pd.DataFrame(self.values, columns=list(self.factors))
        table.insert(0, "path_id", self.path_ids)
        return table


def path_vectors(frame: pd.DataFrame, factors: Sequence[Factor], log2: bool = False) -> PathVectors:
    """The vectors of every complete measured path; without any, of orders that the runs hold by themselves. Raises
    AnalysisError if there are none.

    If a path spans two blocks, its overlap run is in both, and a difference is taken within a block if possible.
    """
    rows = frame[frame["path_id"].notna() & frame["path_step"].notna()]
    names = [f.name for f in factors]
    ids, orders, vectors, levels = [], [], [], []
    for path_id, path in rows.groupby("path_id"):
        told = _one_path(path, factors, log2)
        if told is not None:
            ids.append(int(path_id))
            orders.append(told[0])
            vectors.append([told[1].get(name, 0.0) for name in names])
            levels.append(told[2])
    if not ids:
        for number, order in enumerate(_orders(frame, factors)):
            ids.append(number)
            orders.append(tuple(name for name, _ in order[1:]))
            levels.append(tuple(us for _, us in order))
            steps = {
                name: float(np.log2(us / before)) if log2 else us - before
                for (_, before), (name, us) in itertools.pairwise(order)
            }
            vectors.append([steps.get(name, 0.0) for name in names])
    if not ids:
        raise AnalysisError(
            "the runs contain no complete order of factors: plan some with `[design] paths = 40`, run them, and "
            "analyse again."
        )
    return PathVectors(
        tuple(ids), tuple(names), np.array(vectors), tuple(orders), tuple(levels), _noise(frame, factors), log2
    )


def _orders(frame: pd.DataFrame, factors: Sequence[Factor]) -> list[list[tuple[str, float]]]:
    """Orders from the baseline to the configuration that differs from it in most factors, each step in one factor, that
    share no configuration in between: per step its factor and the median time after it, the baseline first.
    """
    found = coded(frame, factors)
    base = np.array(
        [known.index(f.default) if f.default in known else -1 for f, known in zip(factors, found.levels, strict=True)]
    )
    if (base < 0).any():
        return []
    us = pd.Series(frame["y_us"].to_numpy(dtype=float)).groupby(found.index).median().to_numpy()
    number = {tuple(codes): index for index, codes in enumerate(found.codes.tolist())}
    changed = (found.codes != base).sum(axis=1)
    start, goal = number.get(tuple(base.tolist())), int(np.argmax(changed))
    if start is None or changed[goal] < 2:
        return []
    top = found.codes[goal].tolist()
    # A configuration from which the goal cannot be reached, or that an order has, is not tried again.
    left = set(number.values()) - {start, goal}
    made = []
    while (order := _order_from(start, goal, found.codes, top, number, left)) is not None:
        left -= set(order)
        names = ["", *(factors[int(np.flatnonzero(found.codes[a] != found.codes[b])[0])].name
                       for a, b in itertools.pairwise(order))]  # fmt: skip
        made.append([(name, float(us[index])) for name, index in zip(names, order, strict=True)])
    return made


def _order_from(
    start: int, goal: int, codes: np.ndarray, top: Sequence[int], number: Mapping[tuple[int, ...], int], left: set[int]
) -> list[int] | None:
    stack = [(start, iter(range(len(top))))]
    while stack:
        here, positions = stack[-1]
        if here == goal:
            return [index for index, _ in stack]
        for position in positions:
            row = codes[here].tolist()
            if row[position] == top[position]:
                continue
            row[position] = top[position]
            following = number.get(tuple(row))
            if following is not None and (following == goal or following in left):
                left.discard(following)
                stack.append((following, iter(range(len(top)))))
                break
        else:
            stack.pop()
    return None


def _one_path(
    path: pd.DataFrame, factors: Sequence[Factor], log2: bool
) -> tuple[tuple[str, ...], dict[str, float], tuple[float, ...]] | None:
    steps = {int(step): part for step, part in path.groupby("path_step")}
    if len(steps) < 2 or sorted(steps) != list(range(len(steps))):
        return None
    order: list[str] = []
    deltas: dict[str, float] = {}
    nodes = [configs(steps[number].iloc[:1], factors)[0] for number in range(len(steps))]
    medians = [float(steps[number]["y_us"].median()) for number in range(len(steps))]
    for number in range(1, len(steps)):
        changed = [f.name for f in factors if nodes[number][f.name] != nodes[number - 1][f.name]]
        if len(changed) != 1:
            return None
        before, after = steps[number - 1], steps[number]
        shared = sorted(set(before["block"].dropna()) & set(after["block"].dropna()))
        if shared:
            before, after = before[before["block"].isin(shared)], after[after["block"].isin(shared)]
        first, second = float(before["y_us"].median()), float(after["y_us"].median())
        order.append(changed[0])
        deltas[changed[0]] = deltas.get(changed[0], 0.0) + (float(np.log2(second / first)) if log2 else second - first)
    return tuple(order), deltas, tuple(medians)


def _noise(frame: pd.DataFrame, factors: Sequence[Factor]) -> np.ndarray:
    """The logarithms of all runs of configurations that were run more than once, minus their configuration's mean,
    scaled to the spread of single runs.
    """
    values, cell = np.log(frame["y_us"].to_numpy(dtype=float)), cells(frame, factors)[0]
    count = np.bincount(cell)
    rest = values - (np.bincount(cell, values) / count)[cell]
    often = count[cell] > 1
    found: np.ndarray = (rest * np.sqrt(count[cell] / np.maximum(count[cell] - 1, 1)))[often]
    return found
