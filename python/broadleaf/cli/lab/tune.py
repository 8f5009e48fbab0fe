"""`broadleaf lab tune`."""

from __future__ import annotations

import json
from pathlib import Path

import click

from broadleaf.cli.console import console
from broadleaf.cli.lab.options import load_study, study_argument

_ALGORITHMS = ("tpe", "greedy", "ga", "random")


@click.command("tune")
@study_argument
@click.option("--budget", metavar="TIME", help="Time to use, such as 30m; the study's own if left out.")
@click.option("--runs", type=click.IntRange(1), metavar="N", help="Most runs to make.")
@click.option("--algorithm", type=click.Choice(_ALGORITHMS), default="tpe", show_default=True,
              help="How to search; the others are there to compare with.")  # fmt: skip
@click.option("--seed", type=int, default=1, show_default=True, help="Of the search and of every order.")
@click.option("--output", type=click.Path(file_okay=False, path_type=Path), metavar="DIR",
              help="Where tuned.toml and tuned.json go; the study's directory if left out.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="The result as one JSON object.")
def command(
    study_path: Path,
    budget: str | None,
    runs: int | None,
    algorithm: str,
    seed: int,
    output: Path | None,
    as_json: bool,
) -> None:
    """Search the best setting of the workload of STUDY, and prove it on fresh runs.

    The default is recommended unless something is faster with an interval that leaves out 1.
    """
    from broadleaf.lab.study_file import parse_duration_s
    from broadleaf.lab.tune import outcome
    from broadleaf.lab.tune.measured import MeasuredRuns, known_trials, with_excluded_patches
    from broadleaf.lab.tune.meter import Budget
    from broadleaf.lab.tune.tuner import tune

    study = with_excluded_patches(load_study(study_path))
    seconds = parse_duration_s(budget, "--budget") if budget is not None else None
    if seconds is None and runs is None:
        seconds = study.design.budget_s

    def say(line: str) -> None:
        click.echo(line, err=True)

    limits = Budget(runs, seconds)
    # Another algorithm is there to compare with: it starts from nothing.
    known = known_trials(study) if algorithm == "tpe" else []
    with MeasuredRuns(study, say=say) as evaluate:
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
