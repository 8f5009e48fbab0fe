"""`broadleaf-lab doctor`: what makes measurements noisy, on this machine and in this study."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from broadleaf_lab.cli.options import load_study
from broadleaf_lab.cli.terminal import console

_SIGNS = {"good": ("ok", "green"), "advice": ("advice", "yellow"), "bad": ("bad", "red")}


@click.command("doctor")
@click.argument("study_path", metavar="[STUDY]", required=False, type=click.Path(exists=True, path_type=Path))
def command(study_path: Path | None) -> None:
    """Check this machine, and a study, for anything that makes measurements noisy or wrong.

    Without STUDY, it checks the study in this directory if there is one. Exit code 1 if something is bad.
    """
    from itertools import chain

    from rich.text import Text

    from broadleaf_lab.run.doctor import examine_machine, examine_study
    from broadleaf_lab.spec.file import FILE_NAME

    if study_path is None and Path(FILE_NAME).is_file():
        study_path = Path()
    out = console()
    worst = "good"
    study = examine_study(load_study(study_path), out.print) if study_path is not None else ()
    for finding in chain(examine_machine(), study):
        word, style = _SIGNS[finding.grade]
        line = Text(f"{word:<7}", style=style) + Text(f"{finding.what}: {finding.found}", style="")
        out.print(line, soft_wrap=True)
        if finding.advice:
            out.print(Text(f"       {finding.advice}"), soft_wrap=True)
        worst = "bad" if finding.grade == "bad" else worst
    sys.exit(worst == "bad")
