"""The runs of a fit: their numbers on a scale, their cells, blocks and time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from broadleaf_lab.analysis.frame import Cells, coded
from broadleaf_lab.analysis.model import drift as drifts
from broadleaf_lab.analysis.model import scale as scales
from broadleaf_lab.analysis.model.coding import Coding
from broadleaf_lab.analysis.model.drift import Nuisance
from broadleaf_lab.analysis.model.linear import Blocks, Groups, Linear
from broadleaf_lab.analysis.model.scale import Scale
from broadleaf_lab.spec.factors import Factor

_MOSTLY = 0.5
_MIN_LEFT_OF_PAIRS = 4


@dataclass(frozen=True, slots=True)
class Sample:
    """Made once, used by every model of the same runs."""

    frame: pd.DataFrame
    y: np.ndarray
    scale: Scale
    cells: Cells
    time: Nuisance
    groups: Groups

    @classmethod
    def of(cls, frame: pd.DataFrame, factors: Sequence[Factor], scale: Scale, drift: bool | str) -> Sample:
        """Runs as `frame.load` gives them; `drift` as in `fit`."""
        y = scales.transform(frame["y_us"].to_numpy(dtype=float), scale)
        time = drifts.drift(frame, drift != "line") if drift else Nuisance(np.zeros((len(y), 0)), ())
        groups = Groups(frame["block"].fillna(-1).to_numpy(dtype=float))
        return cls(frame, y, scale, coded(frame, factors), time, groups)

    def on(self, scale: Scale) -> Sample:
        """The same runs on another scale."""
        return replace(self, y=scales.transform(self.frame["y_us"].to_numpy(dtype=float), scale), scale=scale)

    @property
    def paired(self) -> bool:
        """Whether the blocks are pairs of runs that were made at once."""
        return "pair_id" in self.frame and bool(self.frame["pair_id"].notna().mean() > _MOSTLY)

    @property
    def told(self) -> int:
        """How many runs there are to learn from; of a pair only the difference counts."""
        return len(self.y) - (self.groups.number - 1 if self.paired else 0)

    def linear(self, coding: Coding, blocks: Blocks, penalty: np.ndarray | None = None) -> Linear:
        """The columns of a model of these runs."""
        return Linear(coding.cell_rows(self.cells), self.cells.index, self.time.matrix, self.groups, blocks, penalty)

    def choose_blocks(self, asked: str, width: int) -> Blocks:
        """A mean for each block if at least twice as many degrees of freedom as the `width` treatment parameters
        remain, otherwise random ones; an explicit choice takes precedence over "auto". Pairs have a mean each wherever
        that is possible: what disturbs both runs of one may be far larger than the rest, and random blocks of two runs
        then have intervals that are too narrow (studies/settle).
        """
        if self.groups.number < 2:
            return "none"
        if asked != "auto":
            return asked  # type: ignore[return-value]
        left = len(self.y) - width - (self.groups.number - 1) - len(self.time.names)
        return "fixed" if left >= (_MIN_LEFT_OF_PAIRS if self.paired else 2 * width) else "random"

    def level(self, linear: Linear) -> np.ndarray | None:
        """The assumed proportions of the runs' spreads: on scales other than the logarithm proportional to their level,
        because disturbances multiply.
        """
        if self.scale == "log":
            return None
        bottom = float(np.median(self.y)) / 20
        fitted = linear.fitted(linear.least_squares(self.y), self.y)
        level: np.ndarray = np.maximum(fitted, bottom) / float(np.median(self.y))
        return level
