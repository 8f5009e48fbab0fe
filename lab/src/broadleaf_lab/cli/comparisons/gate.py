"""`broadleaf-lab gate`: is HEAD slower than a base commit, on this machine, now?"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from broadleaf_lab.cli.judging import JudgingCommand
from broadleaf_lab.cli.options import load_study
from broadleaf_lab.cli.run.options import quiet, quiet_options, seconds, study_option
from broadleaf_lab.cli.terminal import console
from broadleaf_lab.errors import writing
from broadleaf_lab.text import duration

if TYPE_CHECKING:
    from broadleaf_lab.analysis.pairs.intervals import Interval


@click.command("gate", cls=JudgingCommand)
@study_option
@click.option("--base", default="main", show_default=True, help="Commit to compare with.")
@click.option("--head", default="HEAD", show_default=True, help="Commit to judge.")
@click.option("--at", "at", metavar="SETTINGS", default="baseline", show_default=True,
              help="Settings at which to compare the commits, such as `workload=map,cache=on`.")  # fmt: skip
@click.option("--budget", "budget_s", callback=seconds, metavar="TIME", default="30m", show_default=True,
              help="Stop measuring after this time, not counting builds.")  # fmt: skip
@click.option(
    "--max-pairs", type=click.IntRange(10), default=135, show_default=True, help="Maximum number of pairs of runs."
)
@click.option("--markdown", "markdown_path", type=click.Path(dir_okay=False, allow_dash=True, path_type=Path),
              metavar="FILE", help="File to write the outcome to, as a pull request comment; - for standard output.",
              )  # fmt: skip
@click.option("--seed", type=int, help="Seed for the order of runs.")
@quiet_options
def command(
    study_path: Path,
    base: str,
    head: str,
    at: str,
    budget_s: float,
    max_pairs: int,
    markdown_path: Path | None,
    seed: int | None,
    max_busy_cores: float,
    max_wait_s: float,
) -> None:
    """Compare HEAD with a base commit on this machine.

    Builds both, runs them in pairs in random order, and checks after 10, 14, 20, ... pairs whether the question is
    decided. Differences within the study's rope_pct do not matter.

    Exit codes: 0 no harm, 1 hinders or fails more, 2 a wrong option, 3 could not run, 4 undecided.
    """
    from broadleaf_lab.comparisons.compare import parse_settings
    from broadleaf_lab.comparisons.gate import gate, look_line, markdown

    out = console()

    def on_look(interval: Interval, pairs: int, _: float) -> None:
        out.print(look_line(interval, pairs), markup=False)

    study = load_study(study_path)
    found = gate(
        study, base, head, settings=parse_settings(study, at), budget_s=budget_s, max_pairs=max_pairs, seed=seed,
        quiet=quiet(max_busy_cores, max_wait_s), on_look=on_look, say=lambda text: out.print(text, markup=False),
    )  # fmt: skip
    out.print(found.sentence, markup=False, style="bold")
    out.print(f"{found.base_sha[:10]} against {found.head_sha[:10]}, measured for {duration(found.elapsed_s)}")
    if found.failed_pairs:
        out.print(f"{found.failed_pairs} pairs failed and do not count.")
    if markdown_path is not None:
        text = markdown(found, study.name, base, head, study.rope_pct)
        if str(markdown_path) == "-":
            click.echo(text, nl=False)
        else:
            with writing(markdown_path):
                markdown_path.write_text(text, encoding="utf-8")
    sys.exit(found.exit_code)
