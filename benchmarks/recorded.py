"""A run's figures as one JSON file, with the machine, the commit and the conditions they were taken under."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from broadleaf.bench.record import Record
    from broadleaf.cli.bench import Records

_RESULTS = Path("benchmarks", "results")
#: The keys of `machine_facts` about the machine itself. The others are conditions of one run.
_OF_MACHINE = ("processor", "cores", "memory", "kernel", "python")
_GIT_TIMEOUT_S = 10


def option() -> click.Option:
    """The option that asks for a file of results."""
    return click.Option(["--record", "results"], type=click.Path(file_okay=False, path_type=Path), metavar="DIR",
                        is_flag=False, flag_value=_RESULTS,
                        help="Also write the figures, with machine, commit and conditions, into a new JSON file in "
                        f"DIR, or in {_RESULTS}. `make figures` turns such files into tables and plots.")  # fmt: skip


def record(records: Records, folder: Path, name: str) -> None:
    """Writes the file that `--record` asks for, and says where it is."""
    command = shlex.join(["python", "-m", "benchmarks", *without_environments(sys.argv[1:])])
    click.echo(write(folder, name, command, records.facts, records.found, records.began), err=True)


def without_environments(arguments: Sequence[str]) -> Iterator[str]:
    """A command's arguments but `--environments`, which names a folder of this machine and changes no figure."""
    words = iter(arguments)
    for word in words:
        if word == "--environments":
            next(words, None)
        elif not word.startswith("--environments="):
            yield word


def write(
    folder: Path, name: str, command: str, facts: Mapping[str, object], records: Sequence[Record], when: datetime
) -> Path:
    """Writes a run's file into `folder`, which is created if missing, and returns its path. `name` says what was
    measured, and `command` how to repeat it. Never overwrites a file.
    """
    folder.mkdir(parents=True, exist_ok=True)
    known = commit()
    stem = "-".join(filter(None, (when.astimezone(UTC).date().isoformat(), name, (known or "")[:8])))
    content = {
        "date": when.astimezone(UTC).isoformat(timespec="seconds"),
        "commit": known,
        "command": command,
        "machine": {name: facts[name] for name in _OF_MACHINE},
        "conditions": {name: value for name, value in facts.items() if name not in _OF_MACHINE},
    }
    # A record to a line: some runs have thousands.
    lines = ",\n".join(f"  {record.line()}" for record in records)
    head = json.dumps(content, indent=1).removesuffix("\n}")
    number = 1
    while True:
        path = folder / (stem + ("" if number == 1 else f"-{number}") + ".json")
        try:
            with open(path, "x", encoding="utf-8") as out:
                out.write(f'{head},\n "records": [\n{lines}\n ]\n}}\n')
            return path
        except FileExistsError:
            number += 1


def commit() -> str | None:
    """The commit of this checkout, with `-changed` if its files differ from it; None outside one."""
    source = Path(__file__).parent

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(source), *arguments]
        return subprocess.run(
            command, capture_output=True, text=True, timeout=_GIT_TIMEOUT_S, check=True
        ).stdout.strip()

    try:
        return git("rev-parse", "--short=12", "HEAD") + ("-changed" if git("status", "--porcelain", "-uno") else "")
    except (OSError, subprocess.SubprocessError):
        return None
