"""Runs as a data frame: those that ended well, in the order they were made, with typed factor columns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import pandas as pd

from broadleaf.lab import expressions
from broadleaf.lab.errors import AnalysisError
from broadleaf.lab.factors import Factor, Level, column_value, config_id

_NUMBERS = ("y_us", "started_unix", "block", "order_in_block", "plan_row", "path_id", "path_step", "replicate")
_ABSENT = {"block": 0, "order_in_block": 0, "replicate": 0, "path_id": None, "path_step": None, "plan_row": None}


def load(
    source: str | Path | Iterable[Mapping[str, Any]] | pd.DataFrame, factors: Sequence[Factor], where: str | None = None
) -> pd.DataFrame:
    """The runs with status `ok`, oldest first; `y_us` is microseconds per task.

    `source` is the path of a runs.csv, its rows, or a frame of them. A factor's column holds 0 and 1 where it is off
    and on, a number where it has a scale, else text; a factor the runs do not know is at its default. `where` keeps
    the runs whose configuration satisfies an expression over the factors, such as `not cfg_log`. AnalysisError if no
    run is left.
    """
    if isinstance(source, pd.DataFrame):
        rows = cast(pd.DataFrame, source)
    elif isinstance(source, str | Path):
        from broadleaf.lab.runs import read_runs

        rows = pd.DataFrame(read_runs(Path(source), factors))
        if rows.empty:
            raise AnalysisError(f"{source}: there are no runs yet. Make them with `broadleaf lab run`.")
    else:
        rows = pd.DataFrame(list(source))
    if "y_us" not in rows and "time_per_task_us" not in rows:
        raise AnalysisError("these runs have no column time_per_task_us: is this a runs.csv of this study?")
    frame = rows.copy()
    if "status" in frame:
        frame = frame[frame["status"].astype(str) == "ok"]
    if "y_us" not in frame:
        frame["y_us"] = frame["time_per_task_us"]
    for name, absent in _ABSENT.items():
        if name not in frame:
            frame[name] = absent
    if "started_unix" not in frame:
        frame["started_unix"] = np.arange(len(frame), dtype=float)
    for name in _NUMBERS:
        frame[name] = pd.to_numeric(frame[name], errors="coerce").astype(float)
    frame = frame[np.isfinite(frame["y_us"]) & (frame["y_us"] > 0)]
    for factor in factors:
        frame[factor.name] = _levels(frame.get(factor.column), factor, len(frame))
    frame = frame.sort_values("started_unix", kind="stable").reset_index(drop=True)
    if where is not None:
        frame = select(frame, factors, where)
    if frame.empty:
        condition = f" where {where}" if where else ""
        raise AnalysisError(
            f"no run with status ok and a time per task{condition}: make runs first (`broadleaf lab run`)."
        )
    frame["config_id"] = identify(frame, factors)
    return frame


def _levels(column: pd.Series | None, factor: Factor, length: int) -> np.ndarray:
    levels: np.ndarray
    if column is None:
        levels = np.full(length, column_value(factor.default))
        return levels
    missing = column.isna() | (column.astype(str) == "")
    known = {raw: column_value(factor.parse(raw)) for raw in column[~missing].unique()}
    values = [column_value(factor.default) if gone else known[raw] for raw, gone in zip(column, missing, strict=True)]
    levels = np.array(values, dtype=object) if factor.is_categorical else np.array(values)
    return levels


def configs(frame: pd.DataFrame, factors: Sequence[Factor]) -> list[dict[str, Level]]:
    """The configuration of every run."""
    columns = []
    for factor in factors:
        levels = {column_value(level): level for level in factor.levels}
        columns.append([levels.get(value, value) for value in frame[factor.name].tolist()])
    names = [factor.name for factor in factors]
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)] if columns else []


def identify(frame: pd.DataFrame, factors: Sequence[Factor], prefix: str = "c") -> list[str]:
    """The id of every run's configuration over these factors."""
    names = [factor.name for factor in factors]
    known: dict[tuple[Any, ...], str] = {}
    found = []
    for config in configs(frame, factors):
        key = tuple(config[name] for name in names)
        if key not in known:
            known[key] = prefix + config_id(config, factors)[1:]
        found.append(known[key])
    return found if names else [prefix] * len(frame)


def cells(frame: pd.DataFrame, factors: Sequence[Factor]) -> tuple[np.ndarray, list[dict[str, Level]]]:
    """The number of every run's cell (its configuration), and the configuration of every cell."""
    numbers: dict[tuple[Any, ...], int] = {}
    kept: list[dict[str, Level]] = []
    index: np.ndarray = np.empty(len(frame), dtype=np.int64)
    for row, config in enumerate(configs(frame, factors)):
        key = tuple(config.values())
        if key not in numbers:
            numbers[key] = len(kept)
            kept.append(config)
        index[row] = numbers[key]
    return index, kept


def select(frame: pd.DataFrame, factors: Sequence[Factor], where: str) -> pd.DataFrame:
    """The runs whose configuration satisfies an expression over the factors. ConstraintError if it cannot be read."""
    node = expressions.parse(where, {factor.name: factor for factor in factors}, "the condition")
    index, kept = cells(frame, factors)
    allowed = np.array([expressions.holds(node, config) for config in kept], dtype=bool)
    return frame[allowed[index]].reset_index(drop=True) if len(frame) else frame


def pooled_sd(values: np.ndarray, groups: np.ndarray) -> tuple[float, int]:
    """The standard deviation within groups and its degrees of freedom; (nan, 0) where nothing repeats."""
    _, group, counts = np.unique(groups, return_inverse=True, return_counts=True)
    sums = np.bincount(group, values)
    rest = values - (sums / counts)[group]
    df = len(values) - len(counts)
    return (float(np.sqrt(rest @ rest / df)), df) if df > 0 else (float("nan"), 0)
