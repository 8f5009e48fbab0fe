"""`broadleaf-lab path`: from the slow to the fast setting, one treatment after the other."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from broadleaf_lab.cli.options import load_study
from broadleaf_lab.cli.terminal import console, fail, require

if TYPE_CHECKING:
    from broadleaf_lab.analysis.paths.path import Path as Steps
    from broadleaf_lab.study import Study

_BAR = 30


@click.command("path")
@click.argument("order", default="greedy", metavar="[greedy|nice|shapley|A,B=LEVEL,...]")
@click.option("--study", "-s", "study_path", type=click.Path(exists=True, path_type=Path), default=".",
              show_default=True, help="Study file, or the directory that contains it.")  # fmt: skip
@click.option("--all", "all_steps", is_flag=True, help="Continue even if no treatment is proven to help.")
@click.option("--again", type=click.IntRange(2), metavar="N",
              help="Add N fresh runs of every configuration on the path to the plan, for "
                   "`broadleaf-lab run`.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print the path as JSON.")
def command(order: str, study_path: Path, all_steps: bool, again: int | None, as_json: bool) -> None:
    """Show the steps from the baseline to the fastest settings, in a chosen order.

    greedy takes the best treatment next; nice does the same within tiers, safe settings first; shapley averages over
    all orders. You can also name the treatments in an order of your own. Shows the new measurements if the path was
    measured again (--again, then run), and otherwise the model's predictions. Writes paths.csv and, if random orders
    were run, path_vectors.csv.
    """
    require(("numpy", "pandas", "scipy"), "`broadleaf-lab path`")
    from broadleaf_lab.analysis import frame as frames
    from broadleaf_lab.analysis.model.fit import fit
    from broadleaf_lab.analysis.paths import remeasure
    from broadleaf_lab.designs.plan import Plan

    study = load_study(study_path)
    runs = frames.load(study.runs_path, study.factors)
    varied = [f for f in study.factors if runs[f.name].nunique() > 1]
    plan_path = study.directory / "plan.json"
    if again is not None:
        if order == "shapley":
            raise click.UsageError("--again needs a single order, but shapley is the average over all orders")
        chosen = _chosen(fit(varied, runs), study, order, all_steps, "us")
        remeasure.plan_again(Plan.load(plan_path), chosen, study.factors, order, again).save(plan_path)
        click.echo(f"{again * (len(chosen.order) + 1)} runs added to {plan_path}: make them with `broadleaf-lab run`")
        return
    plan = Plan.load(plan_path) if plan_path.exists() else None
    us = remeasure.measured_again(plan, runs, study.factors, order, "us") if plan is not None else None
    if us is not None and plan is not None:
        rate = remeasure.measured_again(plan, runs, study.factors, order, "rate")
        assert rate is not None
    else:
        made = fit(varied, runs)
        us, rate = (_chosen(made, study, order, all_steps, scale) for scale in ("us", "rate"))
    if as_json:
        paths = {"us": _plain(us), "rate": _plain(rate)}
        click.echo(json.dumps({"kind": us.kind, "source": us.source, **paths}, indent=1))
    else:
        _show(study, us, rate)
    # What was found is shown first: a full disk must not hide it.
    _write(study, runs, us)
    if not as_json and not us.order:
        fail("no treatment is proven to help, so the path has no steps; --all takes the treatments anyway")


def _show(study: Study, us: Steps, rate: Steps) -> None:
    from broadleaf_lab.analysis import failures

    out = console()
    for sentence in failures.of_study(study.runs_path, study.factors).sentences:
        out.print(sentence, style="bold", markup=False)
    if not us.order:
        return
    out.print(_waterfall(study, us, rate))
    out.print(f"{us.start:,.1f} to {us.end:,.1f} us/task, {rate.start:,.0f} to {rate.end:,.0f} tasks/s; "
              f"{'measured again' if us.source == 'measured' else 'as the model predicts'}.")  # fmt: skip
    if us.source == "model" and us.kind == "greedy":
        out.print(
            "Steps that were chosen because they look fast look faster than they are; --again 5 measures them anew."
        )


def _chosen(made: Any, study: Study, order: str, all_steps: bool, scale: Any) -> Steps:
    from broadleaf_lab.analysis import failures
    from broadleaf_lab.analysis.known import Known
    from broadleaf_lab.analysis.paths import path as paths

    # The laboratory never puts failing settings on a path that it chooses; a path that you name is your choice.
    failed = failures.of_study(study.runs_path, study.factors)
    rules, known = failures.without(study, failed).rules(), Known(made, study.rope_pct, failed)
    if order == "greedy":
        return paths.greedy(made, rules, scale, all_steps, known)
    if order == "nice":
        return paths.nice(made, rules, scale, all_steps, known)
    if order == "shapley":
        return paths.shapley(made, study.all_on, scale)
    entries: list[str | tuple[str, Any]] = []
    for word in order.split(","):
        name, equals, level = word.strip().partition("=")
        entries.append((name, study.factor(name).parse(level)) if equals else study.factor(name).name)
    return paths.custom(made, entries, study.rules(), scale)


def _write(study: Study, runs: Any, path: Steps) -> None:
    import pandas as pd

    from broadleaf_lab.analysis.paths.path import path_vectors
    from broadleaf_lab.errors import AnalysisError
    from broadleaf_lab.spec.runs import replace_file

    rows = [
        {"kind": path.kind, "source": path.source, "step": i, **asdict(step)} for i, step in enumerate(path.order, 1)
    ]
    names = ["kind", "source", "step", "factor", "level", "before", "after", "ci_low", "ci_high", "tier"]
    table = pd.DataFrame(rows, columns=names).rename(
        columns={"before": "before_us", "after": "after_us", "ci_low": "change_low_us", "ci_high": "change_high_us"}
    )
    replace_file(study.directory / "paths.csv", table.to_csv(index=False))
    try:
        vectors = path_vectors(runs, study.factors)
    except AnalysisError:
        # Studies without random orders have none.
        return
    replace_file(study.directory / "path_vectors.csv", vectors.frame.to_csv(index=False))


def _plain(path: Steps) -> dict[str, Any]:
    return {"start": path.start, "end": path.end, "steps": [{**asdict(s), "change": s.change} for s in path.order]}


def _waterfall(study: Study, us: Steps, rate: Steps) -> object:
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    table.add_column("treatment")
    table.add_column("tier", justify="right")
    for name in ("us/task", "change", "95 % interval"):
        table.add_column(name, justify="right")
    table.add_column("")
    for name in ("tasks/s", "change"):
        table.add_column(name, justify="right")
    table.add_column("loses")
    top = max(us.start, *(step.after for step in us.order))
    table.add_row(
        "[dim]baseline[/]", "", f"{us.start:,.1f}", "", "", _bar(0, us.start, top), f"{rate.start:,.0f}", "", ""
    )
    rates = {step.factor: step for step in rate.order}
    for step in us.order:
        other = rates[step.factor]
        name = step.factor if isinstance(step.level, bool) else f"{step.factor}={step.level}"
        interval = f"{step.ci_low:+,.1f} to {step.ci_high:+,.1f}"
        bar = _bar(min(step.before, step.after), max(step.before, step.after), top)
        # Shares averaged over orders have another order on another scale: only their sizes can be compared side by
        # side.
        at = "" if us.kind == "shapley" else f"{other.after:,.0f}"
        table.add_row(escape(name), str(step.tier), f"{step.after:,.1f}", f"{step.change:+,.1f}", interval,
                      f"[{'green' if step.change < 0 else 'red'}]{bar}[/]", at, f"{other.change:+,.0f}",
                      escape(study.factor(step.factor).loses))  # fmt: skip
    return table


def _bar(low: float, high: float, top: float) -> str:
    start, end = (round(_BAR * max(value, 0.0) / top) for value in (low, high))
    return " " * start + "█" * max(end - start, 1)
