"""`broadleaf lab tune`: the best setting of a workload, proven on fresh runs."""

from __future__ import annotations

import json
from pathlib import Path

import click

from broadleaf.cli.console import console
from broadleaf.cli.extras import require
from broadleaf.cli.lab.options import load_study, study_argument
from broadleaf.cli.lab.running import quiet, quiet_options, seconds

_ALGORITHMS = ("tpe", "greedy", "ga", "random")


@click.command("tune")
@study_argument
@click.option("--budget", "budget_s", callback=seconds, metavar="TIME",
              help="Time to use, such as 30m; the study's own if neither this nor --runs is given.")  # fmt: skip
@click.option("--runs", type=click.IntRange(1), metavar="N", help="Most runs to make.")
@click.option("--algorithm", type=click.Choice(_ALGORITHMS), default="tpe", show_default=True,
              help="How to search; the others are there to compare with.")  # fmt: skip
@click.option("--seed", type=int, default=1, show_default=True, help="Of the search and of every order.")
@click.option("--output", type=click.Path(file_okay=False, path_type=Path), metavar="DIR",
              help="Where tuned.toml and tuned.json go; the study's directory if left out.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="The result as one JSON object.")
@quiet_options
def command(
    study_path: Path,
    budget_s: float | None,
    runs: int | None,
    algorithm: str,
    seed: int,
    output: Path | None,
    as_json: bool,
    max_busy_cores: float,
    max_wait_s: float,
) -> None:
    """Search for the best setting of the workload of STUDY, and prove it on fresh runs.

    The default is recommended unless something is faster with an interval that leaves out 1. Runs that runs.csv has
    already guide the search.
    """
    require("lab", ("numpy", "optuna"), "`broadleaf lab tune`")
    from broadleaf.lab.environments import with_excludes
    from broadleaf.lab.tune import outcome
    from broadleaf.lab.tune.measured import MeasuredRuns, known_trials
    from broadleaf.lab.tune.meter import Budget
    from broadleaf.lab.tune.tuner import tune

    study = with_excludes(load_study(study_path))
    if budget_s is None and runs is None:
        budget_s = study.design.budget_s

    def say(line: str) -> None:
        click.echo(line, err=True)

    limits = Budget(runs, budget_s)
    # Another algorithm is there to compare with: it starts from nothing.
    known = known_trials(study) if algorithm == "tpe" else []
    with MeasuredRuns(study, quiet=quiet(max_busy_cores, max_wait_s), say=say) as evaluate:
        tuned = tune(study, evaluate, limits, algorithm=algorithm, known=known, seed=seed, say=say)
    directory = output or study.directory
    directory.mkdir(parents=True, exist_ok=True)
    written = outcome.write(study, tuned, directory)
    if as_json:
        click.echo(json.dumps(outcome.to_dict(study, tuned)))
        return
    out = console()
    for number, line in enumerate(outcome.sentences(study, tuned)):
        out.print(line, style="bold" if number == 0 else None, markup=False)
    for file in written:
        out.print(f"written: {file}", markup=False)
