"""A study: one workload, its score, its factors and constraints, and the design that samples them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from broadleaf.lab.errors import DesignError, StudyFileError
from broadleaf.lab.factors import Factor, Level, baseline

if TYPE_CHECKING:
    import pandas as pd

    from broadleaf.lab.analysis.fit import Fit
    from broadleaf.lab.analysis.paths import Path as AppliedPath
    from broadleaf.lab.analysis.pca import Pca
    from broadleaf.lab.compare import Comparison
    from broadleaf.lab.constraints import Constraints
    from broadleaf.lab.inline import Figures
    from broadleaf.lab.plan import Plan
    from broadleaf.lab.recommend import Recommendation
    from broadleaf.lab.report.build import Report
    from broadleaf.lab.runner import Summary
    from broadleaf.lab.settle.settler import Settler
    from broadleaf.lab.tune.tuner import Tuned

_Function = TypeVar("_Function", bound=Callable[..., Any])

DESIGNS = (
    "auto",
    "full",
    "resolution5",
    "foldover",
    "dopt",
    "paths",
    "edges",
    "balanced",
    "greedy",
    "random",
    "explicit",
    "sweep",
)


@dataclass(frozen=True, slots=True)
class Calibrate:
    """How the one number of tasks of all runs is chosen: so that the fastest configuration takes `min_s` seconds.
    `n_tasks` fixes it instead."""

    min_s: float = 0.5
    n_tasks: int | None = None
    min_tasks: int = 1
    max_tasks: int = 1_000_000


@dataclass(frozen=True, slots=True)
class DesignSpec:
    """Which configurations to run.

    `paths` is the number of random orders besides the design (None: the design's own choice), `edges` the number of
    starting points of one-flip neighbourhoods, `runs` the number of runs of `random`, `dopt` and `balanced`, `rows`
    the configurations of `explicit`, `factor` the one `sweep` varies. `noise_pct` is the run-to-run spread one expects,
    for power and for the estimate of what the plan can show. `budget_s` bounds the time of `run`.
    """

    kind: str = "auto"
    paths: int | None = None
    seed: int = 1
    budget_s: float | None = None
    replicates: int = 1
    rows: tuple[Mapping[str, Level], ...] = ()
    block_size: int = 16
    noise_pct: float = 5.0
    runs: int | None = None
    edges: int | None = None
    factor: str | None = None


@dataclass(frozen=True, slots=True)
class Study:
    """A study as its file describes it. `Study.load(path)` reads one."""

    name: str
    command: tuple[str, ...] | None = None
    callable: str | None = None
    score: str = "wall/n"
    direction: Literal["min", "max"] = "min"
    timeout_s: float = 120.0
    rope_pct: float = 1.0
    calibrate: Calibrate = Calibrate()
    factors: tuple[Factor, ...] = ()
    constraints: Mapping[str, str] = field(default_factory=dict)
    design: DesignSpec = DesignSpec()
    directory: Path = Path()
    iterations: int = 1
    responses: tuple[str, ...] = ()
    """Further numbers that runs print as JSON, kept in columns of their own; of each less is better."""
    settings: Mapping[str, object] = field(default_factory=dict)
    """The keys of `[study]` that only the runner reads, as the file has them."""
    function: Callable[..., Any] | None = field(default=None, compare=False, repr=False)

    @classmethod
    def load(cls, path: str | Path) -> Study:
        """Reads a study file, or the study.toml of a directory. StudyFileError names the file and the key."""
        from broadleaf.lab.study_file import load

        return load(Path(path))

    def benchmark(self, function: _Function) -> _Function:
        """Decorator: `function` is the workload. It is called with the levels of the keyword factors and with `n_tasks`
        and returns seconds per task, or nothing where the score is the time it took."""
        object.__setattr__(self, "function", function)
        return function

    def factor(self, name: str) -> Factor:
        """The factor of that name."""
        for factor in self.factors:
            if factor.name == name:
                return factor
        import difflib

        close = difflib.get_close_matches(name, [f.name for f in self.factors], 1)
        raise StudyFileError(
            f"study {self.name!r}",
            f"has no factor {name!r}.",
            f"Did you mean {close[0]!r}?" if close else f"Its factors are {', '.join(f.name for f in self.factors)}.",
        )

    @property
    def baseline(self) -> dict[str, Level]:
        """Every factor at its default."""
        return baseline(self.factors)

    @property
    def all_on(self) -> dict[str, Level]:
        """Every factor at its treated level, as far as the constraints allow: in the order of the file, the first of
        two that exclude each other."""
        rules = self.rules()
        config = self.baseline
        waiting = list(self.factors)
        while True:
            left = []
            for factor in waiting:
                tried = {**config, factor.name: factor.on}
                if rules.allows(tried):
                    config = tried
                else:
                    left.append(factor)
            # One that did not exist may exist now.
            if len(left) == len(waiting):
                return config
            waiting = left

    def rules(self) -> Constraints:
        """The constraints as something that can be asked."""
        from broadleaf.lab.constraints import Constraints

        return Constraints(self.factors, self.constraints)

    def plan(self) -> Plan:
        """The runs to make. Patches that do not apply together are kept apart."""
        from broadleaf.lab.plan import Plan

        if sum(factor.kind == "patch" for factor in self.factors) < 2:
            return Plan.make(self)
        from broadleaf.lab.environments import Environments

        return Plan.make(self, Environments(self).excludes())

    def run(self, budget: str | float | None = None, **options: Any) -> Summary:
        """Makes the runs that plan.json has and runs.csv has not, for at most `budget` ("60m", or seconds). `options`
        are those of `runner.run_plan`; a notebook shows progress."""
        from broadleaf.lab import inline
        from broadleaf.lab.runner import run_plan

        if inline.in_notebook():
            options.setdefault("on_progress", inline.run_progress())
        return run_plan(self, budget_s=_seconds(budget), **options)

    def runs(self, where: str | None = None, response: str = "time_per_task_us") -> pd.DataFrame:
        """The runs with a result; `where` keeps those whose configuration satisfies an expression over the factors.
        `response` is what their column `y_us` is of."""
        from broadleaf.lab.analysis.frame import load

        return load(self.runs_path, self.factors, where, response)

    def deltas(self, where: str | None = None, pairing: Literal["cell", "block", "cross"] = "cell") -> pd.DataFrame:
        """The table of every X and X + treatment among the runs."""
        from broadleaf.lab.deltas import deltas

        return deltas(self.runs(), self.factors, pairing, where)

    def fit(
        self,
        scale: Literal["auto", "log", "us", "rate"] = "log",
        response: str = "time_per_task_us",
        **options: Any,
    ) -> Fit:
        """The model of main effects and pairs over the factors that were varied. `options` are those of
        `analysis.fit.fit`."""
        from broadleaf.lab.analysis.fit import fit

        runs = self.runs(response=response)
        return fit([f for f in self.factors if runs[f.name].nunique() > 1], runs, scale, **options)

    def path(
        self,
        order: str | Sequence[str | tuple[str, Level]] = "greedy",
        scale: Literal["log", "us", "rate"] = "us",
        all_steps: bool = False,
    ) -> AppliedPath:
        """From the slow to the fast setting: "greedy", "nice", "shapley", or factors in an order of your own."""
        from broadleaf.lab.analysis import failures, paths

        # What fails is in no path that the laboratory chooses; one that you name is yours.
        made, rules = self.fit("log"), failures.without(self, failures.of_study(self.runs_path, self.factors)).rules()
        match order:
            case "greedy":
                return paths.greedy(made, rules, scale, all_steps)
            case "nice":
                return paths.nice(made, rules, scale, all_steps)
            case "shapley":
                return paths.shapley(made, None, scale)
            case str():
                raise DesignError(f"no order {order!r}: choose greedy, nice or shapley, or give a list of factors.")
        return paths.custom(made, order, self.rules(), scale)

    def pca(self, log2: bool = False, **options: Any) -> Pca:
        """Principal components of the measured random orders. `options` are those of `analysis.pca.pca`."""
        from broadleaf.lab.analysis.paths import path_vectors
        from broadleaf.lab.analysis.pca import pca

        return pca(path_vectors(self.runs(), self.factors, log2), **options)

    def compare(self, patch: str | Path, budget: str | float | None = None, **options: Any) -> Comparison:
        """Would this patch help or hinder? `options` are those of `compare.compare`."""
        from broadleaf.lab.compare import compare, patched

        return compare(self, *patched(Path(patch)), budget_s=_seconds(budget), **options)

    def tune(self, budget: str | float | None = None, runs: int | None = None, **options: Any) -> Tuned:
        """Searches the best setting within `budget` or a number of runs, and proves it on fresh ones. `options` are
        those of `tune.tuner.tune`."""
        from broadleaf.lab.environments import with_excludes
        from broadleaf.lab.tune.measured import MeasuredRuns, known_trials
        from broadleaf.lab.tune.meter import Budget
        from broadleaf.lab.tune.tuner import tune

        study = with_excludes(self)
        known = known_trials(study)
        with MeasuredRuns(study) as evaluate:
            return tune(study, evaluate, Budget(runs, _seconds(budget)), known=known, **options)

    def settle(self, most_runs: int | None = None, budget: str | float | None = None, **options: Any) -> Settler:
        """Makes runs that it chooses itself until every question is decided. `options` are those of
        `settle.measured.settle`; a notebook shows what is decided."""
        from broadleaf.lab import inline
        from broadleaf.lab.settle.measured import settle

        if inline.in_notebook():
            options.setdefault("say", inline.said())
        return settle(self, most_runs, budget_s=_seconds(budget), **options)

    def recommend(self, most_tier: int = 4) -> Recommendation:
        """The settings that the runs prove to help, of at most this tier."""
        from broadleaf.lab.recommend import recommend

        return recommend(self, most_tier)

    def figures(self) -> Figures:
        """Every figure of the report, to be shown one by one: `figures["drift"]`, `figures[22]`."""
        from broadleaf.lab.figures.registry import draw_all
        from broadleaf.lab.inline import Figures
        from broadleaf.lab.report.collect import collect

        evidence = collect(self).evidence
        assert evidence is not None, "collect() fills it in"
        return Figures(draw_all(evidence))

    def _repr_html_(self) -> str:
        from broadleaf.lab.inline import study_html

        return study_html(self)

    def report(self, folder: str | Path | None = None) -> Report:
        """Writes the offline HTML report with its figures and tables, into `folder` or `report` beside the runs."""
        from broadleaf.lab.report.build import write

        return write(self, None if folder is None else Path(folder))

    @property
    def runs_path(self) -> Path:
        """Where the runs are."""
        return self.directory / "runs.csv"


def _seconds(budget: str | float | None) -> float | None:
    from broadleaf.lab.study_file import parse_duration_s

    return None if budget is None else parse_duration_s(budget, "budget")
