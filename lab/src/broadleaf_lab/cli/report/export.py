"""`broadleaf-lab export`: the tables for other programs."""

from __future__ import annotations

from pathlib import Path

import click

from broadleaf_lab.cli.options import load_study, study_argument


@click.command("export")
@study_argument
@click.option("--dialect", type=click.Choice(("comma", "seed", "excel-es", "sqlite", "parquet")), default="comma",
              show_default=True, help="comma: unchanged. seed: semicolons, for R's read.csv(sep=\";\"). excel-es: "
              "semicolons and decimal commas. sqlite: one database. parquet: needs pyarrow.")  # fmt: skip
@click.option("--to", "target", type=click.Path(path_type=Path, file_okay=False), help="Directory to write to; by "
                                                                                       "default `export` beside the "
                                                                                       "study file.")  # fmt: skip
def command(study_path: Path, dialect: str, target: Path | None) -> None:
    """Write the data for R, Excel, SQLite or Parquet."""
    from broadleaf_lab.report.export import export

    study = load_study(study_path)
    for path in export(study.directory, dialect, target or study.directory / "export"):
        click.echo(path)
