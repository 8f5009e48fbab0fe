"""Where the records of a benchmark go: a table for people, JSON lines for programs."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

import click

from broadleaf.cli.console import console, plain_table

if TYPE_CHECKING:
    from broadleaf.bench.results.record import Record

_STANDARD_OUTPUT = "-"
_RESULTS = Path("benchmarks", "results")


def json_option() -> click.Option:
    """The option that asks for JSON lines."""
    return click.Option(["--json", "json_file"], type=click.Path(dir_okay=False, allow_dash=True), metavar="FILE",
                        help="Append the records to FILE, one JSON object per line. With - they go to standard output, "
                        "instead of the table.")  # fmt: skip


def record_option() -> click.Option:
    """The option that asks for a file of results."""
    return click.Option(["--record", "results"], type=click.Path(file_okay=False, path_type=Path), metavar="DIR",
                        is_flag=False, flag_value=_RESULTS,
                        help="Also write the figures, with machine, commit and conditions, into a new JSON file in "
                        f"DIR, or in {_RESULTS}. `make figures` turns such files into tables and plots.")  # fmt: skip


def write_results(records: Records, folder: Path, name: str, facts: Mapping[str, object], began: datetime) -> None:
    """Writes the file that `--record` asks for, and says where it is."""
    from broadleaf.bench.results import recorded

    # As `broadleaf bench ...`, even if it was run as `python -m broadleaf.bench ...`.
    arguments = sys.argv[1:] if sys.argv[1:2] == ["bench"] else ["bench", *sys.argv[1:]]
    command = shlex.join(["broadleaf", *without_environments(arguments)])
    click.echo(recorded.write(folder, name, command, facts, records.found, began), err=True)


def without_environments(arguments: Sequence[str]) -> Iterator[str]:
    """A command's arguments but `--environments`, which names a folder of this machine and changes no figure."""
    words = iter(arguments)
    for word in words:
        if word == "--environments":
            next(words, None)
        elif not word.startswith("--environments="):
            yield word


def now() -> datetime:
    """The time a run begins."""
    return datetime.now(UTC)


class Records:
    """The records so far. Those for programs are written as they arrive, so that nothing is lost."""

    def __init__(self, json_file: str | None) -> None:
        self.found: list[Record] = []
        self._json_file = json_file
        if json_file not in (None, _STANDARD_OUTPUT):
            # A path that cannot be written is reported before anything is measured.
            with open(str(json_file), "a", encoding="utf-8"):
                pass

    def add(self, record: Record) -> None:
        """Adds a record, and writes it if requested."""
        self.found.append(record)
        if self._json_file == _STANDARD_OUTPUT:
            click.echo(record.line())
        elif self._json_file is not None:
            with open(self._json_file, "a", encoding="utf-8") as out:
                out.write(record.line() + "\n")

    def any_figure(self) -> bool:
        """Whether anything was measured."""
        return any(record.values for record in self.found)

    def show(self) -> None:
        """Prints the table, unless the records went to standard output."""
        if self._json_file == _STANDARD_OUTPUT:
            return
        from broadleaf.bench.results import table

        out = console()
        rows = table.rows(self.found)
        for case, group in groupby(rows, key=lambda row: row.record.case):
            of_case = list(group)
            columns = table.shown_columns(of_case)
            shown = plain_table([table.TITLES[column] for column in columns], table.LEFT)
            for row in of_case:
                shown.add_row(*(row.cells[column] for column in columns))
            out.print(case, style="bold")
            out.print(shown)
            out.print()
        for text in (*table.findings(self.found), *table.left_out(self.found)):
            out.print(text, markup=False)
