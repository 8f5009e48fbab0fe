"""Everything that `broadleaf-lab analyse` says about a study, computed once: for the terminal, for JSON, for tables."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import pandas as pd

from broadleaf_lab.analysis import failures as failing
from broadleaf_lab.analysis.convergence import Precision, precision
from broadleaf_lab.analysis.effects import DifferenceUs, Effect
from broadleaf_lab.analysis.interactions import Interaction
from broadleaf_lab.analysis.known import Known
from broadleaf_lab.analysis.model.fit import Fit, LackOfFit, fit
from broadleaf_lab.analysis.model.scale import LambdaProfile, Scale, answer
from broadleaf_lab.analysis.verdict import Verdict
from broadleaf_lab.errors import AnalysisError
from broadleaf_lab.spec.factors import Factor

Choice = Literal["auto"] | Scale
_CONTEXTS: tuple[Literal["average", "baseline", "best"], ...] = ("average", "baseline", "best")


@dataclass(frozen=True, slots=True)
class Summary:
    """Verdicts first; then the evidence for them."""

    fit: Fit
    verdicts: tuple[Verdict, ...]
    effects: dict[str, tuple[Effect, ...]]
    differences: tuple[DifferenceUs, ...]
    interactions: tuple[Interaction, ...]
    scale: LambdaProfile
    precision: Precision
    lack_of_fit: LackOfFit | None
    notes: tuple[str, ...]
    failures: failing.Failures | None = None

    def effects_table(self) -> pd.DataFrame:
        """effects.csv: every effect in every context."""
        return pd.DataFrame([asdict(effect) for listed in self.effects.values() for effect in listed])

    def interactions_table(self) -> pd.DataFrame:
        """interactions.csv: every pair."""
        return pd.DataFrame([_pair(pair) for pair in self.interactions])

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON; unknown values are None."""
        found = {
            "runs": self.fit.n_runs,
            "failures": None if self.failures is None else asdict(self.failures),
            "scale": self.fit.scale,
            "blocks": self.fit.blocks,
            "r_squared": self.fit.r_squared,
            "residual_sd": self.fit.sigma,
            "residual_df": self.fit.df,
            "verdicts": [asdict(v) for v in self.verdicts],
            "effects": {context: [asdict(e) for e in listed] for context, listed in self.effects.items()},
            "differences_us": [asdict(d) for d in self.differences],
            "interactions": [_pair(pair) for pair in self.interactions],
            "scale_answer": {**asdict(self.scale), "sentence": self.scale.sentence},
            "drift": [asdict(term) for term in self.fit.drift_terms()],
            "lack_of_fit": None if self.lack_of_fit is None else asdict(self.lack_of_fit),
            "precision": {**asdict(self.precision), "sentence": self.precision.sentence},
            "dropped": self.fit.dropped,
            "notes": list(self.notes),
        }
        plain: dict[str, Any] = _plain(found)
        return plain


def summarise(
    factors: Sequence[Factor],
    frame: pd.DataFrame,
    scale: Choice = "log",
    pairs: bool = True,
    blocks: Literal["auto", "none"] = "auto",
    drift: bool = True,
    rope_pct: float = 1.0,
    failures: failing.Failures | None = None,
) -> Summary:
    """Fits and reports. `failures` are those of the same runs: failures are then reported before speed. Factors that
    never vary are omitted and named; if the runs are too few for pairs, main effects alone are reported, and the report
    says so. Raises AnalysisError if nothing can be shown.
    """
    varied = [f for f in factors if frame[f.name].nunique() > 1]
    if not varied:
        raise AnalysisError("all runs have the same configuration: there is nothing to compare. Run more of the plan.")
    notes: list[str] = []
    tried = {it.factor for it in failures.levels} if failures is not None else set()
    if untold := [f.name for f in factors if f not in varied and f.name not in tried]:
        notes.append(f"Never varied, so nothing is known about: {', '.join(untold)}.")
    if fatal := [f.name for f in factors if f not in varied and f.name in tried]:
        notes.append(f"Only one level had successful runs, so no effect is known of: {', '.join(fatal)}.")
    try:
        made = fit(varied, frame, scale, pairs, blocks, drift)
    except AnalysisError as error:
        if not pairs:
            raise
        made = fit(varied, frame, scale, False, blocks, drift)
        notes.append(f"Main effects only: {error}")
    notes += made.notes
    notes += tasks_note(frame)
    if made.dropped:
        notes.append(f"These runs cannot distinguish these terms: {', '.join(made.dropped)}.")
    return Summary(
        fit=made,
        verdicts=Known(made, rope_pct, failures).verdicts,
        effects={context: tuple(made.effects(context)) for context in _CONTEXTS},
        differences=tuple(made.differences_us("baseline")),
        interactions=tuple(made.interactions(rope_pct)),
        scale=answer(made),
        precision=precision(made, rope_pct),
        lack_of_fit=made.lack_of_fit,
        notes=tuple(notes),
        failures=failures,
    )


def tasks_note(frame: pd.DataFrame) -> list[str]:
    """Says so if configurations had different numbers of tasks."""
    if "n_tasks" not in frame:
        return []
    numbers = pd.to_numeric(frame["n_tasks"], errors="coerce").dropna()
    if numbers.empty or numbers.max() <= 2 * numbers.min():
        return []
    return [
        f"Runs had {int(numbers.min()):,} to {int(numbers.max()):,} tasks, depending on the speed of each "
        "configuration. Anything that depends on the number of tasks is therefore part of the effects."
    ]


def _pair(pair: Interaction) -> dict[str, Any]:
    found = asdict(pair)
    for name in ("a_alone", "a_with_b", "b_alone", "b_with_a", "joint"):
        found[name] = found[name]["estimate"]
    return found


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value
