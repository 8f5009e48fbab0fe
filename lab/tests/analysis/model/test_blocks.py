"""Errors by block: where the runs of a block do not err together, they say the same as the errors of single runs."""

import itertools

import numpy as np
import pytest

pytest.importorskip("scipy")

from broadleaf_lab.analysis.model import robust
from broadleaf_lab.analysis.model.contrasts import Contrasts
from broadleaf_lab.analysis.model.linear import Groups, Linear

FLAGS = (1, 2, 4, 8, 16, 32, 15, 51)
"""The columns of a fraction of resolution 5, as products of six."""
BLOCKS = (21, 42)
"""Two products that are neither a flag nor a pair."""


def fraction():
    """Eight flags and all their pairs in 64 runs, twice, in eight blocks of sixteen."""
    base = np.array(list(itertools.product((-1.0, 1.0), repeat=6)))

    def product(word):
        return np.prod(base[:, [bit for bit in range(6) if word >> bit & 1]], axis=1)

    flags = np.column_stack([product(word) for word in FLAGS]) / 2
    pairs = [flags[:, i] * flags[:, j] for i, j in itertools.combinations(range(len(FLAGS)), 2)]
    block = (product(BLOCKS[0]) > 0) * 2 + (product(BLOCKS[1]) > 0)
    return np.tile(np.column_stack([np.ones(64), flags, *pairs]), (2, 1)), np.append(block, block + 4)


@pytest.mark.parametrize("blocks", ["none", "fixed"])
def test_blocks_alike_have_the_errors_of_their_runs(blocks):
    """A flag times a block is a pair of the model, or is not: by the leverage of each run alone, blocks told 1.31 times
    the variance of one half of the parameters, and 1.09 times that of the other.
    """
    columns, block = fraction()
    linear = Linear(columns, np.arange(len(block)), np.zeros((len(block), 0)), Groups(block), blocks)
    rng = np.random.default_rng(2)
    draws = 400
    found = np.zeros(linear.width)
    for _ in range(draws):
        known = Contrasts(robust.estimate(linear, rng.standard_normal(len(block)), robust=False))
        found += (known.by_block.sums**2).sum(axis=0) / draws
    true = np.diag(np.linalg.inv(linear.gram))
    # Chance makes 3 % of each of these 36, and 10 % of the largest.
    assert found[1:] / true[1:] == pytest.approx(1.0, abs=0.13)
    assert 5 <= known.by_block.df <= 7


def test_blocks_that_err_together_tell_more():
    columns, block = fraction()
    linear = Linear(columns, np.arange(len(block)), np.zeros((len(block), 0)), Groups(block), "none")
    rng = np.random.default_rng(3)
    steep = rng.standard_normal(8)[block] * columns[:, 1]
    known = Contrasts(robust.estimate(linear, 3 * steep + rng.standard_normal(len(block)), robust=False))
    its, other = known.intervals(np.eye(linear.width)[[1, 2]])
    assert its.df <= 3.5
    assert other.df > 10
    assert its.se > 2 * other.se
