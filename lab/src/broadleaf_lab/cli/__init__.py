"""The `broadleaf-lab` command: one file per subcommand, each imported only when it is needed."""

from __future__ import annotations

from typing import Any

import click

from broadleaf_lab.cli.terminal import LabGroup

_COMMANDS = {
    "designs.init": "Write a commented study file to start from.",
    "designs.import_": "Make a study from runs that were made elsewhere.",
    "designs.plan": "Choose the runs of a study and show what they can detect.",
    "run.run": "Make the runs that are planned and not yet measured.",
    "run.settle": "Choose runs, make them, and stop when every question is decided.",
    "run.status": "Show a study's progress.",
    "analysis.deltas": "Write the table of every X and X + treatment.",
    "analysis.analyse": "Show effects, interactions and verdicts, with intervals.",
    "analysis.path": "Show the steps from the baseline to the fastest settings, in a chosen order.",
    "report.report": "Write a report as HTML that works offline.",
    "comparisons.compare": "Judge whether a change would help or hinder.",
    "comparisons.vs": "Find out which of two commands is faster, without a study.",
    "report.recommend": "Recommend settings, and write them into a configuration file.",
    "run.tune": "Search for the best setting of a workload.",
    "comparisons.history": "Measure a range of commits and find those that changed the speed.",
    "comparisons.gate": "Compare HEAD with a base commit on this machine.",
    "run.sweep": "Vary one numeric factor and show its response curve.",
    "designs.power": "Show how many runs an effect needs, or the smallest effect that N runs can detect.",
    "report.export": "Write the data for R, Excel, SQLite or Parquet.",
}


@click.group(
    "lab",
    cls=LabGroup,
    texts=_COMMANDS,
    package="broadleaf_lab.cli",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(package_name="broadleaf-lab", prog_name="broadleaf-lab")
def command() -> None:
    """The performance laboratory: find out which setting makes a workload fast, how sure you can be, and what it
    depends on.

    A study is a directory with a study.toml: `broadleaf-lab init` writes one, `plan` chooses the runs, `run` measures,
    `report` shows the results.
    """


def main(arguments: list[str] | None = None) -> Any:
    """Entry point of the console script."""
    return command.main(arguments, prog_name="broadleaf-lab")
