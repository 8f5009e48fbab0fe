"""A study and its operations: planning, running, analysing, tuning, reporting."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from broadleaf_lab.errors import DesignError
from broadleaf_lab.spec.study import StudySpec

if TYPE_CHECKING:
    import pandas as pd

    from broadleaf_lab.analysis.inline import Figures
    from broadleaf_lab.analysis.model.fit import Fit
    from broadleaf_lab.analysis.paths.path import Path as AppliedPath
    from broadleaf_lab.analysis.paths.pca import Pca
    from broadleaf_lab.comparisons.compare import Comparison
    from broadleaf_lab.designs.plan import Plan
    from broadleaf_lab.report.build import Report
    from broadleaf_lab.report.recommend import Recommendation
    from broadleaf_lab.run.planned import Summary
    from broadleaf_lab.settle.settler import Settler
    from broadleaf_lab.spec.factors import Level
    from broadleaf_lab.tune.tuner import Tuned

_Function = TypeVar("_Function", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Study(StudySpec):
    """A study as its file describes it, and its operations. `Study.load(path)` reads one."""

    @classmethod
    def load(cls, path: str | Path) -> Study:
        """Reads a study file, or the study.toml of a directory. StudyFileError names the file and the key."""
        from broadleaf_lab.spec.file import load

        return load(Path(path), cls)

    def benchmark(self, function: _Function) -> _Function:
        """Decorator: `function` is the workload. It is called with the levels of the keyword factors and with
        `n_tasks`, and returns seconds per task, or nothing if the score is the time that it took.
        """
        object.__setattr__(self, "function", function)
        return function

    def plan(self) -> Plan:
        """The runs to make. Patches that do not apply together are kept apart."""
        from broadleaf_lab.run.planned import make_plan

        return make_plan(self)

    def run(self, budget: str | float | None = None, **options: Any) -> Summary:
        """Makes the runs that are in plan.json but not in runs.csv, for at most `budget` ("60m", or seconds). `options`
        are those of `run.planned.run_plan`; a notebook shows progress."""
        from broadleaf_lab.analysis import inline
        from broadleaf_lab.run.planned import run_plan

        if inline.in_notebook():
            options.setdefault("on_progress", inline.run_progress())
        return run_plan(self, budget_s=_seconds(budget), **options)

    def runs(self, where: str | None = None, response: str = "time_per_task_us") -> pd.DataFrame:
        """The runs with a result; `where` keeps those whose configuration satisfies an expression over the factors.
        `response` is the quantity in their column `y_us`."""
        from broadleaf_lab.analysis.frame import load

        return load(self.runs_path, self.factors, where, response)

    def deltas(self, where: str | None = None, pairing: Literal["cell", "cross"] = "cell") -> pd.DataFrame:
        """The table of every X and X + treatment among the runs."""
        from broadleaf_lab.analysis.pairs.deltas import deltas

        return deltas(self.runs(), self.factors, pairing, where)

    def fit(
        self,
        scale: Literal["auto", "log", "us", "rate"] = "log",
        response: str = "time_per_task_us",
        **options: Any,
    ) -> Fit:
        """The model of main effects and pairs over the factors that were varied. `options` are those of
        `analysis.model.fit.fit`."""
        from broadleaf_lab.analysis.model.fit import of_study

        return of_study(self, scale, response, **options)

    def path(
        self,
        order: str | Sequence[str | tuple[str, Level]] = "greedy",
        scale: Literal["log", "us", "rate"] = "us",
        all_steps: bool = False,
    ) -> AppliedPath:
        """From the slow to the fast setting: "greedy", "nice", "shapley", or factors in an order of your own."""
        from broadleaf_lab.analysis import failures
        from broadleaf_lab.analysis.known import Known
        from broadleaf_lab.analysis.paths import path as paths

        # Settings that fail are on no path that the laboratory chooses; a path that you name is your choice.
        made, failed = self.fit("log"), failures.of_study(self.runs_path, self.factors)
        rules, known = failures.without(self, failed).rules(), Known(made, self.rope_pct, failed)
        match order:
            case "greedy":
                return paths.greedy(made, rules, scale, all_steps, known)
            case "nice":
                return paths.nice(made, rules, scale, all_steps, known)
            case "shapley":
                return paths.shapley(made, None, scale)
            case str():
                raise DesignError(
                    f"unknown order {order!r}: choose greedy, nice or shapley, or give a list of factors."
                )
        return paths.custom(made, order, self.rules(), scale)

    def pca(self, log2: bool = False, **options: Any) -> Pca:
        """Principal components of the measured random orders. `options` are those of `analysis.paths.pca.pca`."""
        from broadleaf_lab.analysis.paths.path import path_vectors
        from broadleaf_lab.analysis.paths.pca import pca

        return pca(path_vectors(self.runs(), self.factors, log2), **options)

    def compare(self, patch: str | Path, budget: str | float | None = None, **options: Any) -> Comparison:
        """Would this patch help or hinder? `options` are those of `comparisons.compare.compare`."""
        from broadleaf_lab.comparisons.compare import compare, patched

        return compare(self, *patched(Path(patch)), budget_s=_seconds(budget), **options)

    def tune(self, budget: str | float | None = None, runs: int | None = None, **options: Any) -> Tuned:
        """Searches for the best setting within `budget` or a number of runs, and proves it on fresh ones. `options` are
        those of `tune.tuner.tune`."""
        from broadleaf_lab.run.environments.environment import with_excludes
        from broadleaf_lab.tune.measured import MeasuredRuns, known_trials
        from broadleaf_lab.tune.meter import Budget
        from broadleaf_lab.tune.tuner import tune

        study = with_excludes(self)
        known = known_trials(study)
        with MeasuredRuns(study) as evaluate:
            return tune(study, evaluate, Budget(runs, _seconds(budget)), known=known, **options)

    def settle(self, max_runs: int | None = None, budget: str | float | None = None, **options: Any) -> Settler:
        """Makes runs that it chooses itself until every question is decided. `options` are those of
        `settle.measured.settle`; a notebook shows what is decided."""
        from broadleaf_lab.analysis import inline
        from broadleaf_lab.settle.measured import settle

        if inline.in_notebook():
            options.setdefault("say", inline.said())
        return settle(self, max_runs, budget_s=_seconds(budget), **options)

    def recommend(self, max_tier: int = 4) -> Recommendation:
        """The settings that the runs prove to help, up to this tier."""
        from broadleaf_lab.report.recommend import recommend

        return recommend(self, max_tier)

    def figures(self) -> Figures:
        """Every figure of the report, to be shown one by one: `figures["drift"]`, `figures[14]`."""
        from broadleaf_lab.analysis.inline import Figures
        from broadleaf_lab.report.collect import collect
        from broadleaf_lab.report.figures.registry import draw_all

        evidence = collect(self).evidence
        assert evidence is not None, "collect() fills it in"
        return Figures(draw_all(evidence))

    def _repr_html_(self) -> str:
        from broadleaf_lab.analysis.inline import study_html

        return study_html(self)

    def report(self, folder: str | Path | None = None) -> Report:
        """Writes the offline HTML report with its figures and tables, into `folder` or `report` beside the runs."""
        from broadleaf_lab.report.build import write

        return write(self, None if folder is None else Path(folder))


def _seconds(budget: str | float | None) -> float | None:
    from broadleaf_lab.spec.file import parse_duration_s

    return None if budget is None else parse_duration_s(budget, "budget")
