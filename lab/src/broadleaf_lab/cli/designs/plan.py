"""`broadleaf-lab plan`."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from broadleaf_lab.cli.options import load_study, study_argument
from broadleaf_lab.cli.terminal import compute_in_one_thread, console, fail
from broadleaf_lab.spec.study import DESIGNS
from broadleaf_lab.text import duration

if TYPE_CHECKING:
    from broadleaf_lab.designs.plan import Plan
    from broadleaf_lab.designs.power import Precision
    from broadleaf_lab.study import Study

_SECONDS_PER_RUN = 4.0


@click.command("plan")
@study_argument
@click.option("--kind", type=click.Choice(DESIGNS), help="Design to use instead of the study file's.")
@click.option("--paths", type=click.IntRange(0), metavar="N", help="Number of random orders to add to the design.")
@click.option("--runs", type=click.IntRange(1), metavar="N", help="Number of runs for dopt, balanced or random.")
@click.option("--replicates", type=click.IntRange(1), metavar="N", help="Number of replicates of each run.")
@click.option("--seed", type=click.IntRange(0), metavar="N", help="Seed for the choice and order of runs.")
@click.option("--seconds", type=click.FloatRange(0, min_open=True), metavar="S",
              help="Seconds per run, for the estimate; by default the measured time, or 4 if no run has been "
              "measured.")  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Show the plan but write nothing.")
@click.option("--force", is_flag=True, help="Replace a plan even if some of its runs have been made.")
@click.option("--json", "as_json", is_flag=True, help="Print everything as one JSON object.")
def command(
    study_path: Path,
    kind: str | None,
    paths: int | None,
    runs: int | None,
    replicates: int | None,
    seed: int | None,
    seconds: float | None,
    dry_run: bool,
    force: bool,
    as_json: bool,
) -> None:
    """Choose the runs of a study and show what they can detect.

    Writes plan.json beside the study file. The same study and seed give the same plan.
    """
    compute_in_one_thread()
    study = load_study(study_path)
    given: dict[str, Any] = {"kind": kind, "paths": paths, "runs": runs, "replicates": replicates, "seed": seed}
    study = replace(study, design=replace(study.design, **{k: v for k, v in given.items() if v is not None}))
    target = study.directory / "plan.json"
    if not dry_run and not force and target.exists() and study.runs_path.exists():
        fail(
            f"{study.runs_path} holds runs of {target}, and a new plan would renumber them. Preview it with "
            "--dry-run, or replace it with --force and move runs.csv away."
        )
    faults = _faults(study)
    plan = study.plan()
    each_s, origin = (seconds, "as given") if seconds is not None else _seconds_per_run(study)
    found = _precision(plan, study)
    if as_json:
        click.echo(json.dumps({**_as_dict(plan, study, each_s, found), "faults": faults}, indent=1))
    else:
        _show(plan, study, each_s, origin, found)
        for fault in faults:
            console().print(f"cannot be run here: {fault}", style="yellow", markup=False)
    if dry_run:
        return
    plan.save(target)
    if not as_json:
        console().print(f"\nWritten to {target}. Measure with: broadleaf-lab run {study_path}", markup=False)


def _faults(study: Study) -> list[str]:
    """Whatever would make every run of some level fail or be skipped, found before the first run."""
    from broadleaf_lab.run.environments.environment import Environments

    if not any(factor.kind in ("patch", "git", "python") for factor in study.factors):
        return []
    return Environments(study).faults()


def _seconds_per_run(study: Study) -> tuple[float, str]:
    from statistics import median

    if study.runs_path.exists():
        from broadleaf_lab.spec.runs import read_runs

        times = [row["duration_s"] for row in read_runs(study.runs_path) if row.get("duration_s")]
        numbers = [float(time) for time in times if isinstance(time, int | float)]
        if numbers:
            return median(numbers), f"the median of {len(numbers)} runs"
    return _SECONDS_PER_RUN, "assumed"


def _precision(plan: Plan, study: Study) -> list[Precision]:
    from broadleaf_lab.designs.power import precision

    return precision(plan, study.factors, study.design.noise_pct)


def _as_dict(plan: Plan, study: Study, each_s: float, found: list[Precision]) -> dict[str, Any]:
    return {
        "study": study.name,
        "runs": len(plan),
        "counts": plan.counts(),
        "estimated_s": len(plan) * each_s,
        "noise_pct": study.design.noise_pct,
        "precision": [
            {"name": p.name, "kind": p.kind, "se": None if math.isinf(p.se) else p.se, "residual_df": p.residual_df}
            for p in found
        ],
        **plan.spec,
    }


_PURPOSES = {
    "design": "the design: effects and pairs",
    "path": "random orders: X and X + treatment, shares, components",
    "edge": "neighbourhoods: X and X + treatment",
    "control": "baseline and all-on in every block: drift and noise",
    "explicit": "the rows of the study file",
    "sweep": "one factor varied",
}


def _show(plan: Plan, study: Study, each_s: float, origin: str, found: list[Precision]) -> None:
    from rich.markup import escape
    from rich.table import Table

    from broadleaf_lab.designs.power import smallest_pct

    out = console()
    out.print(f"[bold]{escape(study.name)}[/]: {len(study.factors)} factors, {len(study.constraints)} constraints\n")
    table = Table("purpose", "what for", box=None, pad_edge=False)
    table.add_column("runs", justify="right")
    table.add_column("time", justify="right")
    for purpose, count in sorted(plan.counts().items(), key=lambda item: -item[1]):
        table.add_row(purpose, _PURPOSES.get(purpose, ""), str(count), duration(count * each_s))
    table.add_row("[bold]all[/]", f"in {plan.spec['blocks']} blocks", f"[bold]{len(plan)}[/]",
                  f"[bold]{duration(len(plan) * each_s)}[/]")  # fmt: skip
    out.print(table)
    out.print(f"[dim]at {duration(each_s)} per run, {origin}[/]\n")
    for design in plan.spec["designs"]:
        out.print(f"[bold]{design['kind']}[/]: {_account(design)}")
    for name, text in plan.spec["excludes"].items():
        out.print(f"[yellow]kept apart[/] {name}: {escape(text)}")
    _show_precision(study, found, smallest_pct)
    budget = study.design.budget_s
    if budget is not None and len(plan) * each_s > budget:
        out.print(
            f"\n[yellow]More than the budget of {duration(budget)}[/]: about {int(budget / each_s)} of {len(plan)} "
            "runs will be made. Reduce design.paths, drop factors, or increase design.budget."
        )


def _account(design: dict[str, Any]) -> str:
    """A description of a design in words."""
    said = [f"{design['runs']} runs"]
    if design.get("resolution"):
        said.append(f"resolution {design['resolution']}")
    if design.get("blocks"):
        said.append(f"{design['blocks']} blocks whose differences are not mixed with any effect or pair")
    if "d_efficiency_pct" in design:
        said.append(f"{design['terms']} terms{'' if design['pairs'] else ' (main effects only)'}")
        said.append(f"D-efficiency {design['d_efficiency_pct']:g} %, largest variance inflation {design['max_vif']:g}")
    if design.get("not_estimable"):
        said.append(f"constraints make these impossible to estimate: {', '.join(design['not_estimable'])}")
    if "paths" in design:
        said.append(f"{design['paths']} orders" + (f", {design['incomplete']} end early because of constraints" if
                    design["incomplete"] else ""))  # fmt: skip
    if design.get("impossible"):
        said.append(f"{design['impossible']} combinations excluded by constraints")
    if "pair_imbalance" in design:
        said.append(f"off balance by {design['level_imbalance']:g} (levels) and {design['pair_imbalance']:g} (pairs)")
    return "; ".join(said)


def _show_precision(study: Study, found: list[Precision], smallest_pct: Any) -> None:
    from rich.markup import escape
    from rich.table import Table

    pairs = [p for p in found if p.kind == "pair"]
    table = Table("what it will tell", box=None, pad_edge=False)
    table.add_column("95 % interval", justify="right")
    table.add_column("seen 4 times in 5", justify="right")
    for text, group, comparisons in (
        ("effect of a factor, best and worst known", [p for p in found if p.kind == "main"], 1),
        (f"interaction, {len(pairs)} tested at once", pairs, max(len(pairs), 1)),
    ):
        errors = sorted(p.se for p in group if not math.isinf(p.se))
        if errors:
            low, high = errors[0], errors[-1]
            min_pct, max_pct = (smallest_pct(se, comparisons=comparisons) for se in (low, high))
            table.add_row(text, f"±{196 * low:.1f} to {196 * high:.1f} %", f"{min_pct:.1f} to {max_pct:.1f} %")
    out = console()
    out.print()
    out.print(table)
    nested = study.rules().nested_pairs()
    unknown = [p.name for p in found if math.isinf(p.se) and p.name not in nested]
    if not pairs:
        out.print("[yellow]too few runs to tell pairs apart: main effects only[/]")
    if unknown:
        shown = ", ".join(unknown[:8]) + (f" and {len(unknown) - 8} more" if len(unknown) > 8 else "")
        out.print(f"[yellow]not answered by these runs[/]: {escape(shown)}")
    out.print(f"[dim]if runs of one configuration vary by {study.design.noise_pct:g} % (design.noise_pct)[/]")
