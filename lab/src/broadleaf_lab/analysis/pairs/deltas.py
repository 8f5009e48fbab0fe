"""Deltas: every measured X beside X + {treatment}, before and after.

A delta needs two configurations that differ in one factor. Fractional designs have hardly any of these, paths and full
designs have many; if there are none, `deltas` returns an empty table and `missing_pairs` says why.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
import pandas as pd

from broadleaf_lab.analysis.frame import Cells, cells, coded, identify, pooled_sd, select
from broadleaf_lab.analysis.model.scale import to_us
from broadleaf_lab.errors import AnalysisError
from broadleaf_lab.spec.factors import Factor, Level, column_value
from broadleaf_lab.spec.runs import replace_file

if TYPE_CHECKING:
    from broadleaf_lab.analysis.model.fit import Fit

Pairing = Literal["cell", "cross"]
COLUMNS = (
    "treatment", "level_from", "level_to", "before_us", "after_us", "delta_us", "log2_ratio", "n_before", "n_after",
    "se_log2", "same_block", "gap_s", "source", "context_id",
)  # fmt: skip
_BLOCKS = 10
"""Fewer blocks than this are too few to draw from: runs are drawn instead."""


@dataclass(frozen=True, slots=True)
class _Pairs:
    """Pairs of cells that differ in one factor."""

    factor: int
    level_to: Level
    before: np.ndarray
    after: np.ndarray


def deltas(
    frame: pd.DataFrame, factors: Sequence[Factor], pairing: Pairing = "cell", where: str | None = None
) -> pd.DataFrame:
    """Every delta of runs in the form that `analysis.frame.load` returns: for an off/on factor from off to on, for one
    with levels from its default to each other one.

    `pairing`: "cell" compares the medians of the two configurations, with `n_before` and `n_after` runs; "cross" pairs
    all with all (the r x r pairs of 2 r runs are not independent: intervals over them are too narrow by sqrt(r)).
    `where` keeps runs by an expression over the factors, before pairing. `se_log2` is the standard error of
    `log2_ratio` from the spread within configurations, `gap_s` the time between the two. After the columns of `COLUMNS`
    comes one per factor: the context X, empty for the treatment itself.
    """
    if where is not None:
        frame = select(frame, factors, where)
    kept = coded(frame, factors)
    parts = [_named(part, pairs, factors, kept) for pairs, part in _compared(frame, factors, pairing) if len(part)]
    names = [*COLUMNS, *(f.name for f in factors)]
    if not parts:
        return pd.DataFrame({name: pd.Series(dtype=object) for name in names})
    return pd.concat(parts, ignore_index=True)[names]


def _compared(frame: pd.DataFrame, factors: Sequence[Factor], pairing: Pairing) -> list[tuple[_Pairs, pd.DataFrame]]:
    """The times before and after of every treatment and level, without their contexts."""
    if pairing not in ("cell", "cross"):
        raise AnalysisError(f"unknown pairing {pairing!r}: choose cell or cross.")
    cell, kept = cells(frame, factors)
    y = frame["y_us"].to_numpy(dtype=float)
    clock = frame["started_unix"].to_numpy(dtype=float)
    block = frame["block"].to_numpy(dtype=float)
    runs = _runs_of_cells(cell, len(kept))
    sd_log2 = pooled_sd(np.log2(y), cell)[0] if len(y) else float("nan")
    flips = _one_flips(kept, factors)
    if pairing == "cell":
        told = _CellRuns.of(runs, y, clock, block)
        return [(pairs, _by_cell(pairs, told, sd_log2)) for pairs in flips]
    return [(pairs, _by_run(pairs, runs, y, clock, block, sd_log2)) for pairs in flips]


def _one_flips(kept: list[dict[str, Level]], factors: Sequence[Factor]) -> list[_Pairs]:
    number = {tuple(config.values()): position for position, config in enumerate(kept)}
    found = []
    for position, factor in enumerate(factors):
        starts = [(key, cell) for key, cell in number.items() if key[position] == factor.default]
        for level in _levels_run(kept, factor):
            pairs = [
                (cell, number[other])
                for key, cell in starts
                if (other := (*key[:position], level, *key[position + 1 :])) in number
            ]
            if pairs:
                before, after = np.array(pairs).T
                found.append(_Pairs(position, level, before, after))
    return found


def _levels_run(kept: list[dict[str, Level]], factor: Factor) -> list[Level]:
    """The levels other than the default that occur; on a scale, levels between the listed ones may have been run."""
    seen = dict.fromkeys(config[factor.name] for config in kept)
    listed = [level for level in factor.others if level in seen]
    return listed + sorted((s for s in seen if s not in factor.levels), key=float)


@dataclass(frozen=True, slots=True)
class _CellRuns:
    """What the runs of every cell say together."""

    median: np.ndarray
    middle: np.ndarray
    count: np.ndarray
    variance: np.ndarray
    blocks: list[set[float]]

    @classmethod
    def of(cls, runs: list[np.ndarray], y: np.ndarray, clock: np.ndarray, block: np.ndarray) -> _CellRuns:
        count = np.array([len(r) for r in runs], dtype=int)
        return cls(
            _medians(y, runs, count),
            _medians(clock, runs, count),
            count,
            np.array([median_variance(len(r)) for r in runs]),
            [set(block[r][~np.isnan(block[r])].tolist()) for r in runs],
        )


def _medians(values: np.ndarray, runs: list[np.ndarray], count: np.ndarray) -> np.ndarray:
    """The median of each group of runs, none of which is empty."""
    if not runs:
        return np.zeros(0)
    ours = values[np.concatenate(runs)]
    ordered = ours[np.lexsort((ours, np.repeat(np.arange(len(runs)), count)))]
    first = np.cumsum(count) - count
    middle: np.ndarray = (ordered[first + (count - 1) // 2] + ordered[first + count // 2]) / 2
    return middle


def _by_cell(pairs: _Pairs, told: _CellRuns, sd_log2: float) -> pd.DataFrame:
    b, a = pairs.before, pairs.after
    return pd.DataFrame({
        "cell": b,
        "before_us": told.median[b],
        "after_us": told.median[a],
        "n_before": told.count[b],
        "n_after": told.count[a],
        "se_log2": sd_log2 * np.sqrt(told.variance[b] + told.variance[a]),
        "same_block": [not told.blocks[i].isdisjoint(told.blocks[j]) for i, j in zip(b, a, strict=True)],
        "gap_s": told.middle[a] - told.middle[b],
    })  # fmt: skip


def median_variance(n: int) -> float:
    """The variance of the median of n normal values, in units of that of one; exact for the small n of replicates."""
    small = {1: 1.0, 2: 0.5, 3: 0.4487, 4: 0.2982, 5: 0.2868, 6: 0.2147, 7: 0.2104}
    return small.get(n, np.pi / (2 * n))


def _by_run(
    pairs: _Pairs, runs: list[np.ndarray], y: np.ndarray, clock: np.ndarray, block: np.ndarray, sd_log2: float
) -> pd.DataFrame:
    both = zip(pairs.before.tolist(), pairs.after.tolist(), strict=True)
    cell, before, after = np.array([(b, i, j) for b, a in both for i in runs[b] for j in runs[a]]).T
    return pd.DataFrame({
        "cell": cell,
        "before_us": y[before],
        "after_us": y[after],
        "n_before": 1,
        "n_after": 1,
        "se_log2": sd_log2 * np.sqrt(2),
        "same_block": block[before] == block[after],
        "gap_s": clock[after] - clock[before],
    })  # fmt: skip


def _named(
    part: pd.DataFrame, pairs: _Pairs, factors: Sequence[Factor], kept: Cells, identified: bool = True
) -> pd.DataFrame:
    factor = factors[pairs.factor]
    others = [f for f in factors if f is not factor]
    out = part.copy()
    out["treatment"] = factor.name
    out["level_from"] = column_value(factor.default)
    out["level_to"] = column_value(pairs.level_to)
    out["delta_us"] = out["after_us"] - out["before_us"]
    out["log2_ratio"] = np.log2(out["after_us"] / out["before_us"])
    if "source" not in out:
        out["source"] = "measured"
    context = kept.codes[out["cell"].to_numpy(dtype=int)]
    for position, f in enumerate(factors):
        if f is not factor:
            values = np.array([column_value(level) for level in kept.levels[position]], dtype=object)
            out[f.name] = pd.Series(values[context[:, position]], index=out.index).infer_objects()
    out[factor.name] = None
    out["context_id"] = identify(out, others, "x") if identified else None
    return out


def model_deltas(fit: Fit, *, identified: bool = True, errors: bool = True) -> pd.DataFrame:
    """Deltas as the model predicts them in every configuration that was run, `source` "model": they show what a design
    without pairs can show, and before/after figures use them where noise in `before` would look like an effect.
    `context_id` is empty unless `identified`; `se_log2` is nan without `errors`, which take most of the time.
    """
    parts = []
    params = np.zeros(len(fit.kept))
    params[fit.kept] = fit.treatment_params
    for position, factor in enumerate(fit.factors):
        contexts = _at_default(fit, position)
        default = fit.coding.cell_rows(contexts)
        for level in factor.others:
            treated = replace(contexts, levels=_with(contexts.levels, position, (level,)))
            changed = fit.coding.cell_rows(treated)
            rows = changed - default
            good = np.flatnonzero(fit.estimable_rows(rows))
            if not len(good):
                continue
            before, after = (to_us((part @ params)[good], fit.scale) for part in (default, changed))
            has_errors = errors and fit.scale == "log"
            se = np.array([it.se for it in fit.contrasts_of(rows[good])]) if has_errors else np.nan
            part = pd.DataFrame({
                "cell": good, "before_us": before, "after_us": after, "n_before": 0, "n_after": 0,
                "se_log2": se / np.log(2), "same_block": False, "gap_s": np.nan, "source": "model",
            })  # fmt: skip
            pairs = _Pairs(position, level, np.array([]), np.array([]))
            parts.append(_named(part, pairs, fit.factors, contexts, identified))
    names = [*COLUMNS, *(f.name for f in fit.factors)]
    if not parts:
        return pd.DataFrame({name: pd.Series(dtype=object) for name in names})
    return pd.concat(parts, ignore_index=True)[names]


def _at_default(fit: Fit, position: int) -> Cells:
    """The configurations that were run, with one factor at its default: the only level of it that they have."""
    cells_run, factor = fit.sample.cells, fit.factors[position]
    codes = cells_run.codes.copy()
    codes[:, position] = 0
    first = np.sort(np.unique(codes, axis=0, return_index=True)[1])
    found = replace(
        cells_run,
        index=np.arange(len(first)),
        codes=codes[first],
        levels=_with(cells_run.levels, position, (factor.default,)),
    )
    if not factor.when:
        return found
    there = [fit.coding.exists(factor.name, config) for config in found.configs()]
    return replace(found, index=np.arange(sum(there)), codes=found.codes[there])


def _with(
    levels: tuple[tuple[Level, ...], ...], position: int, own: tuple[Level, ...]
) -> tuple[tuple[Level, ...], ...]:
    return (*levels[:position], own, *levels[position + 1 :])


def missing_pairs(table: pd.DataFrame, factors: Sequence[Factor]) -> str | None:
    """What to tell the user if factors have no delta; None if all have some."""
    counts = table["treatment"].value_counts() if len(table) else pd.Series(dtype=int)
    without = [f.name for f in factors if not counts.get(f.name, 0)]
    if not without:
        return None
    advice = (
        "Fractional and random designs have almost no pairs of configurations that differ in only one factor. Add "
        '`paths = 40` or `edges = 16` to [design], or use kind = "full"; `broadleaf-lab analyse` needs no pairs.'
    )
    if len(without) == len(factors):
        return f"These runs have no pair X, X + treatment at all: 0 deltas. {advice}"
    return f"No pair X, X + treatment for {', '.join(without)}. {advice}"


def cross_warning(table: pd.DataFrame) -> str | None:
    """What to tell the user about the pairing "cross" if configurations were run more than once."""
    per = table.groupby(["treatment", "level_to", "context_id"]).size() if len(table) else pd.Series(dtype=int)
    if not len(per) or per.max() < 2:
        return None
    return (
        f"Pairing all with all makes up to {per.max()} pairs of the same two configurations. They share runs: an "
        "interval that treats them as independent is too narrow, by a factor of sqrt(r) for r runs of each. Use "
        "--pairing cell for intervals."
    )


def mean_deltas(
    frame: pd.DataFrame,
    factors: Sequence[Factor],
    pairing: Pairing = "cell",
    where: str | None = None,
    draws: int = 1000,
    seed: int = 1,
) -> pd.DataFrame:
    """The mean delta of every treatment and level with a 95 % bootstrap interval: treatment, level_from, level_to,
    mean_us, ci_low, ci_high, log2_ratio, n_pairs.

    Deltas of cells are weighted with the harmonic mean of their runs. The bootstrap draws whole blocks (or runs, with
    fewer than ten blocks) and pairs again each time, so that pairs that share runs do not count as independent.
    """
    if where is not None:
        frame = select(frame, factors, where)
    cell, kept = cells(frame, factors)
    y = frame["y_us"].to_numpy(dtype=float)
    compared = _compared(frame, factors, pairing)
    flips = [pairs for pairs, _ in compared]
    rng = np.random.default_rng(seed)
    block = frame["block"].to_numpy(dtype=float)
    # Only runs that have a partner count.
    paired: np.ndarray = np.zeros(len(kept), dtype=bool)
    for pairs in flips:
        paired[pairs.before] = paired[pairs.after] = True
    used = np.flatnonzero(paired[cell])
    means = _Means(flips, cell[used], y[used], len(kept), pairing)
    observed = means.of(np.ones(len(used), dtype=int))
    drawn = np.full((draws, len(flips)), np.nan)
    labels, in_block = np.unique(block, return_inverse=True)
    # Runs without a block are in no draw of blocks.
    blocks = int((~np.isnan(labels)).sum())
    for number in range(draws if flips else 0):
        if blocks >= _BLOCKS:
            times = np.append(np.bincount(rng.integers(0, blocks, blocks), minlength=blocks), 0)[in_block]
        else:
            times = np.bincount(rng.integers(0, len(y), len(y)), minlength=len(y))
        drawn[number] = means.of(times[used])
    rows = []
    for position, (pairs, part) in enumerate(compared):
        factor = factors[pairs.factor]
        told = drawn[:, position][np.isfinite(drawn[:, position])]
        low, high = np.quantile(told, [0.025, 0.975]) if len(told) else (np.nan, np.nan)
        rows.append({
            "treatment": factor.name, "level_from": column_value(factor.default),
            "level_to": column_value(pairs.level_to), "mean_us": observed[position], "ci_low": low, "ci_high": high,
            "log2_ratio": float(np.log2(part["after_us"] / part["before_us"]).mean()), "n_pairs": len(part),
        })  # fmt: skip
    names = ["treatment", "level_from", "level_to", "mean_us", "ci_low", "ci_high", "log2_ratio", "n_pairs"]
    return pd.DataFrame(rows, columns=names)


def _runs_of_cells(cell: np.ndarray, cells: int) -> list[np.ndarray]:
    if not cells:
        return []
    ends = np.cumsum(np.bincount(cell, minlength=cells))[:-1]
    found: list[np.ndarray] = np.split(np.argsort(cell, kind="stable"), ends)
    return found


class _Means:
    """The mean delta of every treatment, in samples of the same runs."""

    def __init__(self, flips: Sequence[_Pairs], cell: np.ndarray, y: np.ndarray, cells: int, pairing: Pairing) -> None:
        self._cells, self._by_median = cells, pairing == "cell"
        none: np.ndarray = np.zeros(0, dtype=int)
        self._before = np.concatenate([none, *(pairs.before for pairs in flips)])
        self._after = np.concatenate([none, *(pairs.after for pairs in flips)])
        self._flip: np.ndarray = np.repeat(np.arange(len(flips)), [len(pairs.before) for pairs in flips])
        self._flips = len(flips)
        # The order of times within a cell is the same in every sample: a median is found by counting.
        self._order = np.lexsort((y, cell))
        self._y, self._cell = y[self._order], cell[self._order]
        self._ends = np.cumsum(np.bincount(cell, minlength=cells))

    def of(self, times: np.ndarray) -> np.ndarray:
        """In the sample that has each run so many times; nan where a treatment has no pair."""
        taken = times[self._order]
        upto = np.concatenate([[0], np.cumsum(taken)])
        ends = upto[self._ends]
        starts = np.concatenate([[0], ends[:-1]])
        number = ends - starts
        count = number.astype(float)
        if self._by_median:
            there = number > 0
            centre = np.full(self._cells, np.nan)
            low, high = (
                self._y[np.searchsorted(upto[1:], starts[there] + middle, side="right")]
                for middle in ((number[there] - 1) // 2, number[there] // 2)
            )
            centre[there] = (low + high) / 2
        else:
            sums = np.bincount(self._cell, self._y * taken, self._cells)
            centre = sums / np.where(count > 0, count, np.nan)
        b, a = count[self._before], count[self._after]
        # All pairs of two cells average to the difference of their means, as many as they are.
        weight = 2 * b * a / np.maximum(b + a, 1) if self._by_median else b * a
        change = np.where(weight > 0, (centre[self._after] - centre[self._before]) * weight, 0.0)
        sums, total = (np.bincount(self._flip, each, self._flips) for each in (change, weight))
        found: np.ndarray = np.where(total > 0, sums / np.where(total > 0, total, 1.0), np.nan)
        return found


def save(table: pd.DataFrame, path: Path) -> None:
    """Writes deltas.csv, completely or not at all; raises WriteError if it cannot be written."""
    replace_file(path, table.assign(same_block=table["same_block"].astype(int)).to_csv(index=False))
