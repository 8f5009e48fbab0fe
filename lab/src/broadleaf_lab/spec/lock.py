"""study.lock.toml: what was determined once and applies to all runs of a study."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from broadleaf_lab.errors import RunError, writing
from broadleaf_lab.spec.runs import replace_file

LOCK_FILE = "study.lock.toml"
_HEAD = "# Written by `broadleaf-lab run`. The runs in runs.csv hold for these values; delete both together.\n"


def read_lock(directory: Path) -> dict[str, dict[str, Any]]:
    """The tables of the lock file; none if the file does not exist yet."""
    path = directory / LOCK_FILE
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except tomllib.TOMLDecodeError as error:
        raise RunError(f"{path} is not TOML ({error}). Delete it to calibrate again.") from None


def write_lock(directory: Path, tables: Mapping[str, Mapping[str, Any]]) -> None:
    """Replaces these tables of the lock file and keeps the others. Values are texts, numbers, booleans and lists of
    them; None is omitted.
    """
    merged = {**read_lock(directory), **tables}
    parts = [_HEAD]
    for name, table in merged.items():
        lines = [f"{json.dumps(key)} = {_value(value)}" for key, value in table.items() if value is not None]
        parts.append("\n".join([f"[{name}]", *lines]) + "\n")
    with writing(directory):
        directory.mkdir(parents=True, exist_ok=True)
    replace_file(directory / LOCK_FILE, "\n".join(parts))


def _value(value: object) -> str:
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_value, value))}]"
    if isinstance(value, str):
        # A basic string in TOML is the same as in JSON, except for characters that JSON escapes as surrogate pairs.
        return json.dumps(value, ensure_ascii=False)
    return json.dumps(value)
