"""`broadleaf-lab run`: makes the runs that are planned and not yet made."""

from __future__ import annotations

import sys
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING

import click

from broadleaf_lab.cli.options import load_study, study_argument
from broadleaf_lab.cli.run.options import quiet, quiet_options, seconds
from broadleaf_lab.cli.terminal import console
from broadleaf_lab.text import duration

if TYPE_CHECKING:
    from rich.console import Group

    from broadleaf_lab.run.planned import Progress
    from broadleaf_lab.spec.runs import Run
    from broadleaf_lab.study import Study

_SHOWN = 8
NONE_ENDED_WELL = 3
"""Exit code where runs were made and none of them can be used."""
_STATUS_STYLE = {"ok": "green", "skipped": "yellow", "invalid": "yellow"}


@click.command("run")
@study_argument
@click.option("--budget", "budget_s", callback=seconds, metavar="TIME",
              help="Stop after this time, such as 60m; by default the study file's. A run in progress is "
                   "completed.")  # fmt: skip
@click.option("--runs", "max_runs", type=click.IntRange(1), help="Stop after this many runs.")
@click.option("--retry-failed", is_flag=True, help="Repeat runs without a result.")
@quiet_options
def command(
    study_path: Path,
    budget_s: float | None,
    max_runs: int | None,
    retry_failed: bool,
    max_busy_cores: float,
    max_wait_s: float,
) -> None:
    """Make the runs that are planned and not yet measured.

    Makes the plan first if there is none. You can stop or even kill the command at any time: start it again to
    continue. Stops early if the first runs all fail. Failed runs are counted, and are rows in runs.csv.

    Exit codes: 0 runs were made, or there was nothing to do; 2 a wrong option; 3 no run succeeded.
    """
    from rich.live import Live

    from broadleaf_lab.run.planned import run_plan

    study = load_study(study_path)
    out = console()
    view = _View(study)
    live = Live(console=out, refresh_per_second=4, transient=True) if out.is_terminal else None

    def on_progress(progress: Progress) -> None:
        if live is not None:
            live.update(view.table(progress))
        elif progress.run is not None:
            out.print(view.line(progress), markup=False)

    if live is not None:
        live.start()
    try:
        summary = run_plan(
            study,
            budget_s=budget_s,
            max_runs=max_runs,
            retry_failed=retry_failed,
            quiet=quiet(max_busy_cores, max_wait_s),
            on_progress=on_progress,
            say=lambda text: out.print(text, markup=False),
        )
    finally:
        if live is not None:
            live.stop()
    counts = ", ".join(f"{n} {status}" for status, n in sorted(summary.statuses.items())) or "nothing to do"
    now = "" if summary.made == summary.done else f", {summary.made} of them now"
    out.print(f"{summary.done} of {summary.total} runs made{now} ({counts}) in {duration(summary.elapsed_s)}")
    if summary.busy:
        out.print(
            f"{summary.busy} of {summary.made} runs were made while the machine was busy, and are flagged: their times "
            "vary more; stop other programs, or do more runs"
        )
    if summary.noisy_blocks:
        out.print(f"noisy blocks, flagged: {', '.join(map(str, summary.noisy_blocks))}")
    if summary.hopeless:
        out.print(f"no run succeeded; the last error: {summary.error}", markup=False)
    if summary.stopped == "failing":
        out.print(
            f"stopped: nothing can be measured like this. Fix the cause, then `broadleaf-lab run --retry-failed "
            f"{study.directory}`",
            markup=False,
        )
    elif summary.stopped:
        what = {"budget": "the budget is spent", "runs": "the requested number of runs was made"}[summary.stopped]
        out.print(f"stopped: {what}; `broadleaf-lab run {study.directory}` continues", markup=False)
    if summary.hopeless:
        sys.exit(NONE_ENDED_WELL)


class _View:
    """What is shown while runs are made."""

    def __init__(self, study: Study) -> None:
        self.study = study
        self.last: deque[Run] = deque(maxlen=_SHOWN)

    def line(self, progress: Progress) -> str:
        """One run in one line."""
        run = progress.run
        assert run is not None
        return f"{progress.done}/{progress.total}  {run['run_id']}  {_figure(run)}  {self._config(run)}"

    def table(self, progress: Progress) -> Group:
        """The last runs, and the progress."""
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        if progress.run is not None:
            self.last.append(progress.run)
        table = Table(box=None, pad_edge=False)
        for name in ("run", "block", "purpose", "status", "us/task", "flags", "configuration"):
            table.add_column(name, justify="right" if name in ("block", "us/task") else "left", no_wrap=True)
        for run in self.last:
            style = _STATUS_STYLE.get(run["status"], "red")
            us = run["time_per_task_us"]
            table.add_row(
                run["run_id"], str(run["block"]), run["purpose"], Text(run["status"], style=style),
                f"{us:,.4g}" if us is not None else "", run["flags"], Text(run["error"] or self._config(run)),
            )  # fmt: skip
        left = f", about {duration(progress.left_s)} left" if progress.left_s else ""
        statuses = ", ".join(f"{n} {status}" for status, n in progress.statuses.items())
        foot = f"{progress.done} of {progress.total} runs, {statuses}, {duration(progress.elapsed_s)}{left}"
        return Group(table, ProgressBar(total=progress.total, completed=progress.done, width=60), Text(f"  {foot}"))

    def _config(self, run: Run) -> str:
        from broadleaf_lab.spec.factors import describe

        return describe({f.name: run[f.column] for f in self.study.factors}, self.study.factors)


def _figure(run: Run) -> str:
    if run["status"] == "ok":
        return f"{run['time_per_task_us']:,.4g} us/task"
    return f"{run['status']}: {run['error']}"
