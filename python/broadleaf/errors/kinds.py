"""What tasks raised, by kind, as engines describe it and the controller counts it: rows for pages and terminals."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple


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
            **_described(failure["text"]),
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
