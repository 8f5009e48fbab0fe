"""`broadleaf-lab why`: what the cells of two settings use, and where their time goes, side by side."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from broadleaf_lab.cli.options import load_study
from broadleaf_lab.cli.run.options import quiet, quiet_options, study_option
from broadleaf_lab.cli.terminal import console, plain_table, require

if TYPE_CHECKING:
    from broadleaf_lab.comparisons.why.cells import Line, Why
    from broadleaf_lab.spec.runs import Run


@click.command("why")
@click.argument("a", required=False)
@click.argument("b", required=False)
@study_option
@click.option("--in", "context", default="baseline", show_default=True, metavar="SETTINGS",
              help="Settings of the other factors, such as `cfg_log=off,py_jit`.")  # fmt: skip
@click.option("--rounds", type=click.IntRange(2), default=5, show_default=True, help="Runs of each cell.")
@click.option("--profile/--no-profile", default=True, show_default=True,
              help="Also run each under py-spy (Python) or perf (everything else), where allowed.")  # fmt: skip
@click.option("--seed", type=int, help="Seed of the order of runs.")
@click.option("--json", "as_json", is_flag=True, help="Everything as one JSON object.")
@quiet_options
def command(
    a: str | None,
    b: str | None,
    study_path: Path,
    context: str,
    rounds: int,
    profile: bool,
    seed: int | None,
    as_json: bool,
    max_busy_cores: float,
    max_wait_s: float,
) -> None:
    """Show why two settings interact, or why one matters.

    Runs the cells of A and B (neither, each, both) in turn and shows side by side what they use: time, processor,
    waiting, switches, faults, bytes, memory, and the counters of the processor where this machine has them; then where
    the time goes, function by function. A and B are settings such as `no_log` or `cfg_log=off`; without them, the two
    that interact most clearly in the runs of the study. Adds nothing to runs.csv.
    """
    from broadleaf_lab.comparisons.compare import parse_settings
    from broadleaf_lab.comparisons.why.cells import strongest_pair, why

    study = load_study(study_path)
    if a is None:
        require(("numpy", "pandas", "scipy"), "`broadleaf-lab why` without settings")
        settings = list(strongest_pair(study))
    else:
        settings = [*parse_settings(study, ",".join(filter(None, (a, b)))).items()]

    def on_run(run: Run) -> None:
        us = run["time_per_task_us"]
        figure = f"{us:,.4g} us/task" if us is not None else f"{run['status']}: {run['error']}"
        click.echo(f"{run['run_id']}  {figure}", err=True)

    found = why(
        study, settings, context=parse_settings(study, context), rounds=rounds, profile=profile, seed=seed,
        quiet=quiet(max_busy_cores, max_wait_s), on_run=on_run, say=lambda text: click.echo(text, err=True),
    )  # fmt: skip
    if as_json:
        click.echo(json.dumps(found.as_dict(), indent=1))
    else:
        _show(found)


def _show(found: Why) -> None:
    out = console()
    for number, sentence in enumerate(found.sentences):
        out.print(sentence, style="bold" if number == 0 else None, markup=False)
    out.print()
    out.print(_table(f"medians of {found.runs} runs", found, found.used))
    if found.spent:
        out.print()
        title = f"microseconds per task in each function itself ({found.samples:,} samples of {found.profiler})"
        out.print(_table(title, found, found.spent))


def _table(title: str, found: Why, lines: tuple[Line, ...]) -> object:
    from rich.markup import escape

    last = "difference" if len(found.labels) == 2 else "beyond the sum"
    table = plain_table(("", *map(escape, found.labels), last), ("",))
    table.title, table.title_justify = escape(title), "left"
    for line in lines:
        margin = "" if line.margin is None else f" ±{line.margin:,.3g}"
        style = "bold" if line.proven else ""
        table.add_row(escape(line.name), *(f"{cell:,.4g}" for cell in line.cells), f"{line.beyond:+,.3g}{margin}",
                      style=style)  # fmt: skip
    return table
