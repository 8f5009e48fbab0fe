"""What an engine has written, for whoever looks at it: its latest output and its log, as its host can read them."""

from __future__ import annotations

import codecs
import os
from typing import Any, NamedTuple

from broadleaf.engine import recent_output

# How much of an existing log is read, and how much of new output at a time.
_FIRST_BYTES = 32 * 1024
_MAX_BYTES = 64 * 1024
_MAX_LINE_CHARACTERS = 500


class Seen(NamedTuple):
    """What an observer already has of an engine."""

    pid: int
    """The process that it is of: an engine that is started again writes from the beginning."""
    output_bytes: int
    log_bytes: int


def news(pid: int, log_path: str, seen: Seen | None) -> dict[str, Any]:
    """What an engine has written since; `output` and `log` are None where they cannot be read.

    Without a process, `pid` is 0.
    """
    # One that has died has written all that it will.
    known = seen if seen is not None and pid in (seen.pid, 0) else None
    return {
        "pid": pid,
        "is_new": known is None,
        "output": _output(pid, known.output_bytes if known else 0) if pid else None,
        "log": _log(log_path, known.log_bytes if known else None),
    }


def _output(pid: int, seen_bytes: int) -> dict[str, Any] | None:
    found = recent_output.read_of_process(pid)
    if found is None:
        return None
    written_bytes, latest = found
    new = latest[max(0, len(latest) - (written_bytes - seen_bytes)) :] if written_bytes > seen_bytes else b""
    # A character whose other bytes are still to come is told with them.
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    text = decoder.decode(new)
    n_held = len(decoder.getstate()[0])
    missing_bytes = max(0, written_bytes - seen_bytes - len(new))
    return {"end": written_bytes - n_held, "text": text, "missing_bytes": missing_bytes}


def _log(path: str, seen_bytes: int | None) -> dict[str, Any] | None:
    try:
        end, lines = lines_after(path, seen_bytes)
    except OSError:
        return None
    return {"end": end, "lines": lines}


def lines_after(path: str | os.PathLike[str], offset: int | None) -> tuple[int, list[str]]:
    """The lines of a log from an offset on, and the offset of the next; without one, the lines at the end.

    Only whole lines are read, and if there is very much, only the latest. Raises `OSError`.
    """
    with open(path, "rb") as file:
        end = file.seek(0, 2)
        start = max(0, end - _FIRST_BYTES) if offset is None else offset
        if end < start:
            start = 0
        start = max(start, end - _MAX_BYTES)
        file.seek(start)
        data = file.read(end - start)
    whole, newline, rest = data.rpartition(b"\n")
    lines = whole.decode("utf-8", "replace").split("\n") if newline else []
    if offset is None and start > 0:
        lines = lines[1:]
    return end - len(rest), [line[:_MAX_LINE_CHARACTERS] for line in lines]
