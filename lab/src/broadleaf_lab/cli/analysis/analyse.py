"""`broadleaf-lab analyse`: effects, interactions and verdicts."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from broadleaf_lab.cli.options import load_study, study_argument
from broadleaf_lab.cli.terminal import add_plain_row, compute_in_one_thread, console, require
from broadleaf_lab.text import change, log_change

if TYPE_CHECKING:
    from rich.table import Table

    from broadleaf_lab.analysis.failures import Failures
    from broadleaf_lab.analysis.summary import Summary

_PAIRS_SHOWN = 20
_COLOURS = {
    "fails more": "bold red",
    "helps": "green",
    "hinders": "red",
    "unknown": "yellow",
    "no practical difference": "dim",
}


@click.command("analyse")
@study_argument
@click.option("--where", metavar="CONDITION", help="Use only runs that meet this condition, such as `not cfg_log`.")
@click.option("--response", "responses", multiple=True, metavar="COLUMN",
              help="Response to analyse instead of the time per task: max_rss_kb, latency_p99_us, cpu_us_per_task, "
                   "or any other column of runs.csv where less is better. May be given several times.")  # fmt: skip
@click.option("--scale", type=click.Choice(("log", "us", "rate", "auto")), default="log", show_default=True,
              help="Scale on which effects are assumed to add up: ratios, us, tasks/s, or the most likely of "
                   "these.")  # fmt: skip
@click.option("--no-pairs", is_flag=True, help="Fit main effects only.")
@click.option("--no-blocks", is_flag=True, help="Leave block means out of the model.")
@click.option("--no-drift", is_flag=True, help="Leave time out of the model.")
@click.option("--json", "as_json", is_flag=True, help="Print everything as one JSON object.")
def command(
    study_path: Path,
    where: str | None,
    responses: tuple[str, ...],
    scale: Literal["log", "us", "rate", "auto"],
    no_pairs: bool,
    no_blocks: bool,
    no_drift: bool,
    as_json: bool,
) -> None:
    """Show effects, interactions and verdicts, with intervals.

    Writes effects.csv and interactions.csv beside the study file, unless some runs are left out with --where, or
    another response is selected.
    """
    require(("numpy", "pandas", "scipy"), "`broadleaf-lab analyse`")
    compute_in_one_thread()
    from broadleaf_lab.analysis import failures
    from broadleaf_lab.analysis import frame as frames
    from broadleaf_lab.analysis.summary import summarise
    from broadleaf_lab.spec.runs import replace_file

    study = load_study(study_path)
    blocks: Literal["auto", "none"] = "none" if no_blocks else "auto"
    failed = failures.of_study(study.runs_path, study.factors, where)
    asked = responses or (frames.TIME,)
    told: dict[str, Summary] = {}
    for name in asked:
        runs = frames.load(study.runs_path, study.factors, where, name)
        told[name] = summarise(
            study.factors, runs, scale, not no_pairs, blocks, not no_drift, study.rope_pct, failed,
        )  # fmt: skip
    if as_json:
        found = {name: one.as_dict() for name, one in told.items()}
        click.echo(json.dumps(found if responses else found[frames.TIME], indent=1))
    else:
        for name, one in told.items():
            _show(one, failed, name)
    # Show the results first: a full disk must not hide them. Tables cover all runs, never a selection.
    if where is None and not responses:
        found_us = told[frames.TIME]
        for name, table in (("effects", found_us.effects_table()), ("interactions", found_us.interactions_table())):
            replace_file(study.directory / f"{name}.csv", table.to_csv(index=False))


def _show(found: Summary, failed: Failures, response: str) -> None:
    out = console()
    is_time = response == "time_per_task_us"

    def worded(text: str) -> str:
        if is_time:
            return text
        return text.replace("time per task", response).replace("% time", f"% {response}").replace("us/task", response)

    if not is_time:
        out.print(f"{response}:", style="bold", markup=False)
    if failed.total.failed:
        out.print(failed.sentences[0], style="bold", markup=False)
    for verdict in found.verdicts:
        out.print(worded(verdict.sentence), style=_COLOURS.get(verdict.word, "magenta"), markup=False)
    out.print()
    out.print(_effects(found, "us" if is_time else response, worded))
    if found.interactions:
        out.print()
        out.print(_interactions(found))
    out.print()
    if is_time:
        out.print(found.scale.sentence, markup=False)
    for text in _remarks(found):
        out.print(worded(text), markup=False)


def _effects(found: Summary, unit_name: str, worded: Callable[[str], str]) -> Table:
    from rich.table import Table

    table = Table(
        box=None, pad_edge=False, title=worded("effects on time per task, over the default"), title_justify="left"
    )
    table.add_column("factor")
    for name in (
        "average",
        "95 % interval",
        "all at once",
        "at the baseline",
        "at the best",
        f"{unit_name} at the baseline",
        "95 % interval",
    ):
        table.add_column(name, justify="right")
    others = {context: {(e.factor, e.level): e for e in found.effects[context]} for context in ("baseline", "best")}
    us = {(d.factor, d.level): d for d in found.differences}
    for e in sorted(found.effects["average"], key=lambda e: e.ratio):
        key = (e.factor, e.level)
        corners = [others[c].get(key) for c in ("baseline", "best")]
        difference = us.get(key)
        add_plain_row(
            table,
            e.factor if isinstance(e.level, bool) else f"{e.factor}={e.level}",
            change(e.ratio),
            _range(change(e.ratio_low), change(e.ratio_high)),
            _range(change(e.ratio_low_simultaneous), change(e.ratio_high_simultaneous)),
            *(change(corner.ratio) if corner is not None else "-" for corner in corners),
            f"{difference.delta_us:+,.1f}" if difference is not None else "-",
            _range(f"{difference.ci_low:+,.1f}", f"{difference.ci_high:+,.1f}") if difference is not None else "-",
        )
    return table


def _interactions(found: Summary) -> Table:
    from rich.table import Table

    shown = [pair for pair in found.interactions if pair.q <= 0.05][:_PAIRS_SHOWN] or list(found.interactions[:3])
    title = f"interactions, {len(shown)} of {len(found.interactions)} pairs ({found.interactions[0].unit})"
    table = Table(box=None, pad_edge=False, title=title, title_justify="left")
    table.add_column("pair")
    for name in ("difference", "95 % interval", "q", "a alone", "a with b"):
        table.add_column(name, justify="right")
    table.add_column("class")
    for pair in shown:
        a = pair.a if isinstance(pair.a_level, bool) else f"{pair.a}={pair.a_level}"
        b = pair.b if isinstance(pair.b_level, bool) else f"{pair.b}={pair.b_level}"
        add_plain_row(
            table,
            f"{a} x {b}",
            f"{pair.estimate:+.4g}",
            _range(f"{pair.ci_low:+.4g}", f"{pair.ci_high:+.4g}"),
            f"{pair.q:.2g}",
            f"{pair.a_alone.estimate:+.4g}",
            f"{pair.a_with_b.estimate:+.4g}",
            pair.kind,
        )
    return table


def _remarks(found: Summary) -> list[str]:
    from broadleaf_lab.analysis.model.scale import UNITS

    fit = found.fit
    said = [f"{fit.n_runs} runs, blocks {fit.blocks}, residual spread {fit.sigma:.3g}, R² {fit.r_squared:.4f}."]
    for term in fit.drift_terms():
        it = term.interval
        if not term.name.startswith("time~") and it.p < 0.05:
            what = "from the first run to the last" if term.name == "time" else f"with the hour ({term.name})"
            size = f"{it.estimate:+.3g} ({it.low:+.3g} to {it.high:+.3g}) {term.unit}"
            if fit.scale == "log":
                size = f"{log_change(it.estimate)} time per task ({_range(log_change(it.low), log_change(it.high))})"
            said.append(f"Drift {what}: {size}.")
    if found.lack_of_fit is not None:
        lack = found.lack_of_fit
        size = log_change(lack.unseen).lstrip("+") if fit.scale == "log" else f"{lack.unseen:.3g} {UNITS[fit.scale]}"
        judgement = "something is missing from the model"
        if not lack.significant:
            judgement = f"nothing is known to be missing; an interaction of three factors of up to {size} could be"
        said.append(f"Replicates against the model: F = {lack.f:.2f}, p = {lack.p:.2g}: {judgement}.")
    return [*said, *found.notes, found.precision.sentence]


def _range(low: str, high: str) -> str:
    return f"{low.removesuffix(' %')} to {high}"
