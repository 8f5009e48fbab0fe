"""`broadleaf-lab status`: the progress of a study."""

from __future__ import annotations

import statistics
from collections import Counter
from pathlib import Path

import click

from broadleaf_lab.cli.options import load_study, study_argument
from broadleaf_lab.cli.terminal import console
from broadleaf_lab.text import duration

_ERRORS_SHOWN = 5


@click.command("status")
@study_argument
def command(study_path: Path) -> None:
    """Show the progress of a study."""
    from rich.table import Table

    from broadleaf_lab.designs.plan import Plan
    from broadleaf_lab.run.planned import PLAN_FILE, remaining
    from broadleaf_lab.spec.factors import config_id
    from broadleaf_lab.spec.runs import read_runs

    study = load_study(study_path)
    out = console()
    rows = read_runs(study.runs_path, study.factors)
    path = study.directory / PLAN_FILE
    out.print(f"study {study.name}: {len(study.factors)} factors, {len(study.constraints)} constraints", markup=False)
    if path.exists():
        plan = Plan.load(path)
        left = remaining(study, plan, rows)
        spent = [row["duration_s"] for row in rows if row["status"] != "skipped"]
        eta = f", about {duration(len(left) * statistics.fmean(spent))} left" if left and spent else ""
        out.print(f"plan: {len(plan.rows) - len(left)} of {len(plan.rows)} runs made{eta}")
    else:
        out.print("plan: none yet; `broadleaf-lab plan` makes one")
    if not rows:
        return
    table = Table(box=None, pad_edge=False)
    statuses = [status for status, _ in Counter(row["status"] for row in rows).most_common()]
    table.add_column("purpose")
    for status in statuses:
        table.add_column(status, justify="right")
    by_purpose: dict[str, Counter[str]] = {}
    for row in rows:
        by_purpose.setdefault(row["purpose"], Counter())[row["status"]] += 1
    for purpose, counts in sorted(by_purpose.items()):
        table.add_row(purpose or "-", *(str(counts[status]) for status in statuses))
    out.print(table)
    baseline_id = config_id(study.baseline, study.factors)
    times = [r["time_per_task_us"] for r in rows if r["config_id"] == baseline_id and r["status"] == "ok"]
    if len(times) > 1:
        spread = statistics.stdev(times) / statistics.fmean(times)
        median = statistics.median(times)
        out.print(f"baseline: {median:,.4g} us/task, spread {100 * spread:.1f} % in {len(times)} runs")
    if flags := Counter(flag for row in rows for flag in (row["flags"] or "").split()):
        out.print("flags: " + ", ".join(f"{flag} {n}" for flag, n in flags.most_common()))
    errors = Counter(f"{row['status']}: {row['error']}" for row in rows if row["status"] != "ok")
    for error, n in errors.most_common(_ERRORS_SHOWN):
        out.print(f"{n} x {error}", markup=False)
