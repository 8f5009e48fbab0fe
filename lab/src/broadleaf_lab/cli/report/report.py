"""`broadleaf-lab report`."""

from __future__ import annotations

from pathlib import Path

import click

from broadleaf_lab.cli.options import load_study, study_argument
from broadleaf_lab.cli.terminal import compute_in_one_thread, console, require
from broadleaf_lab.text import size

_MODULES = ("numpy", "pandas", "scipy", "sklearn", "altair", "jinja2", "vl_convert")


@click.command("report")
@study_argument
@click.option("--to", "folder", type=click.Path(file_okay=False, path_type=Path), metavar="FOLDER",
              help="Where to write; by default `report` beside the runs.")  # fmt: skip
@click.option("--images/--no-images", default=True, show_default=True, help="Also write each figure as PNG and SVG.")
@click.option("--open/--no-open", "show", default=False, show_default=True, help="Open the page in a browser.")
def command(study_path: Path, folder: Path | None, images: bool, show: bool) -> None:
    """Write the offline HTML report of a study, and each of its figures as PNG, SVG and CSV.

    The page needs no network. Figures that the runs cannot provide are listed with the reason.
    """
    require(_MODULES, "`broadleaf-lab report`")
    compute_in_one_thread()
    from broadleaf_lab.report.build import write

    report = write(load_study(study_path), folder, images)
    out = console()
    out.print(f"Report: {report.html} ({size(report.html.stat().st_size)}, works without a network)", markup=False)
    kinds = "PNG, SVG and CSV" if images else "CSV"
    out.print(f"Figures: {report.folder / 'figures'} ({len(report.drawn)} as {kinds})", markup=False)
    for figure in report.missing:
        out.print(f"Not drawn: figure {figure.number} ({figure.key}): {figure.reason}", markup=False)
    where = study_path if study_path.is_dir() else study_path.parent
    out.print(f"In R: Rscript {report.folder / 'report.R'} {where}", markup=False)
    if show:
        click.launch(str(report.html))
