"""`broadleaf-lab power`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from broadleaf_lab.cli.terminal import console
from broadleaf_lab.text import duration


@click.command("power")
@click.argument("study_path", metavar="[STUDY]", required=False, type=click.Path(exists=True, path_type=Path))
@click.option("--effect", "effects", type=click.FloatRange(0, min_open=True), multiple=True, metavar="PCT",
              help="Effect to detect, in percent; may be repeated. Default: 1, 2, 5, 10.")  # fmt: skip
@click.option("--noise", "noises", type=click.FloatRange(0, min_open=True), multiple=True, metavar="PCT",
              help="Spread of runs, in percent; may be repeated. Default: the study's, or 3, 5, 10.")  # fmt: skip
@click.option(
    "--factors", type=click.IntRange(1), metavar="K", help="Number of factors; pairs share alpha among K(K-1)/2 tests."
)
@click.option("--power", "wanted", type=click.FloatRange(0, 1, min_open=True, max_open=True), default=0.8,
              show_default=True, help="Probability of detecting the effect.")  # fmt: skip
@click.option("--alpha", type=click.FloatRange(0, 1, min_open=True, max_open=True), default=0.05, show_default=True,
              help="Probability of a false positive.")  # fmt: skip
@click.option(
    "--runs", type=click.IntRange(2), metavar="N", help="Show the smallest effects that N runs can detect instead."
)
@click.option("--seconds", type=click.FloatRange(0, min_open=True), default=4.0, show_default=True, metavar="S",
              help="Seconds per run.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print all numbers as one JSON object.")
def command(
    study_path: Path | None,
    effects: tuple[float, ...],
    noises: tuple[float, ...],
    factors: int | None,
    wanted: float,
    alpha: float,
    runs: int | None,
    seconds: float,
    as_json: bool,
) -> None:
    """Show how many runs an effect needs, or with --runs the smallest effect that N runs can detect.

    This is for designs with off/on factors in which no effect is confounded with another. `broadleaf-lab plan` shows
    what a study's own plan can detect.
    """
    from broadleaf_lab.designs import power

    k = factors or 12
    if study_path is not None:
        from broadleaf_lab.cli.options import load_study

        study = load_study(study_path)
        k = factors or max(len(study.factors), 1)
        noises = noises or (study.design.noise_pct,)
    noises = noises or (3.0, 5.0, 10.0)
    effects = effects or (1.0, 2.0, 5.0, 10.0)
    tests = max(k * (k - 1) // 2, 1)
    rows: list[dict[str, Any]] = []
    kinds: tuple[tuple[power.Kind, int], ...] = (("main", 1), ("pair", tests))
    for kind, comparisons in kinds:
        for noise in noises:
            if runs is not None:
                found = power.detectable_pct(runs, noise, kind, wanted, alpha, comparisons)
                rows.append({"kind": kind, "noise_pct": noise, "runs": runs, "effect_pct": found})
                continue
            for effect in effects:
                needed = power.runs_needed(effect, noise, kind, wanted, alpha, comparisons)
                rows.append({"kind": kind, "noise_pct": noise, "effect_pct": effect, "runs": needed})
    if as_json:
        click.echo(
            json.dumps({"power": wanted, "alpha": alpha, "factors": k, "pair_tests": tests, "rows": rows}, indent=1)
        )
        return
    from rich.table import Table

    table = Table("what", box=None, pad_edge=False)
    for title in ("noise", "effect", "runs", "time"):
        table.add_column(title, justify="right")
    words = {"main": "effect of a factor", "pair": f"interaction, one of {tests}"}
    for row in rows:
        table.add_row(
            words[row["kind"]],
            f"{row['noise_pct']:g} %",
            f"{row['effect_pct']:.3g} %",
            f"{row['runs']:,}",
            duration(row["runs"] * seconds),
        )
    out = console()
    out.print(table)
    out.print(f"[dim]detected with probability {wanted:g}; alpha {alpha:g}, shared by the interactions' tests; "
              f"{duration(seconds)} a run[/]")  # fmt: skip
