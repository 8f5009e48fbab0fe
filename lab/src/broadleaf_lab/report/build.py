"""Writes a report: the page, and every figure as PNG, SVG and CSV."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

from broadleaf_lab.errors import writing
from broadleaf_lab.report.collect import collect
from broadleaf_lab.report.contents import contents_of
from broadleaf_lab.report.figures.base import Figure, Missing
from broadleaf_lab.report.figures.registry import draw_all
from broadleaf_lab.report.page import render
from broadleaf_lab.spec.runs import replace_file

if TYPE_CHECKING:
    from broadleaf_lab.spec.study import StudySpec


@dataclass(frozen=True, slots=True)
class Report:
    """What was written: the page, the folder of figures, the figures in it and those that could not be drawn."""

    html: Path
    folder: Path
    drawn: tuple[str, ...]
    missing: tuple[Missing, ...]


def write(study: StudySpec, folder: Path | None = None, images: bool = True) -> Report:
    """Writes the report of a study into `folder` (by default `report` beside its runs) and returns what was written.

    With `images` False, PNG and SVG are omitted. Raises AnalysisError if there are no runs to report on, and WriteError
    if the folder cannot be written.
    """
    folder = folder or study.directory / "report"
    found = collect(study)
    assert found.evidence is not None, "collect() fills it in"
    figures = draw_all(found.evidence)
    page = render(contents_of(found, figures))
    pictures = folder / "figures"
    html = folder / "report.html"
    drawn = [figure for figure in figures if isinstance(figure, Figure)]
    source = resources.files("broadleaf_lab.report").joinpath("report.R").read_text(encoding="utf-8")
    with writing(folder, "Make room, or name another folder."):
        folder.mkdir(parents=True, exist_ok=True)
        # The page contains everything: if space runs out, only pictures are omitted.
        replace_file(html, page)
        (folder / "report.R").write_text(source, encoding="utf-8")
        # Figures of an earlier report that this one does not have would mislead.
        shutil.rmtree(pictures, ignore_errors=True)
        pictures.mkdir()
        for figure in drawn:
            write_figure(figure, pictures, images)
    missing = tuple(figure for figure in figures if isinstance(figure, Missing))
    return Report(html, folder, tuple(figure.stem for figure in drawn), missing)


def write_figure(figure: Figure, folder: Path, images: bool = True) -> None:
    """Writes one figure's table, and the chart as PNG (twice the size, for print) and SVG."""
    figure.table.to_csv(folder / f"{figure.stem}.csv", index=False)
    if images:
        import vl_convert

        # Laying a chart out is what takes time: once for both.
        svg = figure.svg()
        (folder / f"{figure.stem}.svg").write_text(svg, encoding="utf-8")
        (folder / f"{figure.stem}.png").write_bytes(vl_convert.svg_to_png(svg, scale=2))
