"""A run's figures as one JSON file, with the machine, the commit and the conditions they were taken under."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from .record import Record

#: The keys of `machine.facts` about the machine itself. The others are conditions of one run.
_OF_MACHINE = ("processor", "cores", "memory", "kernel", "python")
_GIT_TIMEOUT_S = 10


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
        "records": [record.as_dict() for record in records],
    }
    number = 1
    while True:
        path = folder / (stem + ("" if number == 1 else f"-{number}") + ".json")
        try:
            with open(path, "x", encoding="utf-8") as out:
                json.dump(content, out, indent=1)
                out.write("\n")
            return path
        except FileExistsError:
            number += 1


def commit() -> str | None:
    """The commit of Broadleaf's sources, with `-changed` if they differ from it; None outside a checkout."""
    source = Path(__file__).parent

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(source), *arguments]
        return subprocess.run(
            command, capture_output=True, text=True, timeout=_GIT_TIMEOUT_S, check=True
        ).stdout.strip()

    try:
        # An installed package may be inside a checkout of something else, which does not track its files.
        if not git("ls-files", "--", Path(__file__).name):
            return None
        return git("rev-parse", "--short=12", "HEAD") + ("-changed" if git("status", "--porcelain", "-uno") else "")
    except (OSError, subprocess.SubprocessError):
        return None
