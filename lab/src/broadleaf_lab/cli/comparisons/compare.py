"""`broadleaf-lab compare`: would this change help or hinder?"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from broadleaf_lab.cli.judging import JudgingCommand
from broadleaf_lab.cli.options import load_study
from broadleaf_lab.cli.run.options import quiet, quiet_options, seconds, study_option
from broadleaf_lab.cli.terminal import console

if TYPE_CHECKING:
    from broadleaf_lab.spec.runs import Run


@click.command("compare", cls=JudgingCommand)
@click.argument("a", required=False)
@click.argument("b", required=False)
@study_option
@click.option("--patch", type=click.Path(path_type=Path), help="Compare the source with and without this patch.")
@click.option("--contexts", type=click.IntRange(0), default=16, show_default=True,
              help="Number of random contexts, besides the baseline and the fastest known configuration.")  # fmt: skip
@click.option(
    "--pairs", type=click.IntRange(1), default=2, show_default=True, help="Number of pairs of runs in each context."
)
@click.option("--budget", "budget_s", callback=seconds, metavar="TIME", help="Stop after this time, for example 20m.")
@click.option("--seed", type=int, help="Seed for contexts and order; by default the study's.")
@quiet_options
def command(
    a: str | None,
    b: str | None,
    study_path: Path,
    patch: Path | None,
    contexts: int,
    pairs: int,
    budget_s: float | None,
    seed: int | None,
    max_busy_cores: float,
    max_wait_s: float,
) -> None:
    """Judge whether a change would help or hinder.

    Compares B with A: two git refs, or two settings such as `cfg_log=debug` and `cfg_log=off` (`baseline` for none), or
    the source with and without a --patch.

    Exit codes: 0 no harm, 1 hinders or fails more, 2 a wrong option, 3 could not run, 4 undecided.
    """
    from broadleaf_lab.comparisons.compare import compare, patched, side
    from broadleaf_lab.spec.factors import describe

    if (patch is None) == (a is None) or (a is None) != (b is None):
        raise click.UsageError("give either A and B, or --patch FILE")
    out = console()

    def on_run(run: Run) -> None:
        us = run["time_per_task_us"]
        figure = f"{us:,.4g} us/task" if us is not None else f"{run['status']}: {run['error']}"
        of_change = "" if run.get("change") is None else f"{'B' if run['change'] else 'A'}  "
        setting = describe({f.name: run[f.column] for f in study.factors}, study.factors)
        out.print(f"{run['run_id']}  block {run['block']}  {of_change}{setting}  {figure}", markup=False)

    study = load_study(study_path)
    first, second = patched(patch) if patch is not None else (side(study, a or ""), side(study, b or ""))
    found = compare(
        study, first, second, contexts=contexts, pairs=pairs, budget_s=budget_s, seed=seed,
        quiet=quiet(max_busy_cores, max_wait_s), on_run=on_run, say=lambda text: out.print(text, markup=False),
    )  # fmt: skip
    out.print(found.sentence, markup=False, style="bold")
    if found.heterogeneity_p < 0.05:
        out.print(f"The effect differs between contexts (p = {found.heterogeneity_p:.2g}).")
    for moderator in found.moderators:
        levels = ", ".join(f"{level}: x{ratio:.3f}" for level, ratio in moderator.ratios)
        out.print(f"It depends on {moderator.factor} ({levels}; p = {moderator.p:.2g}).", markup=False)
    if found.failed_pairs:
        out.print(f"{found.failed_pairs} pairs with a failed run do not count.")
    sys.exit(found.exit_code)
