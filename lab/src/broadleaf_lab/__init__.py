"""The performance laboratory: which setting makes a workload fast, how sure you can be, and what it depends on.

A `Study` describes the workload and its `Factor`s. Its `Plan` says which runs to make; the runs are rows of `runs.csv`;
deltas, models, paths and verdicts are computed from these rows. Importing this loads the standard library only;
what computes and draws loads numpy and the like.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from broadleaf_lab.designs.plan import Plan, PlanRow
    from broadleaf_lab.errors import (
        AnalysisError,
        ConstraintError,
        DesignError,
        LabError,
        RunError,
        StudyFileError,
    )
    from broadleaf_lab.spec.constraints import Constraints
    from broadleaf_lab.spec.factors import Config, Factor, Level, config_id
    from broadleaf_lab.spec.runs import read_runs
    from broadleaf_lab.spec.study import Calibrate, DesignSpec
    from broadleaf_lab.study import Study
    from broadleaf_lab.synthetic.system import SyntheticSystem, seedlike, simulate

_MODULES = {
    "AnalysisError": "errors",
    "Calibrate": "spec.study",
    "Config": "spec.factors",
    "ConstraintError": "errors",
    "Constraints": "spec.constraints",
    "DesignError": "errors",
    "DesignSpec": "spec.study",
    "Factor": "spec.factors",
    "LabError": "errors",
    "Level": "spec.factors",
    "Plan": "designs.plan",
    "PlanRow": "designs.plan",
    "RunError": "errors",
    "Study": "study",
    "StudyFileError": "errors",
    "SyntheticSystem": "synthetic.system",
    "config_id": "spec.factors",
    "read_runs": "spec.runs",
    "seedlike": "synthetic.system",
    "simulate": "synthetic.system",
}

__all__ = [
    "AnalysisError",
    "Calibrate",
    "Config",
    "ConstraintError",
    "Constraints",
    "DesignError",
    "DesignSpec",
    "Factor",
    "LabError",
    "Level",
    "Plan",
    "PlanRow",
    "RunError",
    "Study",
    "StudyFileError",
    "SyntheticSystem",
    "config_id",
    "read_runs",
    "seedlike",
    "simulate",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES})
