"""Designs that are lists: configurations the user wrote down, random ones, and one numeric factor varied alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from broadleaf_lab.designs.entries import Chosen, loose
from broadleaf_lab.errors import DesignError
from broadleaf_lab.spec.constraints import Constraints
from broadleaf_lab.spec.factors import Factor, Level, baseline, describe

if TYPE_CHECKING:
    import numpy as np


def explicit(factors: Sequence[Factor], rules: Constraints, rows: Sequence[Mapping[str, Level]]) -> Chosen:
    """The rows of `[[design.rows]]`; factors that a row does not name are at their defaults."""
    if not rows:
        raise DesignError("design 'explicit' needs rows: write [[design.rows]] sections that name the levels to run.")
    configs = [{**baseline(factors), **row} for row in rows]
    for number, config in enumerate(configs, 1):
        if broken := rules.violated(config):
            raise DesignError(
                f"row {number} of design.rows ({describe(config, factors)}) violates {', '.join(broken)}. "
                "Change the row or the constraint."
            )
    return loose("explicit", configs, "explicit")


def random(factors: Sequence[Factor], rules: Constraints, rng: np.random.Generator, n: int) -> Chosen:
    """`n` possible configurations, each drawn independently."""
    return loose("random", rules.sample(rng, n))


def sweep(factors: Sequence[Factor], rules: Constraints, name: str | None) -> Chosen:
    """Every level of one factor, all others at their default."""
    swept = [f for f in factors if f.name == name] if name else [f for f in factors if f.is_numeric]
    if len(swept) != 1:
        known = ", ".join(f.name for f in factors)
        raise DesignError(
            f"design 'sweep' varies one factor: set design.factor to one of {known}."
            if len(swept) != 0 or name is None
            else f"design.factor is {name!r}, which is not a factor. Choose one of {known}."
        )
    factor = swept[0]
    configs = [{**baseline(factors), factor.name: level} for level in factor.levels]
    broken = sorted({name for config in configs for name in rules.violated(config)})
    if broken:
        raise DesignError(f"the sweep of {factor.name!r} violates {', '.join(broken)}: change a default or the levels.")
    return loose("sweep", configs, "sweep", factor=factor.name)
