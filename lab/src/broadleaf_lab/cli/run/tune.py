"""`broadleaf-lab tune`: the best setting of a workload, proven on fresh runs."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

from broadleaf_lab.cli.judging import JudgingCommand
from broadleaf_lab.cli.options import load_study, study_argument
from broadleaf_lab.cli.run.options import quiet, quiet_options, seconds
from broadleaf_lab.cli.terminal import console, require

MAY_FAIL = 1
"""Exit code where what is recommended may fail more than the default."""
_ALGORITHMS = ("tpe", "greedy", "random")


@click.command("tune", cls=JudgingCommand)
@study_argument
@click.option("--budget", "budget_s", callback=seconds, metavar="TIME",
              help="Time to spend, such as 30m; by default the study's, unless --runs is given.")  # fmt: skip
@click.option("--runs", type=click.IntRange(1), metavar="N", help="Maximum number of runs to make.")
@click.option("--against", "against", multiple=True, metavar="COLUMN",
              help="Another response, such as max_rss_kb: also show how much of it each gain in time costs. May be "
                   "given several "
              "times.")  # fmt: skip
@click.option("--algorithm", type=click.Choice(_ALGORITHMS), default="tpe", show_default=True,
              help="Search algorithm; the others are for comparison with the default.")  # fmt: skip
@click.option("--seed", type=int, default=1, show_default=True, help="Seed for the search and for the order of runs.")
@click.option("--output", type=click.Path(file_okay=False, path_type=Path), metavar="DIR",
              help="Directory for tuned.toml and tuned.json; by default the study's.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON object.")
@quiet_options
def command(
    study_path: Path,
    budget_s: float | None,
    runs: int | None,
    against: tuple[str, ...],
    algorithm: str,
    seed: int,
    output: Path | None,
    as_json: bool,
    max_busy_cores: float,
    max_wait_s: float,
) -> None:
    """Search for the best setting of the workload of STUDY, and prove it on fresh runs.

    The default is recommended unless something is faster with an interval that excludes 1. Runs that are already in
    runs.csv guide the search. A setting that is proven to fail more often than its default is left out.

    Exit codes: 0 the recommendation stands; 1 the recommended setting may fail more often than the default; 2 a
    wrong option; 3 could not run.
    """
    require(("numpy", "optuna"), "`broadleaf-lab tune`")
    from broadleaf_lab.analysis.frame import TIME
    from broadleaf_lab.run.environments.environment import with_excludes
    from broadleaf_lab.tune import outcome
    from broadleaf_lab.tune.measured import MeasuredRuns, known_trials
    from broadleaf_lab.tune.meter import Budget
    from broadleaf_lab.tune.pareto import pareto
    from broadleaf_lab.tune.tuner import tune

    study = with_excludes(load_study(study_path))
    if budget_s is None and runs is None:
        budget_s = study.design.budget_s

    def say(line: str) -> None:
        click.echo(line, err=True)

    limits = Budget(runs, budget_s)
    # Another algorithm is for comparison: it starts from nothing.
    known = known_trials(study) if algorithm == "tpe" else []
    with MeasuredRuns(study, quiet=quiet(max_busy_cores, max_wait_s), say=say) as evaluate:
        tuned = tune(study, evaluate, limits, algorithm=algorithm, known=known, seed=seed, say=say)
    # What took the whole budget to find is said before anything can go wrong with writing it.
    front = pareto(study, (TIME, *against)) if against else []
    if as_json:
        told = outcome.to_dict(study, tuned)
        if against:
            told["pareto"] = outcome.front_dicts(front)
        click.echo(json.dumps(told))
    else:
        out = console()
        for number, line in enumerate(outcome.sentences(study, tuned)):
            out.print(line, style="bold" if number == 0 else None, markup=False)
        for line in outcome.front_sentences(study, front):
            out.print(line, markup=False)
    for file in outcome.write(study, tuned, output or study.directory):
        click.echo(f"written: {file}", err=True)
    if tuned.failing:
        sys.exit(MAY_FAIL)
