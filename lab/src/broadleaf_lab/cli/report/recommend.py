"""`broadleaf-lab recommend`: the settings to use, written where a program reads them."""

from __future__ import annotations

import json
from pathlib import Path

import click

from broadleaf_lab.cli.options import load_study, study_argument
from broadleaf_lab.cli.terminal import compute_in_one_thread, console, require


@click.command("recommend")
@study_argument
@click.option("--tier", "max_tier", type=click.IntRange(1, 4), default=4, show_default=True,
              help="Settings up to this tier: 1 = safe settings, 2 = also changes to the source, 3 and 4 = settings "
                   "that lose something.")  # fmt: skip
@click.option("--write", "file", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE",
              help="Write them to this file (TOML, JSON, or NAME=VALUE lines), and keep the rest of the file. "
                   "Broadleaf's own is config.toml in the directory that `broadleaf config show` names.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON object.")
def command(study_path: Path, max_tier: int, file: Path | None, as_json: bool) -> None:
    """Recommend the settings that the runs of STUDY prove to help.

    Makes no runs. Settings that fail more often than their default are left out, and named first.
    """
    require(("numpy", "pandas", "scipy"), "`broadleaf-lab recommend`")
    compute_in_one_thread()
    from broadleaf_lab.report.recommend import keys, recommend, sentences, write
    from broadleaf_lab.spec.factors import column_value

    study = load_study(study_path)
    found = recommend(study, max_tier)
    inside, outside = keys(study, found.config)
    if as_json:
        levels = {name: column_value(level) for name, level in found.config.items()}
        click.echo(json.dumps({"recommended": levels, "ratio": found.ratio, "keys": inside, "elsewhere": outside}))
    else:
        out = console()
        for number, line in enumerate(sentences(study, found)):
            out.print(line, style="bold" if number == 0 else None, markup=False)
        for name, value in inside.items():
            out.print(f"  {name} = {json.dumps(value)}", markup=False)
        for line in outside:
            out.print(f"  elsewhere: {line}", markup=False)
    if file is not None:
        write(study, found.config, file)
        click.echo(f"written: {file}", err=True)
