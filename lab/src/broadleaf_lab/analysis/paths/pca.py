"""Principal components of path vectors: how orders of applying the same treatments differ."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from broadleaf_lab.analysis.paths.path import PathVectors
from broadleaf_lab.errors import AnalysisError

CAUTION = (
    "The rows of one study add up to the same total, so each factor's covariances with the others sum to minus its "
    "variance: part of any opposition between factors is arithmetic. Only components above the null are called real; "
    "without interactions a path's vector varies by noise alone, so a real component is an interaction."
)


@dataclass(frozen=True, slots=True)
class Pca:
    """Components of path vectors, centred and not scaled.

    `components` has a row per component and a column per factor; `sdev` are the standard deviations along them,
    `variance_ratio` their shares of the variance. `null_95` is the 95th percentile of each component's variance if
    every factor multiplies the time by the same amount on every path and runs differ by noise; `real` says which ones
    exceed it, from the first on. `loadings` are components times sdev, `loading_ci` (low, high) their bootstrap
    interval over paths. `scores` are the paths.
    """

    factors: tuple[str, ...]
    path_ids: tuple[int, ...]
    components: np.ndarray
    sdev: np.ndarray
    variance_ratio: np.ndarray
    null_95: np.ndarray
    real: tuple[bool, ...]
    loadings: np.ndarray
    loading_ci: tuple[np.ndarray, np.ndarray]
    scores: np.ndarray
    caution: str = CAUTION


def pca(vectors: PathVectors, seed: int = 1, draws: int = 500) -> Pca:
    """Components of all paths. `draws` counts the simulations of the null and the bootstrap samples of the loadings.
    AnalysisError with fewer than three paths."""
    from sklearn.decomposition import PCA

    if len(vectors.values) < 3:
        raise AnalysisError(f"{len(vectors.values)} paths are too few for components: run at least three.")
    model = PCA(svd_solver="full").fit(vectors.values)
    components = model.components_
    # A component's sign is arbitrary: its largest loading is made positive, so that figures do not flip.
    signs = np.sign(components[np.arange(len(components)), np.abs(components).argmax(axis=1)])
    components = components * np.where(signs == 0, 1.0, signs)[:, None]
    sdev = np.sqrt(model.explained_variance_)
    rng = np.random.default_rng(seed)
    null = _null(vectors, rng, draws)[:, : len(sdev)]
    null_95 = np.quantile(null, 0.95, axis=0)
    real = np.logical_and.accumulate(sdev**2 > null_95)
    return Pca(
        factors=vectors.factors,
        path_ids=vectors.path_ids,
        components=components,
        sdev=sdev,
        variance_ratio=model.explained_variance_ratio_,
        null_95=null_95,
        real=tuple(bool(flag) for flag in real),
        loadings=components * sdev[:, None],
        loading_ci=_loading_ci(vectors.values, components, sdev, rng, draws),
        scores=(vectors.values - model.mean_) @ components.T,
    )


def _variances(values: np.ndarray) -> np.ndarray:
    centred = values - values.mean(axis=0)
    found: np.ndarray = np.linalg.svd(centred, compute_uv=False) ** 2 / (len(values) - 1)
    return found


def _null(vectors: PathVectors, rng: np.random.Generator, draws: int) -> np.ndarray:
    """Variances of components if every factor multiplies the time by the same amount wherever it comes, and runs differ
    like those of one configuration. What a factor saves in microseconds still depends on what came before it.
    """
    column_of = {name: column for column, name in enumerate(vectors.factors)}
    ratios = np.full(vectors.values.shape, np.nan)
    for row, order in enumerate(vectors.orders):
        ratios[row, [column_of[name] for name in order]] = np.diff(np.log(vectors.levels[row]))
    effect = np.array([np.median(column[~np.isnan(column)]) if (~np.isnan(column)).any() else 0 for column in ratios.T])
    start = float(np.median([levels[0] for levels in vectors.levels]))
    noise = vectors.noise if len(vectors.noise) else np.zeros(1)
    # Orders may be of different lengths.
    length = max(map(len, vectors.orders))
    columns = np.array([[*(column_of[n] for n in order), *[0] * (length - len(order))] for order in vectors.orders])
    there = np.array([[True] * len(order) + [False] * (length - len(order)) for order in vectors.orders])
    rows, places = np.nonzero(there)
    middle = np.cumsum(np.hstack([np.zeros((len(columns), 1)), np.where(there, effect[columns], 0.0)]), axis=1)
    found: np.ndarray = np.empty((draws, min(vectors.values.shape)))
    for draw in range(draws):
        logs = middle + rng.choice(noise, middle.shape)
        changes = np.diff(logs / np.log(2) if vectors.log2 else start * np.exp(logs), axis=1)
        simulated = np.zeros(vectors.values.shape)
        simulated[rows, columns[rows, places]] = changes[rows, places]
        found[draw] = _variances(simulated)
    return found


def _loading_ci(
    values: np.ndarray, components: np.ndarray, sdev: np.ndarray, rng: np.random.Generator, draws: int
) -> tuple[np.ndarray, np.ndarray]:
    """The bootstrap interval of the loadings. Each sample is rotated onto the original as well as possible, because
    components of similar size swap positions and signs between samples.
    """
    from scipy.linalg import orthogonal_procrustes

    size = min(4, int(np.count_nonzero(sdev > 1e-12 * max(float(sdev[0]), 1e-300))))
    low, high = np.full(components.shape, np.nan), np.full(components.shape, np.nan)
    if size == 0:
        return low, high
    target = (components * sdev[:, None])[:size]
    samples = []
    for _ in range(draws):
        drawn = values[rng.integers(0, len(values), len(values))]
        centred = drawn - drawn.mean(axis=0)
        _, spread, axes = np.linalg.svd(centred, full_matrices=False)
        loading = (axes * (spread / np.sqrt(len(values) - 1))[:, None])[:size]
        rotation, _ = orthogonal_procrustes(loading.T, target.T)
        samples.append((loading.T @ rotation).T)
    low[:size], high[:size] = np.quantile(np.array(samples), [0.025, 0.975], axis=0)
    return low, high
