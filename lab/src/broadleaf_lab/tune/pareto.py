"""What a gain in one response costs in another: the configurations that no other beats in all of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from broadleaf_lab.analysis import failures
from broadleaf_lab.analysis import frame as frames
from broadleaf_lab.analysis.model.fit import Fit, fit
from broadleaf_lab.spec.factors import Level, config_id
from broadleaf_lab.spec.study import StudySpec


@dataclass(frozen=True, slots=True)
class Point:
    """A configuration, and for each response its ratio to the default with the 95 % interval, according to the models
    of all runs.
    """

    config: dict[str, Level]
    ratios: dict[str, tuple[float, float, float]]


def pareto(study: StudySpec, responses: Sequence[str]) -> list[Point]:
    """The front of the study's runs over several responses, the fastest first: configurations that were run and never
    failed, where no other is better in one response by more than the practical difference and as good in all others.
    Raises AnalysisError if a response is not a column of numbers.
    """
    made: dict[str, Fit] = {}
    for response in responses:
        frame = frames.load(study.runs_path, study.factors, None, response)
        varied = [f for f in study.factors if frame[f.name].nunique() > 1]
        made[response] = fit(varied, frame, triples=False)
    measured: dict[str, dict[str, Level]] = {}
    for one in made.values():
        for config in one.measured_configs:
            whole = {**study.baseline, **config}
            measured.setdefault(config_id(whole, study.factors), whole)
    measured.setdefault(config_id(study.baseline, study.factors), study.baseline)
    rules = failures.without(study, failures.of_study(study.runs_path, study.factors)).rules()
    failed = _failed(study)
    configs = [c for name, c in measured.items() if name not in failed and rules.allows(c)]
    logs = {response: _over_default(one, configs, study.baseline) for response, one in made.items()}
    values = np.column_stack([[estimate for estimate, _, _ in logs[response]] for response in responses])
    kept = _front(values, math.log1p(study.rope_pct / 100))
    points = [
        Point(configs[i], {r: tuple(math.exp(x) for x in logs[r][i]) for r in responses})  # type: ignore[misc]
        for i in kept
    ]
    return sorted(points, key=lambda point: point.ratios[responses[0]][0])


def _failed(study: StudySpec) -> set[str]:
    from broadleaf_lab.spec.runs import read_runs

    rows = read_runs(study.runs_path, study.factors)
    return {str(row["config_id"]) for row in rows if row["status"] in failures.BAD}


def _over_default(
    made: Fit, configs: Sequence[dict[str, Level]], default: dict[str, Level]
) -> list[tuple[float, float, float]]:
    base = made.coding.rows([default])[0]
    rows = made.coding.rows(configs) - base
    return [(it.estimate, it.low, it.high) for it in made.contrasts_of(rows)]


def _front(values: np.ndarray, rope: float) -> list[int]:
    """The rows that no other row beats: nowhere worse by more than `rope`, and better by more somewhere. Among rows
    that are equal within `rope`, the first by its sum stays.
    """
    kept: list[int] = []
    for i in np.argsort(values.sum(axis=1), kind="stable").tolist():
        others = values[np.arange(len(values)) != i]
        beaten = ((others <= values[i] + rope).all(axis=1) & (others < values[i] - rope).any(axis=1)).any()
        alike = any((np.abs(values[i] - values[j]) <= rope).all() for j in kept)
        if not beaten and not alike:
            kept.append(i)
    return kept
