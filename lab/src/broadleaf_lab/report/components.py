"""The principal components of what each order of the treatments gains, for the report."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from broadleaf_lab.analysis.paths import path as paths
from broadleaf_lab.analysis.paths.pca import pca
from broadleaf_lab.errors import AnalysisError
from broadleaf_lab.report.figures.evidence import Components

if TYPE_CHECKING:
    from broadleaf_lab.report.collect import Collected

_DISTURBED = 0.1


def components_of(found: Collected, reasons: dict[str, str]) -> Components | None:
    """The components of the paths' vectors; None, with a reason, if there are none."""
    try:
        made = pca(paths.path_vectors(_undisturbed(found), found.factors))
    except AnalysisError as error:
        reasons["components"] = str(error)
        return None
    if len(made.variance_ratio) < 2:
        reasons["components"] = "two components need at least two factors"
        return None
    return Components(
        scores=pd.DataFrame({"path_id": made.path_ids, "pc1": made.scores[:, 0], "pc2": made.scores[:, 1]}),
        loadings=pd.DataFrame(
            {
                "name": made.factors,
                "pc1": made.components[0],
                "pc2": made.components[1],
                "known": ((made.loading_ci[0] * made.loading_ci[1])[:2] > 0).any(axis=0),
            }
        ),
        variance=pd.DataFrame(
            {
                "component": range(1, len(made.sdev) + 1),
                "ratio": made.variance_ratio,
                "null_95": made.null_95 / float((made.sdev**2).sum()),
            }
        ),
    )


def _undisturbed(found: Collected) -> pd.DataFrame:
    """The runs, with those that the model gives no weight replaced by their fitted values: a single run during which
    the machine was busy would be a component of its own.
    """
    if found.log is None or found.log.n_runs != len(found.frame):
        return found.frame
    frame = found.log.frame.copy()
    out = found.log.weights < _DISTURBED
    frame.loc[out, "y_us"] = np.exp(found.log.fitted[out])
    return frame
