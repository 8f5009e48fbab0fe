"""What tasks raised, by kind, as engines describe it and the controller counts it: rows for pages and terminals."""

import json
import linecache
import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from broadleaf.errors.display import with_cell_names


class ErrorKind(NamedTuple):
    """One error of a kind."""

    ename: str = "error"
    evalue: str = ""
    traceback: str = ""
    item: str = ""
    """The item, or the arguments of the call, that it was raised for."""
    item_index: int | None = None
    file: str = ""
    line: int = 0
    source: str = ""
    """The line of the user's code that raised, without its indentation."""


_USUAL = ErrorKind()._asdict()


def _described(text: str) -> dict[str, Any]:
    """What an engine says of an error; of what it does not say, or not as it should, the default."""
    try:
        told = json.loads(text) if text else {}
    except ValueError:
        told = {}
    if not isinstance(told, dict):
        told = {}
    kinds = {name: int if usual is None else type(usual) for name, usual in _USUAL.items()}
    return {name: told[name] if isinstance(told.get(name), kinds[name]) else usual for name, usual in _USUAL.items()}


# Engines do not know what was typed here: cells of a notebook, lines at a prompt.


_FRAME_LINE = re.compile(r'([ |]*)  File "(.*)", line (\d+), in .*')


def _with_own_source(told: dict[str, Any]) -> dict[str, Any]:
    """An error with the source lines that only this process has, and with its cells under their names."""
    lines: list[str] = []
    for line, following in pairwise([*told["traceback"].splitlines(), ""]):
        lines.append(line)
        match = _FRAME_LINE.fullmatch(line)
        if match is not None and not following.startswith(f"{match[1]}    "):
            source = _typed_line(match[2], int(match[3]))
            lines += [f"{match[1]}    {source}"] if source else []
    return told | {
        "traceback": with_cell_names("\n".join(lines)),
        "source": told["source"] or _typed_line(told["file"], told["line"]),
        "file": with_cell_names(f'File "{told["file"]}"')[len('File "') : -1],
    }


def _typed_line(file: str, line: int) -> str:
    """A line of a cell, which has no time of modification; '' of anything else."""
    entry = linecache.cache.get(file, ())
    return linecache.getline(file, line).strip() if len(entry) == 4 and entry[1] is None else ""


def error_rows(failures: Sequence[Mapping[str, Any]], now_s: float) -> list[dict[str, Any]]:
    """A row for each kind of error, the latest first: how often, where, and one of them in full.

    `failures` are the controller's, and `now_s` is the wall clock.
    """
    return [
        {
            "function": failure["function"],
            "tasks": failure["tasks"],
            "items": failure["items"],
            "engine": failure["engine"],
            "ago_s": max(0, round(now_s - failure["last_ns"] / 1e9)),
            "key": f"{failure['tag']} {failure['first_ns']}",
            **_with_own_source(_described(failure["text"])),
        }
        for failure in failures
    ]


def headline_of(row: Mapping[str, Any]) -> str:
    """Type and message of an error, in one line."""
    what = f"{row['ename']}: {row['evalue']}" if row["evalue"] else str(row["ename"])
    return what.partition("\n")[0]


def error_sentence(row: Mapping[str, Any]) -> str:
    """An error for a terminal: what, in which function, how often, for which item and on which engine; and its line."""
    item = f", first for {row['item']}" if row["item"] else ""
    times = "once" if row["items"] == 1 else f"{row['items']:,} times"
    text = f"{headline_of(row)} in {row['function'] or 'a task'}, {times}{item}, last on engine {row['engine']}"
    return f"{text}\n  {row['file']}, line {row['line']}: {row['source']}" if row["file"] else text
