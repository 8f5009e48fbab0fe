"""On which scale effects add up: microseconds, their logarithm, or tasks per second.

The profile likelihood of Box and Cox over the model of main effects only: the exponent with the highest likelihood is
the scale on which effects are most nearly additive, so that the fewest interactions remain to be explained.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from broadleaf_lab.analysis.model.linear import Blocks, Groups, Linear

if TYPE_CHECKING:
    from broadleaf_lab.analysis.model.coding import Coding
    from broadleaf_lab.analysis.model.fit import Fit
    from broadleaf_lab.analysis.model.sample import Sample

Scale = Literal["log", "us", "rate"]
LAMBDAS: dict[float, Scale] = {1.0: "us", 0.0: "log", -1.0: "rate"}
UNITS: dict[Scale, str] = {"log": "log ratio", "us": "us/task", "rate": "tasks/s"}
_MAX_RUNS = 20_000
_GRID = np.round(np.arange(-2.0, 2.0001, 0.05), 10)


def transform(y_us: np.ndarray, scale: Scale) -> np.ndarray:
    """Times per task on a scale."""
    return np.log(y_us) if scale == "log" else y_us.copy() if scale == "us" else 1e6 / y_us


def to_us(value: np.ndarray, scale: Scale) -> np.ndarray:
    """Values of a scale as microseconds per task; a rate of zero or less has no time."""
    us: np.ndarray = np.asarray(value, dtype=float)
    if scale == "log":
        us = np.exp(us)
    elif scale == "rate":
        us = np.where(us > 0, 1e6 / np.where(us > 0, us, 1.0), np.nan)
    return us


@dataclass(frozen=True, slots=True)
class LambdaProfile:
    """The answer to "what scale?". `log_likelihood` covers the three named scales, `curve` a grid of exponents, `ci`
    the exponents no worse than the best at 95 %, `significant_pairs` the interactions at q <= 0.05 that each scale
    needs (None if pairs were not requested).
    """

    best: Scale
    best_lambda: float
    log_likelihood: dict[Scale, float]
    curve: tuple[tuple[float, float], ...]
    ci: tuple[float, float]
    significant_pairs: dict[Scale, int] | None = None

    @property
    def sentence(self) -> str:
        """The answer in words."""
        words = {"us": "in microseconds (they add)", "log": "as ratios (they multiply)", "rate": "in tasks per second"}
        text = (
            f"Effects are most nearly additive {words[self.best]}: of the exponents 1, 0 and -1 the likeliest is "
            f"{self.best_lambda:g}; 95 % interval over all exponents {self.ci[0]:.2f} to {self.ci[1]:.2f}."
        )
        if self.significant_pairs is not None:
            counts = ", ".join(f"{n} on {UNITS[scale]}" for scale, n in self.significant_pairs.items())
            text += f" Interactions left at q <= 0.05: {counts}."
        return text


def box_cox(y_us: np.ndarray, residual_square: Callable[[np.ndarray], float], lambdas: np.ndarray) -> np.ndarray:
    """The profile log likelihood of every exponent, up to a constant common to all. `residual_square` is the sum of
    squares a model leaves of transformed times."""
    n = len(y_us)
    # Relative to the geometric mean, powers neither overflow nor need the Jacobian.
    logs = np.log(y_us)
    ratio = logs - logs.mean()
    out = np.empty(len(lambdas))
    for number, power in enumerate(lambdas):
        z = ratio if power == 0 else np.expm1(power * ratio) / power
        out[number] = -n / 2 * np.log(max(residual_square(z), 1e-300) / n)
    return out


def profile(y_us: np.ndarray, residual_square: Callable[[np.ndarray], float]) -> LambdaProfile:
    """The profile under a model of main effects (with the constant, and blocks or drift where there are any)."""
    from scipy.stats import chi2

    named = box_cox(y_us, residual_square, np.array(list(LAMBDAS)))
    grid = box_cox(y_us, residual_square, _GRID)
    near = _GRID[int(np.argmax(grid))] + np.linspace(-0.1, 0.1, 41)
    fine = np.concatenate([grid, box_cox(y_us, residual_square, near)])
    inside = np.concatenate([_GRID, near])[fine >= fine.max() - chi2.ppf(0.95, 1) / 2]
    best = list(LAMBDAS)[int(np.argmax(named))]
    return LambdaProfile(
        best=LAMBDAS[best],
        best_lambda=best,
        log_likelihood={scale: float(value) for scale, value in zip(LAMBDAS.values(), named, strict=True)},
        curve=tuple(zip(_GRID.tolist(), grid.tolist(), strict=True)),
        ci=(float(inside.min()), float(inside.max())),
    )


def answer(fit: Fit) -> LambdaProfile:
    """The profile of a fit's data, with the count of interactions each scale needs."""
    from dataclasses import replace

    found = fit.lambda_profile
    if not fit.coding.pairs:
        return found
    counts: dict[Scale, int] = {}
    for scale in LAMBDAS.values():
        counts[scale] = sum(pair.q <= 0.05 for pair in fit.on(scale).interactions())
    return replace(found, significant_pairs=counts)


def profile_of(coding: Coding, sample: Sample) -> LambdaProfile:
    """The profile of runs under main effects, blocks and time. For very many runs, whole blocks of some are enough."""
    mains = coding.but(False)
    y_us = sample.frame["y_us"].to_numpy(dtype=float)
    chosen = np.arange(len(y_us))
    if len(y_us) > _MAX_RUNS:
        step = -(-len(y_us) // _MAX_RUNS)
        chosen = np.flatnonzero(sample.groups.index % step == 0)
    if not len(chosen):
        chosen = np.arange(len(y_us))[:: -(-len(y_us) // _MAX_RUNS)]
    blocks: Blocks = "fixed" if sample.groups.number > 1 else "none"
    groups = Groups(sample.groups.index[chosen])
    if len(chosen) < len(mains.column_names) + groups.number + len(sample.time.names) + 2:
        blocks = "none"
    linear = Linear(
        mains.cell_rows(sample.cells), sample.cells.index[chosen], sample.time.matrix[chosen], groups, blocks
    )

    def residual_square(z: np.ndarray) -> float:
        moved = linear.transform(z)
        right = linear.cross(z)
        return float(moved @ moved - right @ linear.solve(right))

    return profile(y_us[chosen], residual_square)
