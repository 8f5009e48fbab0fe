"""Which conclusions depend on a few runs: the same model by least squares, and without noisy blocks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from broadleaf_lab.errors import AnalysisError

if TYPE_CHECKING:
    from broadleaf_lab.analysis.model.fit import Fit

_MAX_SHOWN = 8


@dataclass(frozen=True, slots=True)
class Shift:
    """A coefficient that changes by more than its standard error under another way of fitting."""

    term: str
    estimate: float
    other: float
    se: float
    by: str

    @property
    def sentence(self) -> str:
        """The finding in words."""
        return (
            f"{self.term}: {self.estimate:+.4g} becomes {self.other:+.4g} {self.by} ({self.shift:.1f} standard errors)."
        )

    @property
    def shift(self) -> float:
        """The change, in standard errors."""
        return abs(self.other - self.estimate) / self.se


def shifts(fit: Fit) -> list[Shift]:
    """The treatment coefficients that change by more than one standard error."""
    from broadleaf_lab.analysis.model.fit import Fit as Model
    from broadleaf_lab.analysis.model.fit import FitOptions
    from broadleaf_lab.analysis.model.sample import Sample

    found = []
    if fit.options.robust:
        found = _against(fit, fit.linear.least_squares(fit.sample.y), "if runs far from the model count fully")
    noisy = _noisy(fit)
    if noisy.any():
        rest = fit.frame[~noisy].reset_index(drop=True)
        try:
            sample = Sample.of(rest, fit.factors, fit.scale, "time" in fit.sample.time.names)
            options = FitOptions(fit.blocks, fit.options.covariance, fit.options.robust)
            other = Model(sample, fit.coding, options, penalty=fit.penalty)
        except AnalysisError:
            return found
        if np.array_equal(other.kept, fit.kept):
            found += _against(fit, other.params, f"without the {int(noisy.sum())} runs of noisy blocks")
    # A handful of outliers changes every coefficient: the first few make the point.
    return sorted(found, key=lambda shift: -shift.shift)[:_MAX_SHOWN]


def _against(fit: Fit, params: np.ndarray, by: str) -> list[Shift]:
    found = []
    for index, name in enumerate(fit.design_names[: len(fit.treatment_params)]):
        se = float(np.sqrt(max(fit.covariance[index, index], 0.0)))
        if name != "mean" and se > 0 and abs(params[index] - fit.params[index]) > se:
            found.append(Shift(name, float(fit.params[index]), float(params[index]), se, by))
    return found


def _noisy(fit: Fit) -> np.ndarray:
    noisy: np.ndarray = np.zeros(len(fit.frame), dtype=bool)
    if "flags" in fit.frame:
        noisy = fit.frame["flags"].astype(str).str.contains("noisy_block").to_numpy(dtype=bool)
    return noisy
