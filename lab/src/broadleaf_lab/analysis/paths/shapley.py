"""Each factor's share of the way from the baseline to an end, averaged over all orders of applying them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import comb
from typing import TYPE_CHECKING

import numpy as np

from broadleaf_lab.analysis.model import scale as scales
from broadleaf_lab.analysis.model.scale import Scale
from broadleaf_lab.spec.factors import Level

if TYPE_CHECKING:
    from broadleaf_lab.analysis.model.fit import Fit

_EXACT = 15
_ORDERS = 2000
_AT_ONCE = 100
_DRAWS = 200
_FEW_DRAWS = 40


@dataclass(frozen=True, slots=True)
class Share:
    """One factor's average contribution with its 95 % interval, and its minimum and maximum over the orders."""

    factor: str
    level: Level
    contribution: float
    ci_low: float
    ci_high: float
    minimum: float
    maximum: float


@dataclass(frozen=True, slots=True)
class Shares:
    """The contributions of all factors; they sum to `after - before`, in the unit of `scale`. `exact` says whether all
    orders were counted or only a sample.
    """

    shares: tuple[Share, ...]
    scale: Scale
    before: float
    after: float
    exact: bool


def shapley(fit: Fit, end: Mapping[str, Level] | None = None, scale: Scale = "log") -> Shares:
    """Shares of the way from the baseline to `end` (all factors at their treated level if None).

    On the fit's own scale there is a closed form: half of every pair's interaction goes to each of the two. On other
    scales, all subsets of up to 15 factors are predicted, otherwise 2000 random orders. Subsets that constraints forbid
    are predicted as well.
    """
    start = {f.name: f.default for f in fit.factors}
    goal = {**start, **({f.name: f.on for f in fit.factors} if end is None else dict(end))}
    players = [f.name for f in fit.factors if goal[f.name] != start[f.name]]
    rng = np.random.default_rng(1)
    draws = np.column_stack([fit.treatment_params, fit.bootstrap(rng, _DRAWS)])
    if not players:
        value = float(_values(fit, fit.coding.rows([start]), draws[:, :1], scale)[0, 0])
        return Shares((), scale, value, value, True)
    if scale == fit.scale and not fit.coding.triples and not any(f.when for f in fit.factors):
        return _closed(fit, start, goal, players)
    if len(players) <= _EXACT:
        subsets = np.arange(1 << len(players))
        bits = (subsets[:, None] >> np.arange(len(players))) & 1
        values = _values(fit, fit.coding.rows_between(start, goal, players, bits), draws, scale)
        weights = _weights(len(players))
        shares = []
        for number, name in enumerate(players):
            without = _without(len(players), number)
            steps = values[without | (1 << number)] - values[without]
            shares.append(_share(name, goal[name], weights[_sizes(without)] @ steps, steps[:, 0]))
        return Shares(tuple(shares), scale, float(values[0, 0]), float(values[-1, 0]), True)
    return _sampled(fit, start, goal, players, rng, draws[:, : _FEW_DRAWS + 1], scale)


def _closed(fit: Fit, start: dict[str, Level], goal: dict[str, Level], players: list[str]) -> Shares:
    shares = []
    for name in players:
        others = [other for other in players if other != name]
        contexts = [start, *({**start, other: goal[other]} for other in others)]
        steps = fit.coding.rows([{**c, name: goal[name]} for c in contexts]) - fit.coding.rows(contexts)
        alone, changes = steps[0], steps[1:] - steps[0]
        it = fit.contrast(alone + changes.sum(axis=0) / 2)
        by_other = changes[:, fit.kept] @ fit.treatment_params
        solo = fit.contrast(alone).estimate
        shares.append(
            Share(name, goal[name], it.estimate, it.low, it.high, solo + float(np.minimum(by_other, 0).sum()),
                  solo + float(np.maximum(by_other, 0).sum()))
        )  # fmt: skip
    ends = fit.coding.rows([start, goal])[:, fit.kept] @ fit.treatment_params
    return Shares(tuple(shares), fit.scale, float(ends[0]), float(ends[1]), True)


def _sampled(
    fit: Fit, start: dict[str, Level], goal: dict[str, Level], players: list[str], rng: np.random.Generator,
    draws: np.ndarray, scale: Scale,
) -> Shares:  # fmt: skip
    k = len(players)
    total = np.zeros((k, draws.shape[1]))
    minimum, maximum = np.full(k, np.inf), np.full(k, -np.inf)
    before = after = 0.0
    for _ in range(_ORDERS // _AT_ONCE):
        position = np.argsort(rng.random((_AT_ONCE, k)), axis=1)
        # After n steps, the players included are those whose position in the order is below n.
        bits = (position[:, None, :] < np.arange(k + 1)[None, :, None]).astype(np.int64)
        rows = fit.coding.rows_between(start, goal, players, bits.reshape(-1, k))
        values = _values(fit, rows, draws, scale).reshape(_AT_ONCE, k + 1, -1)
        steps = np.take_along_axis(np.diff(values, axis=1), position[:, :, None], axis=1)
        total += steps.sum(axis=0)
        minimum, maximum = (
            np.minimum(minimum, steps[:, :, 0].min(axis=0)),
            np.maximum(maximum, steps[:, :, 0].max(axis=0)),
        )
        before, after = float(values[0, 0, 0]), float(values[0, -1, 0])
    mean = total / _ORDERS
    ranges = np.column_stack([minimum, maximum])
    shares = [_share(name, goal[name], mean[n], ranges[n]) for n, name in enumerate(players)]
    return Shares(tuple(shares), scale, before, after, False)


def _share(name: str, level: Level, mean: np.ndarray, steps: np.ndarray) -> Share:
    low, high = np.nanquantile(mean[1:], [0.025, 0.975])
    return Share(name, level, float(mean[0]), float(low), float(high), float(steps.min()), float(steps.max()))


def _values(fit: Fit, rows: np.ndarray, draws: np.ndarray, scale: Scale) -> np.ndarray:
    predicted: np.ndarray = rows[:, fit.kept] @ draws
    return predicted if scale == fit.scale else scales.transform(scales.to_us(predicted, fit.scale), scale)


def _weights(k: int) -> np.ndarray:
    """The share of orders in which exactly a given set of each size comes before a player."""
    weights: np.ndarray = np.array([1 / (k * comb(k - 1, size)) for size in range(k)])
    return weights


def _without(k: int, number: int) -> np.ndarray:
    subsets = np.arange(1 << k)
    chosen: np.ndarray = subsets[(subsets >> number) & 1 == 0]
    return chosen


def _sizes(subsets: np.ndarray) -> np.ndarray:
    sizes: np.ndarray = np.array([int(s).bit_count() for s in subsets.tolist()])
    return sizes
