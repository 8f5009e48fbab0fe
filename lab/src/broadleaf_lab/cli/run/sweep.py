"""`broadleaf-lab sweep`: a response curve over one factor."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

import click

from broadleaf_lab.cli.options import load_study
from broadleaf_lab.cli.run.options import quiet, quiet_options, study_option
from broadleaf_lab.cli.terminal import add_plain_row, console

if TYPE_CHECKING:
    from broadleaf_lab.spec.runs import Run


@click.command("sweep")
@click.argument("factor")
@study_option
@click.option(
    "--levels", help="Levels separated by commas; a numeric factor accepts any number. By default all levels."
)
@click.option("--in", "context", default="baseline", show_default=True, help="Settings of the other factors, such as "
              "`cfg_log=off,py_jit`.")  # fmt: skip
@click.option(
    "--replicates", type=click.IntRange(1), default=5, show_default=True, help="Number of runs for each level."
)
@quiet_options
def command(
    factor: str,
    study_path: Path,
    levels: str | None,
    context: str,
    replicates: int,
    max_busy_cores: float,
    max_wait_s: float,
) -> None:
    """Vary one numeric factor and show its response curve.

    Ratios are relative to the factor's default in the same round of runs, with 95 % intervals.
    """
    from rich.table import Table

    from broadleaf_lab.comparisons.compare import parse_settings
    from broadleaf_lab.comparisons.sweep import sweep

    study = load_study(study_path)
    out = console()
    chosen = study.factor(factor)

    def on_run(run: Run, made: int, total: int) -> None:
        us = run["time_per_task_us"]
        figure = f"{us:,.4g} us/task" if us is not None else f"{run['status']}: {run['error']}"
        out.print(f"{made}/{total}  {factor}={run[chosen.column]}  {figure}", markup=False)

    found = sweep(
        study,
        chosen,
        levels=[chosen.parse(word) for word in levels.split(",")] if levels else (),
        context={**study.baseline, **parse_settings(study, context)},
        replicates=replicates,
        quiet=quiet(max_busy_cores, max_wait_s),
        on_run=on_run,
        say=out.print,
    )
    table = Table(box=None, pad_edge=False)
    for name in (factor, "runs", "us/task", "tasks/s", f"against {found.reference}", "interval"):
        table.add_column(name, justify="right")
    for point in found.points:
        us, ratio = point.median_us, point.ratio
        failed = f" (+{point.failed} failed)" if point.failed else ""
        add_plain_row(
            table,
            str(point.level),
            f"{point.runs}{failed}",
            f"{us:,.4g}" if us else "",
            f"{1e6 / us:,.0f}" if us else "",
            f"x{math.exp(ratio.estimate):.3f}" if ratio else "",
            f"{math.exp(ratio.low):.3f} to {math.exp(ratio.high):.3f}" if ratio else "",
        )
    out.print(table)
    for low, high, exponent in found.exponents():
        out.print(f"from {low} to {high}: time grows with the power {exponent:+.2f}")
