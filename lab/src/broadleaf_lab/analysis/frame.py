"""Runs as a data frame: those that ended well, in the order in which they were made, with typed factor columns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import pandas as pd

from broadleaf_lab.errors import AnalysisError
from broadleaf_lab.spec import expressions
from broadleaf_lab.spec.factors import Factor, Level, column_value, config_id

_NUMBERS = (
    "y_us",
    "started_unix",
    "block",
    "order_in_block",
    "pair_id",
    "plan_row",
    "path_id",
    "path_step",
    "replicate",
)
_SMALL_BYTES = 1 << 18
"""Up to this size `read_runs`, which checks every row, is fast enough."""
_ABSENT = {
    "block": 0,
    "order_in_block": 0,
    "pair_id": None,
    "replicate": 0,
    "path_id": None,
    "path_step": None,
    "plan_row": None,
}


TIME = "time_per_task_us"
_NO_RESPONSES = {
    "started_unix", "block", "order_in_block", "pair_id", "plan_row", "path_id", "path_step", "replicate", "exit_code",
    "n_tasks", "n_iter", "dirty", "tasks_per_s", "load1_before", "cpu_mhz", "temp_c", "steal_pct", "duration_s", "y_us",
}  # fmt: skip


def load(
    source: str | Path | Iterable[Mapping[str, Any]] | pd.DataFrame,
    factors: Sequence[Factor],
    where: str | None = None,
    response: str = TIME,
) -> pd.DataFrame:
    """The runs with status `ok`, oldest first; `y_us` is microseconds per task, or another `response`: any column of
    positive numbers for which less is better.

    `source` is the path of a runs.csv, its rows, or a frame of them. A factor's column contains 0 and 1 for off and on,
    a number if it has a scale, and otherwise text; a factor that the runs do not know is at its default. `where` keeps
    the runs whose configuration satisfies an expression over the factors, such as `not cfg_log`. Raises AnalysisError
    if no run is left.
    """
    if isinstance(source, pd.DataFrame):
        rows = cast(pd.DataFrame, source)
    elif isinstance(source, str | Path):
        rows = read(Path(source), factors)
        if rows.empty:
            raise AnalysisError(f"{source}: there are no runs yet. Make them with `broadleaf-lab run`.")
    else:
        rows = pd.DataFrame(list(source))
    if "y_us" not in rows and TIME not in rows:
        raise AnalysisError("these runs have no column time_per_task_us: is this a runs.csv of this study?")
    frame = rows.copy()
    if "status" in frame:
        frame = frame[frame["status"].astype(str) == "ok"]
    if response != TIME:
        frame["y_us"] = _response(frame, response)
    elif "y_us" not in frame:
        frame["y_us"] = frame[TIME]
    for name, absent in _ABSENT.items():
        if name not in frame:
            frame[name] = absent
    if "started_unix" not in frame:
        frame["started_unix"] = np.arange(len(frame), dtype=float)
    for name in _NUMBERS:
        frame[name] = pd.to_numeric(frame[name], errors="coerce").astype(float)
    # Whatever disturbed one of two simultaneous runs on a processor also affected the other: such a pair is a block of
    # its own.
    frame["block"] = frame["block"].where(frame["pair_id"].isna(), -2.0 - frame["pair_id"])
    frame = frame[np.isfinite(frame["y_us"]) & (frame["y_us"] > 0)]
    for factor in factors:
        frame[factor.name] = _levels(frame.get(factor.column), factor, len(frame))
    frame = frame.sort_values("started_unix", kind="stable").reset_index(drop=True)
    if where is not None:
        frame = select(frame, factors, where)
    if frame.empty:
        condition = f" where {where}" if where else ""
        raise AnalysisError(
            f"no run has the status ok and a time per task{condition}: do some runs first (`broadleaf-lab run`)."
        )
    frame["config_id"] = identify(frame, factors)
    return frame


def responses(frame: pd.DataFrame, factors: Sequence[Factor]) -> list[str]:
    """The columns that can be a response: positive numbers in at least half of the runs, for which less is better."""
    names = {f.column for f in factors}
    found = []
    for name in frame.columns:
        if name in names or name in _NO_RESPONSES:
            continue
        values = pd.to_numeric(frame[name], errors="coerce")
        if 2 * int((values > 0).sum()) >= len(frame):
            found.append(str(name))
    return found


def _response(frame: pd.DataFrame, name: str) -> pd.Series:
    if name not in frame:
        raise AnalysisError(f"these runs have no column {name!r}. Choose one of {', '.join(responses(frame, ()))}.")
    return pd.to_numeric(frame[name], errors="coerce")


_TEXT = (
    "study", "session_id", "machine_id", "purpose", "status", "error", "python", "git_sha", "flags",
)  # fmt: skip


def read(path: Path, factors: Sequence[Factor]) -> pd.DataFrame:
    """All rows of a runs.csv; words become categories, so that a million runs fit into memory. An incomplete last line
    is ignored. RunError if the file is not a table of runs.
    """
    from broadleaf_lab.errors import RunError
    from broadleaf_lab.spec.runs import read_runs

    if not path.exists() or path.stat().st_size < _SMALL_BYTES:
        return pd.DataFrame(read_runs(path, factors))
    words = dict.fromkeys((*_TEXT, *(f.column for f in factors)), "category")
    try:
        rows = pd.read_csv(
            path, dtype=words, keep_default_na=False, na_values=[""], usecols=lambda name: name != "started_at"
        )
    except (ValueError, pd.errors.ParserError) as error:
        raise RunError(f"{path} is not a table of runs: {error}") from None
    with path.open("rb") as file:
        file.seek(-1, 2)
        torn = file.read(1) != b"\n"
    return rows.iloc[:-1] if torn else rows


def _levels(column: pd.Series | None, factor: Factor, length: int) -> np.ndarray:
    absent = column_value(factor.default)
    kind = object if factor.is_categorical else None
    if column is None:
        filled: np.ndarray = np.full(length, absent, dtype=kind)
        return filled
    # Each distinct cell is read only once: a study may have a million runs.
    codes, different = pd.factorize(column, use_na_sentinel=True)
    words = [absent if str(raw) == "" else column_value(factor.parse(raw)) for raw in different]
    known: np.ndarray = np.array([*words, absent], dtype=kind)
    answer: np.ndarray = known[codes]
    return answer


@dataclass(frozen=True, slots=True)
class Cells:
    """The configurations that were run. `index` contains the number of every run's cell, `codes` a row per cell with
    the position of each factor's level in `levels`.
    """

    index: np.ndarray
    codes: np.ndarray
    levels: tuple[tuple[Level, ...], ...]
    names: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.codes)

    def configs(self) -> list[dict[str, Level]]:
        """The configuration of every cell."""
        columns = [[known[code] for code in column] for known, column in zip(self.levels, self.codes.T, strict=True)]
        return [dict(zip(self.names, row, strict=True)) for row in zip(*columns, strict=True)]


def coded(frame: pd.DataFrame, factors: Sequence[Factor]) -> Cells:
    """The cells of runs, in the order in which they first occur."""
    number: np.ndarray = np.zeros(len(frame), dtype=np.int64)
    codes, levels = [], []
    for factor in factors:
        code, different = pd.factorize(frame[factor.name].to_numpy())
        listed = {column_value(level): level for level in factor.levels}
        levels.append(tuple(listed.get(value, value) for value in different.tolist()))
        codes.append(code)
        # Renumbered after every factor: the product of all numbers of levels may exceed 64 bits.
        number = pd.factorize(number * max(len(different), 1) + code)[0]
    index = number
    first: np.ndarray = np.zeros(0, dtype=np.int64)
    if len(frame):
        first = np.unique(index, return_index=True)[1]
    stacked = np.column_stack([code[first] for code in codes]) if codes else np.zeros((len(first), 0), dtype=np.int64)
    return Cells(index, stacked, tuple(levels), tuple(f.name for f in factors))


def configs(frame: pd.DataFrame, factors: Sequence[Factor]) -> list[dict[str, Level]]:
    """The configuration of every run."""
    index, kept = cells(frame, factors)
    return [dict(kept[number]) for number in index.tolist()] if factors else []


def identify(frame: pd.DataFrame, factors: Sequence[Factor], prefix: str = "c") -> list[str]:
    """The id of every run's configuration over these factors."""
    if not factors:
        return [prefix] * len(frame)
    index, kept = cells(frame, factors)
    ids = [prefix + config_id(config, factors)[1:] for config in kept]
    return [ids[number] for number in index.tolist()]


def cells(frame: pd.DataFrame, factors: Sequence[Factor]) -> tuple[np.ndarray, list[dict[str, Level]]]:
    """The number of every run's cell (its configuration), and the configuration of every cell."""
    found = coded(frame, factors)
    return found.index, found.configs()


def measured(frame: pd.DataFrame, factors: Sequence[Factor]) -> dict[str, tuple[Level, ...]]:
    """The levels of every factor that were run: the listed ones in their order, then others on its scale."""
    found = {}
    for factor in factors:
        seen = set(frame[factor.name].unique().tolist())
        listed = tuple(level for level in factor.levels if column_value(level) in seen)
        others = seen - {column_value(level) for level in listed}
        found[factor.name] = (*listed, *sorted(others, key=float)) if factor.is_numeric else listed
    return found


def designed(frame: pd.DataFrame) -> pd.DataFrame:
    """The runs without those of sweeps, unless there are no others. A sweep varies one factor in one configuration of
    the rest: its many levels would be in a model of all factors without a single pair that the runs can show.
    """
    if "purpose" not in frame:
        return frame
    swept = (frame["purpose"].astype(str) == "sweep").to_numpy(dtype=bool)
    return frame if swept.all() or not swept.any() else frame[~swept].reset_index(drop=True)


def select(frame: pd.DataFrame, factors: Sequence[Factor], where: str) -> pd.DataFrame:
    """The runs whose configuration satisfies an expression over the factors. ConstraintError if it cannot be read."""
    node = expressions.parse(where, {factor.name: factor for factor in factors}, "the condition")
    index, kept = cells(frame, factors)
    allowed = np.array([expressions.holds(node, config) for config in kept], dtype=bool)
    return frame[allowed[index]].reset_index(drop=True) if len(frame) else frame


def pooled_sd(values: np.ndarray, groups: np.ndarray) -> tuple[float, int]:
    """The standard deviation within groups and its degrees of freedom; (nan, 0) if nothing repeats."""
    _, group, counts = np.unique(groups, return_inverse=True, return_counts=True)
    sums = np.bincount(group, values)
    rest = values - (sums / counts)[group]
    df = len(values) - len(counts)
    return (float(np.sqrt(rest @ rest / df)), df) if df > 0 else (float("nan"), 0)
