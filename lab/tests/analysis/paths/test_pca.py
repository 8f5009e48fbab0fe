"""Components of paths: those of interactions are real, those of noise are not."""

import numpy as np
import pytest
from broadleaf_lab.analysis import frame as frames
from broadleaf_lab.analysis.paths import path as paths
from broadleaf_lab.analysis.paths.pca import CAUTION, pca
from broadleaf_lab.designs.plan import Plan
from broadleaf_lab.errors import AnalysisError
from synthetic.system import simulate, two_level

EFFECTS = {"a": -0.3, "b": -0.4, "c": -0.1, "d": -0.2, "e": 0.0}


def vectors(pairs, seed, log2=True, noise=0.05, n_paths=40, outliers=0.0):
    system = two_level(EFFECTS, pairs, noise=noise, outliers=outliers)
    plan = Plan.make(system.study(kind="paths", paths=n_paths, seed=seed))
    return paths.path_vectors(frames.load(simulate(plan, system, seed), system.factors), system.factors, log2)


def test_an_either_or_pair_is_the_first_component():
    found = pca(vectors({("a", "b"): 0.25}, 1), draws=200)
    assert found.real[0]
    assert not found.real[1]
    first = dict(zip(found.factors, found.components[0], strict=True))
    # Opposed: what one saves, the other cannot save again.
    assert first["a"] * first["b"] < 0
    assert min(abs(first["a"]), abs(first["b"])) > 0.5
    low, high = found.loading_ci
    assert np.all(low[0] <= high[0])
    column = found.factors.index("a")
    assert low[0, column] * high[0, column] > 0
    assert found.caution == CAUTION


@pytest.mark.parametrize("outliers", [0.0, 0.03])
@pytest.mark.parametrize("log2", [True, False])
def test_effects_that_only_multiply_give_no_real_component(log2, outliers):
    real = 0
    for seed in range(8):
        real += pca(vectors({}, seed, log2, n_paths=16, outliers=outliers), draws=60).real[0]
    assert real <= 2


def test_components_are_those_of_the_singular_values():
    values = vectors({("a", "b"): 0.25, ("c", "d"): -0.1}, 2)
    found = pca(values, draws=20)
    centred = values.values - values.values.mean(axis=0)
    sizes = np.linalg.svd(centred, compute_uv=False) / np.sqrt(len(centred) - 1)
    assert found.sdev == pytest.approx(sizes, abs=1e-12)
    assert found.variance_ratio == pytest.approx(sizes**2 / (sizes**2).sum())
    assert found.scores == pytest.approx(centred @ found.components.T)
    assert found.loadings == pytest.approx(found.components * sizes[:, None])


def test_rows_sum_to_one_total_so_oppositions_are_partly_arithmetic():
    """What the caution says: without noise, covariances with the others sum to minus the variance."""
    values = vectors({("a", "b"): 0.25, ("c", "d"): -0.1}, 3, noise=0.0).values
    covariance = np.cov(values.T)
    assert covariance.sum(axis=1) == pytest.approx(np.zeros(5), abs=1e-12)


def test_two_paths_are_too_few():
    with pytest.raises(AnalysisError, match="at least three"):
        pca(vectors({}, 4, n_paths=2))
