"""`broadleaf-lab settle`: measures until every question is decided."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from broadleaf_lab.cli.judging import JudgingCommand
from broadleaf_lab.cli.options import load_study, study_argument
from broadleaf_lab.cli.run.options import quiet, quiet_options, seconds
from broadleaf_lab.cli.terminal import console, require
from broadleaf_lab.comparisons.exit_codes import UNDECIDED

if TYPE_CHECKING:
    from broadleaf_lab.settle.settler import Question


@click.command("settle", cls=JudgingCommand)
@study_argument
@click.option("--runs", "max_runs", type=click.IntRange(40), metavar="N",
              help="Maximum number of runs; by default as many as `broadleaf-lab plan` would make.")  # fmt: skip
@click.option("--budget", "budget_s", callback=seconds, metavar="TIME", help="Maximum time, such as 60m.")
@click.option("--seed", type=int, default=1, show_default=True, help="Seed for the choice of runs.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON object.")
@quiet_options
def command(
    study_path: Path,
    max_runs: int | None,
    budget_s: float | None,
    seed: int,
    as_json: bool,
    max_busy_cores: float,
    max_wait_s: float,
) -> None:
    """Choose runs, make them, and stop when every question is decided.

    After each block, chooses the next runs to settle the open questions. Verdicts are valid although the results are
    checked many times. Writes the runs to runs.csv. Runs that are already there do not count, because they were not
    chosen blindly.

    Exit codes: 0 everything is decided; 2 a wrong option; 3 could not run; 4 something is not decided.
    """
    require(("numpy", "scipy"), "`broadleaf-lab settle`")
    from broadleaf_lab.run.single import Quiet
    from broadleaf_lab.settle.measured import settle

    study = load_study(study_path)
    limits: Quiet = quiet(max_busy_cores, max_wait_s)
    found = settle(
        study, max_runs, budget_s=budget_s, seed=seed, quiet=limits, say=lambda line: click.echo(line, err=True)
    )
    questions = list(found.questions.values())
    if as_json:
        click.echo(json.dumps({"runs": len(found.rows), "questions": [_plain(it) for it in questions]}, indent=1))
    else:
        out = console()
        for number, line in enumerate([found.sentence, *(it.sentence for it in questions)]):
            out.print(line, style="bold" if number == 0 else None, markup=False)
    if any(it.state != "decided" for it in questions):
        sys.exit(UNDECIDED)


def _plain(it: Question) -> dict[str, object]:
    from broadleaf_lab.spec.factors import column_value

    return {
        "factor": it.factor,
        "level": column_value(it.level),
        "state": it.state,
        "word": it.verdict.word if it.verdict else "unknown",
        "sentence": it.sentence,
        "waits_for": list(it.waits_for),
    }
