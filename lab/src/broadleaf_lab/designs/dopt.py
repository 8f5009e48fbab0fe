"""D-optimal designs: the possible runs that show the most about main effects and pairs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from broadleaf_lab.designs.entries import Chosen, loose
from broadleaf_lab.designs.terms import Terms, efficiency, independent
from broadleaf_lab.errors import DesignError
from broadleaf_lab.spec.constraints import Constraints
from broadleaf_lab.spec.factors import Factor, Level, config_id

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

STARTS = 20
_MANY_TERMS, _FEW_STARTS = 100, 4
"""With so many terms, starts end alike (within half a per cent of the determinant's root) and take seconds each."""
_CANDIDATES_PER_TERM = 50
_MAX_CANDIDATES = 6_000
_MAX_TERMS = 400
_PER_TERM, _PER_MAIN_EFFECT = 1.5, 4
_FIRST_SWEEPS = 2
_MAX_SWEEPS = 30


def dopt(factors: Sequence[Factor], rules: Constraints, rng: np.random.Generator, runs: int | None = None) -> Chosen:
    """`runs` runs, or half as many again as there are terms. Without the pairs if there are too many of them or too few
    runs, and then four runs per term: the analysis can identify the few pairs that matter from that number. `spec` says
    so, and names the terms that the constraints make impossible to estimate.
    """
    import numpy as np

    pairs = True
    terms = Terms(factors)
    if len(terms) > _MAX_TERMS or (runs is not None and runs < len(terms)):
        pairs = False
        terms = Terms(factors, pairs=False)
    candidates = _candidates(factors, rules, rng, min(_CANDIDATES_PER_TERM * len(terms), _MAX_CANDIDATES))
    every = terms.matrix(candidates)
    gram = every.T @ every
    kept = independent(gram, np.diag(gram))
    told = {terms.names[i] for i in np.flatnonzero(kept)}
    lost = sorted(set(terms.names) - told - rules.nested_pairs())
    matrix = every[:, kept]
    p = matrix.shape[1]
    n = runs if runs is not None else math.ceil((_PER_TERM if pairs else _PER_MAIN_EFFECT) * p)
    if n < p:
        raise DesignError(f"{n} runs cannot distinguish {p} terms. Set design.runs to at least {p}, or leave it out.")
    chosen = exchange(matrix, n, rng, STARTS if p <= _MANY_TERMS else _FEW_STARTS)
    d_efficiency, vif = efficiency(matrix[chosen])
    order = np.asarray(chosen)
    return loose(
        "dopt",
        [candidates[i] for i in order],
        terms=p,
        pairs=pairs,
        not_estimable=lost,
        d_efficiency_pct=round(d_efficiency, 1),
        max_vif=round(vif, 2),
        candidates=len(candidates),
    )


def _candidates(
    factors: Sequence[Factor], rules: Constraints, rng: np.random.Generator, n: int
) -> list[dict[str, Level]]:
    """Different possible configurations; all of them if there are few."""
    import itertools

    size = math.prod(len(f.levels) for f in factors)
    if size <= n:
        names = [f.name for f in factors]
        every = (dict(zip(names, levels, strict=True)) for levels in itertools.product(*(f.levels for f in factors)))
        return [config for config in every if rules.allows(config)]
    return list({config_id(config, factors): config for config in rules.sample(rng, n)}.values())


def exchange(matrix: NDArray[np.float64], n: int, rng: np.random.Generator, starts: int = STARTS) -> list[int]:
    """Rows of `matrix` (of full column rank), `n` of them, with the largest determinant found: Fedorov's exchange from
    several starts. A row may be taken more than once."""
    import numpy as np

    found = [_climb(matrix, _start(matrix, n, rng), _FIRST_SWEEPS) for _ in range(starts)]
    # A start that is better after a few sweeps nearly always ends better: only the best ones continue.
    found.sort(key=lambda entry: -entry[0])
    best = max((_climb(matrix, chosen, _MAX_SWEEPS) for _, chosen in found[:3]), key=lambda entry: entry[0])
    return [int(i) for i in np.sort(best[1])]


def _start(matrix: NDArray[np.float64], n: int, rng: np.random.Generator) -> NDArray[np.intp]:
    """Random rows of which p are independent."""
    import numpy as np
    from scipy.linalg import qr

    p = matrix.shape[1]
    shuffled = rng.permutation(len(matrix))
    for size in (3 * p, len(matrix)):
        some = shuffled[:size]
        _, r, pivots = qr(matrix[some].T, mode="economic", pivoting=True)
        if len(some) >= p and abs(r[p - 1, p - 1]) > 1e-9 * abs(r[0, 0]):
            break
    chosen = [*some[pivots[:p]], *rng.choice(len(matrix), n - p)]
    return np.asarray(chosen, dtype=np.intp)


def _climb(matrix: NDArray[np.float64], chosen: NDArray[np.intp], sweeps: int) -> tuple[float, NDArray[np.intp]]:
    """Replaces each chosen row by the candidate that helps most, until none does. Returns ln det and the rows."""
    import numpy as np

    chosen = chosen.copy()
    for _ in range(sweeps):
        # Recomputed in each sweep: rank-1 updates accumulate rounding errors.
        inverse = np.asarray(np.linalg.inv(matrix[chosen].T @ matrix[chosen]), dtype=np.float64)
        leverage = np.einsum("ij,jk,ik->i", matrix, inverse, matrix, optimize=True)
        moved = False
        for position, old in enumerate(chosen):
            cross = matrix @ (inverse @ matrix[old])
            gain = leverage * (1 - leverage[old]) + cross**2 - leverage[old]
            new = int(np.argmax(gain))
            if gain[new] <= 1e-6 or new == old:
                continue
            inverse, leverage = _updated(matrix, inverse, leverage, new, 1.0)
            inverse, leverage = _updated(matrix, inverse, leverage, int(old), -1.0)
            chosen[position] = new
            moved = True
        if not moved:
            break
    return float(np.linalg.slogdet(matrix[chosen].T @ matrix[chosen])[1]), chosen


def _updated(
    matrix: NDArray[np.float64], inverse: NDArray[np.float64], leverage: NDArray[np.float64], row: int, sign: float
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The inverse and all leverages after a row is added (sign 1) or removed (-1): Sherman and Morrison."""
    import numpy as np

    direction = inverse @ matrix[row]
    scale = sign / (1.0 + sign * float(matrix[row] @ direction))
    return inverse - scale * np.outer(direction, direction), leverage - scale * (matrix @ direction) ** 2
