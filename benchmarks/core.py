"""`python -m benchmarks core`."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterable
from pathlib import Path

import click
from broadleaf import __version__
from broadleaf.bench.record import OURS, Record
from broadleaf.cli.bench import Records, json_option
from broadleaf.cli.console import TableCommand, fail

from benchmarks import recorded

FIGURES = {
    "ns_per_task": "processor time of the controller's decisions for an empty task: submitted, placed, ended, told",
    "engine_visits_per_task": "how often the decisions for a task looked at an engine",
}
_EXAMPLE = ("cargo", "run", "--quiet", "--release", "--locked", "-p", "broadleaf-core", "--example", "ns_per_task")
_SOURCE = Path(__file__).resolve().parent.parent


def records_of(lines: Iterable[str]) -> list[Record]:
    """The records in what the example printed."""
    found: list[Record] = []
    for line in lines:
        figures = json.loads(line)
        case = figures.pop("case")
        values = {metric: [float(value) for value in figures.pop(metric)] for metric in FIGURES}
        found += [Record(OURS, __version__, case, figures, metric, values[metric]) for metric in FIGURES]
    return found


@click.command("core", cls=TableCommand, columns=FIGURES, explained_as="Figures")
def command(json_file: str | None, results: Path | None) -> None:
    """Measure what the controller's decisions cost by the number of engines (needs cargo).

    No processes and no messages: only the state machine, in one thread, with short tasks, which fill few engines, and
    with long ones, which are spread over all. All numbers of engines take turns.
    """
    records = Records(json_file)
    records.name_machine()
    try:
        ran = subprocess.run(_EXAMPLE, cwd=_SOURCE, stdout=subprocess.PIPE, text=True, check=False)
    except FileNotFoundError:
        fail("needs cargo, which is not installed")
    if ran.returncode != 0:
        fail(f"{' '.join(_EXAMPLE)} ended with code {ran.returncode}")
    for record in records_of(ran.stdout.splitlines()):
        records.add(record)
    records.show()
    if results is not None:
        recorded.record(records, results, "core")


command.params += [json_option(), recorded.option()]
