"""`broadleaf-lab synth`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from broadleaf_lab.cli.terminal import console, fail

_SYSTEMS = {
    "seedlike": "17 treatments and a placebo: 1182 us to 61 us, two loggings of which one is enough, a sign flip",
    "eight": "8 factors, an either-or, a synergy and a sign flip",
    "null": "8 factors and a placebo, none of which does anything",
}


@click.command("synth")
@click.argument("system", type=click.Choice(list(_SYSTEMS)))
@click.argument("directory", required=False, type=click.Path(file_okay=False, path_type=Path))
@click.option("--kind", default="auto", show_default=True, help="Design, as in a study file.")
@click.option("--paths", type=click.IntRange(0), metavar="N", help="Random orders to add to the design.")
@click.option("--replicates", type=click.IntRange(1), default=1, show_default=True, help="How often each run is made.")
@click.option("--seed", type=click.IntRange(0), default=1, show_default=True, help="Seed for plan and noise.")
@click.option("--noise", type=click.FloatRange(0, 100), default=5.0, show_default=True, metavar="PCT",
              help="Spread of runs.")  # fmt: skip
@click.option("--tail", type=click.FloatRange(0, 1), default=0.0, show_default=True,
              help="Mean of an exponential added to the logarithm.")  # fmt: skip
@click.option("--outliers", type=click.FloatRange(0, 100), default=0.0, show_default=True, metavar="PCT",
              help="Share of runs that take three times as long.")  # fmt: skip
@click.option("--drift", type=click.FloatRange(-90, 1000), default=0.0, show_default=True, metavar="PCT",
              help="Growth of all times from the first run to the last.")  # fmt: skip
@click.option("--daily", type=click.FloatRange(0, 90), default=0.0, show_default=True, metavar="PCT",
              help="Amplitude of a daily sine wave.")  # fmt: skip
@click.option("--seconds", type=click.FloatRange(0, min_open=True), default=4.0, show_default=True, metavar="S",
              help="Seconds between runs.")  # fmt: skip
@click.option("--force", is_flag=True, help="Replace the study in DIRECTORY.")
def command(
    system: str,
    directory: Path | None,
    kind: str,
    paths: int | None,
    replicates: int,
    seed: int,
    noise: float,
    tail: float,
    outliers: float,
    drift: float,
    daily: float,
    seconds: float,
    force: bool,
) -> None:
    """Write a synthetic study with known effects, and its runs, into DIRECTORY (default: the system's name).

    The true effects are in truth.json. `broadleaf-lab analyse` and `report` work on it as on a measured study.
    """
    target = directory or Path(system)
    if not force and any((target / name).exists() for name in ("study.toml", "runs.csv")):
        fail(f"{target} holds a study already. Name another directory, or replace it with --force.")
    from broadleaf_lab.synthetic import study as synth_study

    design: dict[str, Any] = {"kind": kind, "replicates": replicates}
    if paths is not None:
        design["paths"] = paths
    plan = synth_study.write(
        target,
        system,
        seed,
        design,
        seconds,
        noise=noise / 100,
        tail=tail,
        outliers=outliers / 100,
        drift_linear=drift / 100,
        drift_daily=daily / 100,
    )
    from rich.markup import escape

    out = console()
    out.print(f"[bold]{escape(str(target))}[/]: {_SYSTEMS[system]}")
    out.print(
        f"{len(plan)} runs in {plan.spec['blocks']} blocks, {noise:g} % noise, seed {seed}; the truth is in truth.json"
    )
    out.print(f"Next: broadleaf-lab analyse {target}", markup=False)
