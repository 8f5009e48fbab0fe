"""What affects the times without being a treatment or a block: the time within a session, and the hour of the day."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from broadleaf_lab.analysis.model.coding import bends as spline_bends

_DAY_S = 86400.0
_KNOTS = 4


@dataclass(frozen=True, slots=True)
class Nuisance:
    """Centred columns, so that zero is the average run; `names` says what they are."""

    matrix: np.ndarray
    names: tuple[str, ...]


def drift(frame: pd.DataFrame, bends: bool = True) -> Nuisance:
    """The time since the start: linear, and a natural spline; with more than a day of runs also the hour of the day.
    Without `bends` the time is a line, as in the published study.

    The linear column runs from -1/2 to 1/2, so that its coefficient is the change from the first run to the last.
    """
    seconds = frame["started_unix"].to_numpy(dtype=float)
    span = float(np.ptp(seconds)) if len(seconds) else 0.0
    if not np.isfinite(span) or span <= 0 or len(np.unique(seconds)) < 8:
        return Nuisance(np.zeros((len(frame), 0)), ())
    part = (seconds - seconds.min()) / span - 0.5
    # Four knots span the constant, the line and two bends: three degrees of freedom besides the constant.
    knots = np.quantile(np.unique(part), np.linspace(0, 1, _KNOTS))
    spline = np.column_stack(spline_bends(part, knots))
    basis = np.column_stack([np.ones_like(part), part])
    bent = spline - basis @ np.linalg.lstsq(basis, spline, rcond=None)[0]
    left, size, _ = np.linalg.svd(bent, full_matrices=False)
    some = bends and len(size) > 1 and size[1] > 1e-9 * size[0]
    bent = left[:, :2] * np.sqrt(len(part)) if some else left[:, :0]
    columns = [part, *bent.T]
    names = ["time", *[f"time~{number}" for number in range(1, bent.shape[1] + 1)]]
    if span > _DAY_S:
        angle = 2 * np.pi * (seconds % _DAY_S) / _DAY_S
        columns += [np.cos(angle), np.sin(angle)]
        names += ["day.cos", "day.sin"]
    return _centred(np.column_stack(columns), tuple(names))


def _centred(matrix: np.ndarray, names: tuple[str, ...]) -> Nuisance:
    return Nuisance(matrix - matrix.mean(axis=0) if matrix.size else matrix, names)
