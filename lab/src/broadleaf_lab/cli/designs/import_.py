"""`broadleaf-lab import`: a study from runs that were made elsewhere."""

from __future__ import annotations

from pathlib import Path

import click

from broadleaf_lab.cli.terminal import console, fail
from broadleaf_lab.spec.file import FILE_NAME
from broadleaf_lab.spec.imported import UNITS_US


@click.command("import")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.argument("directory", type=click.Path(file_okay=False, path_type=Path))
@click.option("--score", required=True, metavar="COLUMN", help="Column with the time per task.")
@click.option("--unit", type=click.Choice(list(UNITS_US)), default="us", show_default=True, help="Its unit.")
@click.option("--time", metavar="COLUMN", help="Column with the start time: seconds since 1970, or an ISO date.")
@click.option("--factors", metavar="COLUMN,...", default="", help="Columns with the settings; by default all others "
                                                                  "with few different values.")  # fmt: skip
@click.option("--dialect", type=click.Choice(("plain", "seed")), default="plain", show_default=True,
              help="seed: tiers derived from names, as in the published study (src_, _no_, remove, "
                   "danger).")  # fmt: skip
@click.option("--force", is_flag=True, help="Replace existing files.")
def command(
    file: Path, directory: Path, score: str, unit: str, time: str | None, factors: str, dialect: str, force: bool
) -> None:
    """Make a study in DIRECTORY from the runs in FILE: a table with one line per run and columns separated by commas,
    semicolons or tabs. Tables that `broadleaf-lab export` wrote can be read, too.
    """
    from broadleaf_lab.spec.imported import import_runs, sentences

    there = [str(directory / name) for name in (FILE_NAME, "runs.csv") if (directory / name).exists()]
    if there and not force:
        fail(f"{' and '.join(there)} already exist. Name another directory, or replace them with --force.")
    asked = [name.strip() for name in factors.split(",") if name.strip()]
    found = import_runs(file, directory, score, time, asked, unit, by_name=dialect == "seed")
    out = console()
    for sentence in sentences(found, directory):
        out.print(sentence, markup=False)
    out.print(f"Next: broadleaf-lab report {directory}", markup=False)
