"""From the runs of a study to the tables its figures are drawn from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pandas as pd

from broadleaf_lab.analysis import failures as failing
from broadleaf_lab.analysis import frame as frames
from broadleaf_lab.analysis.convergence import convergence
from broadleaf_lab.analysis.known import Known
from broadleaf_lab.analysis.model import fit as fits
from broadleaf_lab.analysis.pairs import deltas as delta_tables
from broadleaf_lab.analysis.paths import path as paths
from broadleaf_lab.analysis.paths.remeasure import measured_again
from broadleaf_lab.designs.plan import Plan
from broadleaf_lab.errors import AnalysisError
from broadleaf_lab.report.components import components_of
from broadleaf_lab.report.figures import roles
from broadleaf_lab.report.figures.evidence import Evidence, Model, Roles
from broadleaf_lab.spec.factors import Factor, Level, column_value

if TYPE_CHECKING:
    from broadleaf_lab.analysis.interactions import Interaction
    from broadleaf_lab.spec.study import StudySpec

MAX_PANELS = 6
SOURCES = {"model": "Times are the model's predictions.", "measured": "Times were measured again in fresh runs."}
CONTEXTS: dict[Literal["average", "baseline", "best"], str] = {
    "average": "model, average",
    "baseline": "model, at the baseline",
    "best": "model, at the best",
}
_PERCENT = {"estimate_pct": "estimate", "ci_low_pct": "ci_low", "ci_high_pct": "ci_high"}


@dataclass(slots=True)
class Collected:
    """A study's data and models. `log` is the model of ratios on which verdicts are based; None if the runs do not
    allow one.
    """

    study: StudySpec
    frame: pd.DataFrame
    factors: tuple[Factor, ...]
    failures: failing.Failures
    log: fits.Fit | None = None
    pairs: tuple[Interaction, ...] = ()
    known: Known = field(default_factory=lambda: Known(None, 1.0))
    deltas: pd.DataFrame | None = None
    paths: dict[str, paths.Path] = field(default_factory=dict)
    evidence: Evidence | None = None
    notes: list[str] = field(default_factory=list)


def collect(study: StudySpec) -> Collected:
    """Everything that the report of a study consists of. Raises AnalysisError if it has no runs."""
    if not study.runs_path.exists():
        raise AnalysisError(f"{study.runs_path}: there are no runs yet. Make them with `broadleaf-lab run`.")
    frame = frames.load(study.runs_path, study.factors)
    varied = tuple(f for f in study.factors if frame[f.name].nunique() > 1)
    if not varied:
        raise AnalysisError("all runs have the same configuration: there is nothing to compare. Run the plan first.")
    found = Collected(study, frame, varied, failing.of_study(study.runs_path, study.factors))
    reasons: dict[str, str] = {}
    found.log = _fitted(found, reasons)
    if found.log is not None:
        found.pairs = tuple(found.log.interactions(study.rope_pct))
    found.known = Known(found.log, study.rope_pct, found.failures)
    _find_deltas(found, reasons)
    means = _means(found, None, varied)
    main, pair_model, coefficients, pairs_us = _models(found, reasons)
    chosen = _roles(found, pairs_us)
    chosen = replace(chosen, flips=tuple(dict.fromkeys((*chosen.flips, *found.known.changing_sides))))
    kept, words, condition = _kept(found, chosen, reasons)
    greedy, nice = _paths(found, reasons)
    found.evidence = Evidence(
        roles=chosen,
        bools=frozenset(f.name for f in varied if f.is_bool),
        rope_pct=study.rope_pct,
        deltas=found.deltas,
        means=means,
        means_kept=kept,
        kept_words=words,
        kept_condition=condition,
        greedy=greedy,
        nice=nice,
        path_sources={
            which: SOURCES[found.paths[name].source]
            for which, name in (("greedy", "best first"), ("nice", "nicest first"))
            if name in found.paths
        },
        main_model=main,
        pair_model=pair_model,
        coefficients=coefficients,
        pairs=_pair_table(found.pairs),
        components=components_of(found, reasons),
        convergence=_convergence(found, reasons),
        failure_note=found.failures.note,
        drift=_drift(found),
        cells=_cells(found),
        levels=_levels(found),
        reasons={
            "levels": "no factor was run at more than two levels",
            "cells": "no pair of factors could be told",
            **reasons,
        },
    )
    return found


def _fitted(found: Collected, reasons: dict[str, str]) -> fits.Fit | None:
    """The model of ratios with all pairs, or of main effects alone if the runs do not allow more."""
    for pairs in (True, False):
        try:
            return fits.fit(found.factors, found.frame, scale="log", pairs=pairs)
        except AnalysisError as error:
            reason = str(error)
            if pairs:
                found.notes.append(
                    f"Pairs could not be fitted: {reason} Effects below assume that factors only multiply."
                )
    for name in ("greedy", "nice", "convergence", "drift"):
        reasons[name] = reason
    return None


def _find_deltas(found: Collected, reasons: dict[str, str]) -> None:
    table = delta_tables.deltas(found.frame, found.factors)
    lacking = delta_tables.missing_pairs(table, found.factors)
    if table.empty and found.log is not None:
        table = delta_tables.model_deltas(found.log)
        found.notes.append(f"{lacking} Before and after figures show the model's predictions instead.")
    elif lacking:
        found.notes.append(lacking)
    if table.empty:
        reasons["deltas"] = reasons["means"] = reasons["means_kept"] = lacking or "there are no deltas"
        return
    numeric = ["before_us", "after_us", "delta_us", "log2_ratio"]
    table[numeric] = table[numeric].astype(float)
    found.deltas = table


def _roles(found: Collected, pairs_us: pd.DataFrame | None) -> Roles:
    """Chosen according to the model, if there is one."""
    if found.deltas is None:
        return Roles()
    table = found.deltas
    if found.log is not None:
        predicted = delta_tables.model_deltas(found.log, identified=False, errors=False)
        table = predicted[predicted["treatment"].isin(found.deltas["treatment"].unique())]
    # A factor with several levels saves what its best one does.
    savings = table["delta_us"].astype(float).groupby([table["treatment"], table["level_to"].astype(str)]).mean()
    return roles.choose(table, savings.groupby(level=0).min(), _pair_table(found.pairs), pairs_us)


def _label(factor: Factor, level: object) -> str:
    """A factor's name, with the level if it has several."""
    return factor.name if factor.is_bool else f"{factor.name} = {level}"


def _means(found: Collected, where: str | None, factors: Sequence[Factor]) -> pd.DataFrame | None:
    by_name = {f.name: f for f in factors}
    table = delta_tables.mean_deltas(found.frame, found.factors, where=where)
    table = table[table["treatment"].isin(by_name)]
    if table.empty:
        return None
    return pd.DataFrame(
        {
            "name": [_label(by_name[r.treatment], r.level_to) for r in table.itertuples(index=False)],
            "mean_us": table["mean_us"].astype(float).to_numpy(),
            "ci_low_us": table["ci_low"].astype(float).to_numpy(),
            "ci_high_us": table["ci_high"].astype(float).to_numpy(),
            "n": table["n_pairs"].astype(int).to_numpy(),
        }
    )


def _at_default(factor: Factor) -> str:
    """The condition that a factor is at its default."""
    if factor.is_bool:
        return factor.name if factor.default else f"not {factor.name}"
    return f"{factor.name} == {factor.default!r}"


def _kept(found: Collected, chosen: Roles, reasons: dict[str, str]) -> tuple[pd.DataFrame | None, str, str]:
    """Mean deltas of the runs without the two leading factors, and that condition in words and as one types it."""
    names = [name for name in (chosen.first, chosen.second) if name]
    if not names:
        return None, "", ""
    dropped = [found.study.factor(name) for name in names]
    rest = [f for f in found.factors if f.name not in names]
    words, condition = "without " + " and ".join(names), " and ".join(map(_at_default, dropped))
    try:
        table = _means(found, condition, rest) if rest else None
    except AnalysisError as error:
        reasons["means_kept"] = str(error)
        return None, words, condition
    if table is None:
        reasons["means_kept"] = f"no pairs of runs {words}"
    return table, words, condition


def _pair_table(pairs: Sequence[Interaction]) -> pd.DataFrame | None:
    """A row per pair of factors; for factors with several levels, the level that interacts most."""
    if not pairs:
        return None
    table = pd.DataFrame(
        [
            {
                "a": p.a,
                "b": p.b,
                "estimate": p.estimate,
                "q": p.q,
                "kind": p.kind,
                "a_flips": p.a_alone.estimate * p.a_with_b.estimate < 0,
                "b_flips": p.b_alone.estimate * p.b_with_a.estimate < 0,
            }
            for p in pairs
        ]
    )
    strongest = table["estimate"].abs().groupby([table["a"], table["b"]]).idxmax()
    return table.loc[sorted(strongest)].reset_index(drop=True)


def path_table(path: paths.Path, by_name: dict[str, Factor]) -> pd.DataFrame:
    """A path in microseconds, in the form that a waterfall needs."""
    return pd.DataFrame(
        [
            {
                "step": i,
                "name": _label(by_name[step.factor], step.level),
                "before_us": step.before,
                "after_us": step.after,
                "ci_low_us": step.before + step.ci_low,
                "ci_high_us": step.before + step.ci_high,
                "tier": step.tier,
            }
            for i, step in enumerate(path.order, 1)
        ]
    )


def _paths(found: Collected, reasons: dict[str, str]) -> tuple[pd.DataFrame | None, pd.DataFrame | None]:
    """The two paths: as measured again if they were, otherwise as the model predicts."""
    if found.log is None:
        return None, None
    rules = failing.without(found.study, found.failures).rules()
    by_name = {f.name: f for f in found.study.factors}
    plan_path = found.study.directory / "plan.json"
    plan = Plan.load(plan_path) if plan_path.exists() else None
    tables = []
    for name, order, make in (("best first", "greedy", paths.greedy), ("nicest first", "nice", paths.nice)):
        again = None
        try:
            again = measured_again(plan, found.frame, found.study.factors, order, "us") if plan is not None else None
        except AnalysisError as error:
            found.notes.append(f"The path {name} is the model's: {error}")
        path = again or make(found.log, rules, "us", known=found.known)
        found.paths[name] = path
        tables.append(path_table(path, by_name) if path.order else None)
    if tables[0] is None:
        reasons["greedy"] = reasons["nice"] = f"there is no path to a faster setting: {found.known.no_step}"
    return tables[0], tables[1]


def _models(
    found: Collected, reasons: dict[str, str]
) -> tuple[Model | None, Model | None, pd.DataFrame | None, pd.DataFrame | None]:
    """In microseconds, as the published study fitted them: least squares of main effects with the time and the hour,
    then with all pairs.
    """
    main = pair_model = coefficients = pairs_us = None
    by_name = {f.name: f for f in found.factors}
    try:
        fitted = fits.fit(found.factors, found.frame, scale="us", pairs=False, **_PLAIN)
        main = _model(fitted, "Main effects and time alone")
        coefficients = pd.DataFrame(
            [
                {
                    "name": _label(by_name[e.factor], column_value(e.level)),
                    "mean_us": e.estimate,
                    "ci_low_us": e.ci_low,
                    "ci_high_us": e.ci_high,
                    "n": fitted.n_runs,
                }
                for e in fitted.effects()
            ]
        )
    except AnalysisError as error:
        reasons["main_model"] = reasons["coefficients"] = str(error)
    try:
        fitted = fits.fit(found.factors, found.frame, scale="us", pairs=True, **_PLAIN)
        pair_model = _model(fitted, "With all pairs")
        pairs_us = _pair_table(fitted.interactions(found.study.rope_pct))
    except AnalysisError as error:
        reasons["pair_model"] = reasons["pairs_us"] = str(error)
    return main, pair_model, coefficients, pairs_us


_PLAIN: Any = {"blocks": "none", "drift": "line", "robust": False, "triples": False}


def _model(fitted: fits.Fit, words: str) -> Model:
    """Every run beside its prediction, and the R squared of these points."""
    actual = fitted.frame["y_us"].to_numpy(dtype=float)
    rest = actual - fitted.fitted
    share = 1 - float(rest @ rest) / float(((actual - actual.mean()) ** 2).sum() or 1.0)
    run_ids = fitted.frame["run_id"] if "run_id" in fitted.frame else range(fitted.n_runs)
    table = pd.DataFrame({"run_id": run_ids, "actual_us": actual, "predicted_us": fitted.fitted})
    return Model(table, share, words)


def _drift(found: Collected) -> pd.DataFrame | None:
    """Every run with its residual from a model without blocks and time, and whether it is a control."""
    if found.log is None:
        return None
    pairs = bool(found.log.coding.pairs)
    plain = fits.fit(found.factors, found.frame, scale="log", pairs=pairs, blocks="none", drift=False, triples=False)
    baseline, all_on = found.study.baseline, found.study.all_on
    # The model may have been fitted to only some of the runs.
    cell, kept = frames.cells(plain.frame, found.factors)
    words = np.array([_control(config, baseline, all_on) for config in kept])
    return pd.DataFrame(
        {
            "started_unix": plain.frame["started_unix"].to_numpy(dtype=float),
            "block": plain.frame["block"].to_numpy(),
            "control": words[cell],
            "y_us": plain.frame["y_us"].to_numpy(dtype=float),
            "residual_log": plain.residuals,
        }
    )


def _control(config: dict[str, Level], baseline: dict[str, Level], all_on: dict[str, Level]) -> str:
    if all(config[name] == baseline[name] for name in config):
        return "baseline"
    return "all on" if all(config[name] == all_on[name] for name in config) else ""


def _cells(found: Collected) -> pd.DataFrame | None:
    """Predicted cell means of the pairs that matter most: first the largest of each class, then by size."""
    if found.log is None or not found.pairs:
        return None
    real = [p for p in found.pairs if p.q <= 0.05] or list(found.pairs)[:1]
    by_size = sorted(real, key=lambda p: -abs(p.estimate))
    leaders = list({p.kind: p for p in reversed(by_size)}.values())
    chosen = sorted(leaders, key=by_size.index)
    chosen += [p for p in by_size if p not in chosen]
    rows = []
    by_name = {f.name: f for f in found.factors}
    for pair in chosen[:MAX_PANELS]:
        a, b = by_name[pair.a], by_name[pair.b]
        for x in (a.default, pair.a_level):
            for y in (b.default, pair.b_level):
                mean, low, high = found.log.predict([{a.name: x, b.name: y}])
                rows.append(
                    {
                        "a": a.name,
                        "b": b.name,
                        "kind": pair.kind,
                        "a_level": _word(x),
                        "b_level": _word(y),
                        "mean_us": float(mean[0]),
                        "ci_low_us": float(low[0]),
                        "ci_high_us": float(high[0]),
                    }
                )
    return pd.DataFrame(rows)


def _word(level: Level) -> str:
    return ("on" if level else "off") if isinstance(level, bool) else str(level)


def _levels(found: Collected) -> pd.DataFrame | None:
    """Predicted means at each level that was run, for factors with more than two levels."""
    if found.log is None:
        return None
    rows = []
    for factor in found.factors:
        levels = [level for level in factor.levels if found.log.coding.measured(factor.name, level)]
        if len(levels) < 3:
            continue
        ordered = sorted(levels, key=float) if factor.is_numeric else levels
        for position, level in enumerate(ordered):
            mean, low, high = found.log.predict([{factor.name: level}])
            rows.append(
                {
                    "name": factor.name,
                    "level": str(level),
                    "position": position,
                    "mean_us": float(mean[0]),
                    "ci_low_us": float(low[0]),
                    "ci_high_us": float(high[0]),
                }
            )
    return pd.DataFrame(rows) if rows else None


def _convergence(found: Collected, reasons: dict[str, str]) -> pd.DataFrame | None:
    by_name = {f.name: f for f in found.factors}
    try:
        table = convergence(found.factors, found.frame)
    except AnalysisError as error:
        reasons["convergence"] = str(error)
        return None
    percent = {name: 100 * np.expm1(table[column].astype(float)) for name, column in _PERCENT.items()}
    names = [_label(by_name[r.factor], column_value(r.level)) for r in table.itertuples(index=False)]
    return pd.DataFrame({"runs": table["n_runs"].astype(int), "name": names, **percent})
