"""Tuning a real workload: runs in separate processes, recorded in the study's runs.csv."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING

from broadleaf_lab.analysis.failures import BAD
from broadleaf_lab.run.environments.machine import machine_id
from broadleaf_lab.run.planned import ready
from broadleaf_lab.run.single import Quiet, record
from broadleaf_lab.spec.factors import Config
from broadleaf_lab.spec.runs import RunsFile, read_runs
from broadleaf_lab.spec.study import StudySpec
from broadleaf_lab.tune.meter import Trial

if TYPE_CHECKING:
    from broadleaf_lab.run.calibrate import Calibration


class MeasuredRuns:
    """An `Evaluate` that runs a study's workload on this machine. A context manager: runs.csv is open inside it."""

    def __init__(
        self,
        study: StudySpec,
        *,
        quiet: Quiet | None = None,
        say: Callable[[str], None] = lambda line: None,
    ) -> None:
        """Builds what is needed and calibrates, unless that was done before. Raises RunError if nothing can be run."""
        self.calibration: Calibration
        self._environments, self.calibration = ready(study, (), quiet=quiet, say=say)
        self._order: dict[int, int] = {}
        self._runs = RunsFile(study.runs_path, study.factors, study.responses)
        self._runner = self.calibration.runner(self._environments, quiet=quiet, made=self._runs.rows)
        # Blocks of an earlier session keep their numbers.
        self._before = max((run["block"] or 0 for run in self._runs.rows), default=0)

    def __call__(self, config: Config, /, *, purpose: str, block: int) -> float | None:
        order = self._order[block] = self._order.get(block, 0) + 1
        row = record(
            self._runner, self._runs, config, purpose=_PURPOSES.get(purpose, purpose),
            block=self._before + block, order_in_block=order, replicate=1,
        )  # fmt: skip
        return float(row["time_per_task_us"]) if row["status"] == "ok" else None

    def __enter__(self) -> MeasuredRuns:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._runs.close()


_PURPOSES = {"pilot": "tune", "screen": "tune", "race": "tune", "ablate": "tune"}
"""runs.csv knows two purposes here: what looked for the best, and the fresh runs that confirm it."""


def known_trials(study: StudySpec) -> list[Trial]:
    """The runs of this machine in runs.csv, whatever they were made for, including failed ones."""
    here = machine_id()
    return [
        Trial(
            {f.name: run[f.column] for f in study.factors}, run["config_id"],
            run["time_per_task_us"] if run["status"] == "ok" else None, run["purpose"], run["block"] or 0,
        )
        for run in read_runs(study.runs_path, study.factors)
        if run["status"] in ("ok", *BAD) and run["machine_id"] == here
    ]  # fmt: skip
