"""`broadleaf-lab history`: which commits changed the speed."""

from __future__ import annotations

import json
from pathlib import Path

import click

from broadleaf_lab.cli.options import load_study
from broadleaf_lab.cli.run.options import quiet, quiet_options, study_option
from broadleaf_lab.cli.terminal import console, require


@click.command("history")
@click.argument("span", metavar="A..B")
@study_option
@click.option("--configs", default="baseline", show_default=True, metavar="NAMES",
              help="Comma-separated: baseline, all-on, best, or settings such as cfg_log=off+prefetch=64.")  # fmt: skip
@click.option(
    "--points", type=click.IntRange(2), metavar="N", help="Number of commits to measure first; by default all."
)
@click.option(
    "--replicates", type=click.IntRange(2), default=5, show_default=True, help="Number of runs for each commit."
)
@click.option("--seed", type=int, default=1, show_default=True, help="Seed for the order of runs.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON object.")
@quiet_options
def command(
    span: str,
    study_path: Path,
    configs: str,
    points: int | None,
    replicates: int,
    seed: int,
    as_json: bool,
    max_busy_cores: float,
    max_wait_s: float,
) -> None:
    """Measure the commits A..B of a study's repository, and find those that changed its speed.

    Builds and runs the commits along first parents in turn. Change points in their medians become candidates, and fresh
    pairs of runs of parent and child decide. Writes the runs to history.csv beside the study file, and the result to
    history.json.
    """
    require(("numpy", "ruptures", "scipy"), "`broadleaf-lab history`")
    from broadleaf_lab.comparisons import history_runs

    study = load_study(study_path)
    names = [name.strip() for name in configs.split(",") if name.strip()]
    measured = history_runs.measure_history(
        study,
        span,
        names,
        points=points,
        replicates=replicates,
        seed=seed,
        quiet=quiet(max_busy_cores, max_wait_s),
        say=lambda line: click.echo(line, err=True),
    )
    # What took hours to find is said before anything can go wrong with writing it.
    out = console()
    if as_json:
        click.echo(json.dumps(measured.to_dict()))
    else:
        for line in measured.sentences():
            out.print(line, markup=False)
    click.echo(f"written: {history_runs.write(measured, study.directory)}", err=True)
