"""A study as its file describes it: a workload, its score, its factors and constraints, and the design of its runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from broadleaf_lab.errors import StudyFileError
from broadleaf_lab.spec.constraints import Constraints
from broadleaf_lab.spec.factors import Factor, Level, baseline

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
    """How the number of tasks of all runs is chosen: so that the fastest configuration takes `min_s` seconds.
    If the slowest would take more than twenty times as long, each has its own number. `n_tasks` fixes it instead."""

    min_s: float = 0.5
    n_tasks: int | None = None
    min_tasks: int = 1
    max_tasks: int = 1_000_000


@dataclass(frozen=True, slots=True)
class DesignSpec:
    """Which configurations to run.

    `paths` is the number of random orders in addition to the design (None: the design's own choice), `edges` the number
    of starting points of one-flip neighbourhoods, `runs` the number of runs of `random`, `dopt` and `balanced`, `rows`
    the configurations of `explicit`, `factor` the one that `sweep` varies. `noise_pct` is the expected spread from run
    to run, for power and for the estimate of what the plan can show. `budget_s` limits the time of `run`.
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
class StudySpec:
    """What a study varies, how it is scored, and where its runs are stored.

    `broadleaf_lab.Study` adds the operations on it.
    """

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
    """A column of runs.csv that explains some of what varies between runs alike, such as `instructions_per_task`."""
    settings: Mapping[str, object] = field(default_factory=dict)
    """The keys of `[study]` that only the runner reads, as the file has them."""
    function: Callable[..., Any] | None = field(default=None, compare=False, repr=False)

    def factor(self, name: str) -> Factor:
        """The factor with that name."""
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
        two that exclude each other.
        """
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
            # A factor that did not exist may exist now.
            if len(left) == len(waiting):
                return config
            waiting = left

    def rules(self) -> Constraints:
        """The constraints in a form that can be evaluated."""
        return Constraints(self.factors, self.constraints)

    @property
    def runs_path(self) -> Path:
        """Where the runs are."""
        return self.directory / "runs.csv"
