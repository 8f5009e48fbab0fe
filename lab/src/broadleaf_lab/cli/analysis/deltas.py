"""`broadleaf-lab deltas`: every X beside X + treatment."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from broadleaf_lab.cli.options import load_study, study_argument
from broadleaf_lab.cli.terminal import add_plain_row, console, require

if TYPE_CHECKING:
    import pandas as pd


@click.command("deltas")
@study_argument
@click.option(
    "--where",
    metavar="CONDITION",
    help="Use only runs that meet this condition, such as `not cfg_log and cfg_prefetch > 4`.",
)
@click.option("--pairing", type=click.Choice(("cell", "cross")), default="cell", show_default=True,
              help="cell: compare medians of configurations. cross: compare every run with every other "
                   "run.")  # fmt: skip
@click.option("--to", "target", type=click.Path(path_type=Path, dir_okay=False),
              help="File to write; by default deltas.csv beside the study file, or none with --where.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print the means as JSON.")
def command(
    study_path: Path,
    where: str | None,
    pairing: Literal["cell", "cross"],
    target: Path | None,
    as_json: bool,
) -> None:
    """Write the table of every X and X + treatment, and show the mean change of each treatment."""
    require(("numpy", "pandas"), "`broadleaf-lab deltas`")
    from broadleaf_lab.analysis import frame as frames
    from broadleaf_lab.analysis.pairs import deltas

    study = load_study(study_path)
    runs = frames.load(study.runs_path, study.factors, where)
    table = deltas.deltas(runs, study.factors, pairing)
    # deltas.csv covers all runs: a selection is written only where requested.
    path = target or (study.directory / "deltas.csv" if where is None else None)
    means = deltas.mean_deltas(runs, study.factors, pairing)
    remarks = [deltas.missing_pairs(table, study.factors), deltas.cross_warning(table) if pairing == "cross" else None]
    said = [remark for remark in remarks if remark]
    if as_json:
        rows = json.loads(means.to_json(orient="records"))
        click.echo(
            json.dumps(
                {"deltas": len(table), "file": str(path) if path else None, "means": rows, "remarks": said}, indent=1
            )
        )
    else:
        out = console()
        if len(means):
            out.print(_means(means, {f.name for f in study.factors if f.is_bool}))
        for remark in said:
            out.print(remark, style="yellow", markup=False)
        destination = path or "not written, since runs are left out; --to FILE writes them"
        out.print(
            f"{len(table)} deltas of {len(runs)} runs{f' where {where}' if where else ''}: {destination}", markup=False
        )
    if path is not None:
        deltas.save(table, path)


def _means(means: pd.DataFrame, bools: set[str]) -> object:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, title="mean change per task", title_justify="left")
    table.add_column("treatment")
    for name in ("us", "95 % interval", "ratio", "pairs"):
        table.add_column(name, justify="right")
    for row in means.sort_values("mean_us").to_dict("records"):
        name = str(row["treatment"]) + ("" if row["treatment"] in bools else f"={row['level_to']}")
        interval = f"{row['ci_low']:+,.1f} to {row['ci_high']:+,.1f}"
        add_plain_row(
            table, name, f"{row['mean_us']:+,.1f}", interval, f"{2 ** row['log2_ratio']:.3f}", str(row["n_pairs"])
        )
    return table
