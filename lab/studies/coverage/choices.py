"""Three ways to judge pairs if there are too few runs for all of them, on the same runs: the laboratory's, a
hierarchical model, and the lasso with selective intervals.

    python studies/coverage/choices.py --sets 100 few-12x100

The hierarchical model draws every pair from one normal distribution, whose width is estimated (restricted maximum
likelihood). The lasso's penalty is the expected maximum of what noise alone does; its intervals hold given the pairs
and signs it selected (Lee, Sun, Sun and Taylor 2016). Both are told the true standard deviation of a run, which the
laboratory has to estimate, so they look better here than in practice. All three flag whatever passes Benjamini and
Hochberg's procedure at 5 %.
"""

from __future__ import annotations

import argparse
import itertools
import warnings
from collections.abc import Callable

import coverage
import numpy as np
import truth
from broadleaf_lab.analysis import frame as frames
from broadleaf_lab.analysis.model.fit import fit
from broadleaf_lab.analysis.multiplicity import q_values
from scipy import optimize, stats

Told = dict[frozenset[str], tuple[float, float, float]]
"""By pair: the ends of its interval and its q value."""


def residual_pairs(
    known: truth.Truth, rows: list[dict[str, object]]
) -> tuple[list[frozenset[str]], np.ndarray, np.ndarray]:
    """The pairs of flags, their columns and the response, without blocks and main effects."""
    names = list(known.levels)
    flags = np.array([[float(row[name]) - 0.5 for name in names] for row in rows])
    block = np.array([row["block"] for row in rows])
    fixed = np.column_stack([flags, (block[:, None] == np.unique(block)).astype(float)])
    pairs = list(itertools.combinations(range(len(names)), 2))
    columns = np.column_stack([flags[:, a] * flags[:, b] for a, b in pairs])
    y = np.log([float(row["time_per_task_us"]) for row in rows])
    basis, _ = np.linalg.qr(fixed)
    free = [part - basis @ (basis.T @ part) for part in (columns, y)]
    return [frozenset((names[a], names[b])) for a, b in pairs], free[0], free[1]


def laboratory(known: truth.Truth, rows: list[dict[str, object]], _: float) -> Told:
    """The laboratory's answer."""
    factors = coverage.factors_of(known)
    made = fit(factors, frames.load(rows, factors))
    return {frozenset((p.a, p.b)): (p.ci_low, p.ci_high, p.q) for p in made.interactions()}


def hierarchical(known: truth.Truth, rows: list[dict[str, object]], sd: float) -> Told:
    """The posterior of all pairs drawn from one normal distribution."""
    pairs, x, y = residual_pairs(known, rows)
    left, size, right = np.linalg.svd(x, full_matrices=False)
    seen = left.T @ y

    def loss(log_tau: float) -> float:
        variance = sd**2 + (np.exp(log_tau) * size) ** 2
        return float((np.log(variance) + seen**2 / variance).sum())

    tau = float(np.exp(optimize.minimize_scalar(loss, bounds=(-9.0, 0.0), method="bounded").x))
    shrunk = tau**2 * size / (sd**2 + tau**2 * size**2)
    mean = right.T @ (shrunk * seen)
    square = tau**2 * (1 - ((right.T**2) @ (shrunk * size)))
    error = np.sqrt(np.maximum(square, 1e-300))
    q = q_values(2 * stats.norm.sf(np.abs(mean) / error))
    return {p: (m - 1.96 * e, m + 1.96 * e, v) for p, m, e, v in zip(pairs, mean, error, q, strict=True)}


def lasso(known: truth.Truth, rows: list[dict[str, object]], sd: float) -> Told:
    """The pairs that the lasso selects, with intervals that hold given the selection; the others have none."""
    from sklearn.linear_model import Lasso

    pairs, x, y = residual_pairs(known, rows)
    noise = np.random.default_rng(0).standard_normal((len(y), 200)) * sd
    penalty = float(np.abs(x.T @ noise).max(axis=0).mean())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = Lasso(alpha=penalty / len(y), fit_intercept=False, tol=1e-10, max_iter=100_000).fit(x, y).coef_
    active = np.flatnonzero(found)
    if not len(active):
        return {}
    signs, own, other = np.sign(found[active]), x[:, active], np.delete(x, active, axis=1)
    inverse = np.linalg.inv(own.T @ own)
    away = other - own @ (inverse @ (own.T @ other))
    reach = other.T @ own @ inverse @ signs
    sides = np.vstack([away.T, -away.T, -signs[:, None] * (inverse @ own.T)]) / penalty
    ends = np.concatenate([1 - reach, 1 + reach, -signs * (inverse @ signs)])
    told: list[tuple[float, float, float]] = []
    for place in range(len(active)):
        direction = own @ inverse[:, place]
        square = sd**2 * float(direction @ direction)
        at = float(direction @ y)
        along = sides @ direction * sd**2 / square
        rest = ends - sides @ y + along * at
        with np.errstate(divide="ignore", invalid="ignore"):
            limits = rest / along
        low = float(limits[along < 0].max(initial=-np.inf))
        high = float(limits[along > 0].min(initial=np.inf))
        told.append(_truncated(at, float(np.sqrt(square)), low, high))
    q = q_values([p for *_, p in told])
    return {pairs[i]: (low, high, v) for i, (low, high, _), v in zip(active, told, q, strict=True)}


def _truncated(at: float, sd: float, low: float, high: float) -> tuple[float, float, float]:
    """The 95 % interval of the mean of a normal that is seen only between two ends, and the p value of zero."""

    def upper(mean: float) -> float:
        # Logarithms: the ends are often far out in the tail.
        a, z, b = ((point - mean) / sd for point in (low, at, high))
        if z > 0:
            whole, part = stats.norm.logsf(a), stats.norm.logsf(z)
            beyond = stats.norm.logsf(b)
            return float((np.exp(part - whole) - np.exp(beyond - whole)) / (1 - np.exp(beyond - whole) + 1e-300))
        whole, part, before = stats.norm.logcdf(b), stats.norm.logcdf(z), stats.norm.logcdf(a)
        return float((1 - np.exp(part - whole)) / (1 - np.exp(before - whole) + 1e-300))

    grid = at + sd * np.linspace(-20, 20, 801)
    share = np.maximum.accumulate(np.nan_to_num([upper(float(mean)) for mean in grid]))
    ends = [np.interp(level, share, grid) if share[0] < level < share[-1] else side * np.inf for level, side in
            ((0.025, -1), (0.975, 1))]  # fmt: skip
    zero = upper(0.0)
    return float(ends[0]), float(ends[1]), float(2 * min(zero, 1 - zero))


WAYS: dict[str, Callable[[truth.Truth, list[dict[str, object]], float], Told]] = {
    "laboratory": laboratory,
    "hierarchical": hierarchical,
    "lasso": lasso,
}


def main() -> None:
    """Prints a line for each scenario and way."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=["few-12x60", "few-12x100", "few-12x150", "few-20x150"])
    parser.add_argument("--sets", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    heads = ("scenario", "way", "null held", "planted held", "no interval", "found", "false", "half width", "unbounded")
    print(" ".join(f"{head:>13}" for head in heads))
    for name, (way, judge) in itertools.product(asked.names, WAYS.items()):
        made, size, noise, design = truth.scenarios()[name]
        null, planted, widths, flagged, false, found, real = [], [], [], 0, 0, 0, 0
        for number in range(asked.sets):
            rng = np.random.default_rng([asked.seed, number])
            known = made(rng) if callable(made) else made
            told = judge(known, truth.runs(known, size, noise, rng, design), noise.sd)
            of = {frozenset(pair): known.interaction(*pair, True, True) for pair in known.pairs}
            real += len(of)
            planted += [told[pair][0] <= value <= told[pair][1] for pair, value in of.items() if pair in told]
            null += [low <= 0 <= high for pair, (low, high, _) in told.items() if pair not in of]
            widths += [(told[pair][1] - told[pair][0]) / 2 for pair in of if pair in told]
            hits = {pair for pair, (*_, q) in told.items() if q <= 0.05}
            flagged, false, found = flagged + len(hits), false + len(hits - set(of)), found + len(hits & set(of))
        told_of = len(planted)
        cells = (
            f"{np.mean(null):.3f}" if null else "",
            f"{np.mean(planted):.3f}" if planted else "",
            f"{1 - told_of / real:.3f}",
            f"{found / real:.3f}",
            f"{false / max(flagged, 1):.3f}",
            f"{np.median(widths):.3f}" if widths else "",
            f"{np.mean(np.isinf(widths)):.3f}" if widths else "",
        )
        print(" ".join(f"{cell:>13}" for cell in (name, way, *cells)), flush=True)


if __name__ == "__main__":
    main()
