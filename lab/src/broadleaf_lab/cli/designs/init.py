"""`broadleaf-lab init`."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path

import click

from broadleaf_lab.cli.terminal import console, fail
from broadleaf_lab.errors import writing

_TEMPLATES = {
    "command": "any program, measured as a process",
    "callable": "a Python function with keywords",
    "broadleaf": "Broadleaf's own options, on tasks of yours",
}


@click.command("init")
@click.argument("directory", default=".", type=click.Path(file_okay=False, path_type=Path))
@click.option("--template", type=click.Choice(list(_TEMPLATES)), default="command", show_default=True,
              help="Kind of workload to measure.")  # fmt: skip
@click.option("--name", help="Name of the study; by default the directory's.")
@click.option("--force", is_flag=True, help="Replace existing files.")
def command(directory: Path, template: str, name: str | None, force: bool) -> None:
    """Write a commented study file, and a workload to go with it, into DIRECTORY.

    Both work unchanged; adapt them to your program step by step.
    """
    name = name or directory.resolve().name
    source = files("broadleaf_lab.spec") / "templates"
    study = (source / f"{template}.toml").read_text(encoding="utf-8").replace('"@NAME@"', json.dumps(name))
    texts = {"study.toml": study, "bench.py": (source / f"{template}.py.txt").read_text(encoding="utf-8")}
    there = [str(directory / file) for file in texts if (directory / file).exists()]
    if there and not force:
        fail(f"{' and '.join(there)} already exist. Name another directory, or replace them with --force.")
    with writing(directory):
        directory.mkdir(parents=True, exist_ok=True)
        for file, text in texts.items():
            (directory / file).write_text(text, encoding="utf-8")
    out = console()
    out.print(
        f"Written: {directory / 'study.toml'} and {directory / 'bench.py'} ({_TEMPLATES[template]})", markup=False
    )
    out.print(f"Read them, then run: broadleaf-lab plan {directory}", markup=False)
