"""Tables in HTML of engines and other facts, and the memory of a process."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

from broadleaf.text import duration, size

# Small HTML tables for notebooks. They take the notebook's own colours, light or dark.


# Maximum number of engines that are listed one by one.
_ROWS = 16
_STATES = {"up": "idle", "down": "gone"}
_CARD = "display: inline-block; border: 1px solid rgba(128, 128, 128, 0.4); border-radius: 6px; padding: 0.5em 0.9em"
_CELL = "text-align: left; padding: 0.1em 1em 0.1em 0"


def titled(title: str, facts: Iterable[tuple[str, Any]], *more: str) -> str:
    """A block with a title, a line of facts that are not empty, and what follows."""
    line = " · ".join(f"{escape(name)} <b>{escape(str(value))}</b>" for name, value in facts if value not in ("", None))
    frame = f' style="{_CARD}"' if title else ""
    return f"<div{frame}><b>{escape(title)}</b>{f'<div>{line}</div>' if line else ''}{''.join(more)}</div>"


def table(header: Sequence[str], rows: Sequence[Sequence[Any]], n_more: int = 0, of: str = "") -> str:
    """A table without empty columns, and with a line for the rows that are left out. Empty if there are no rows."""
    if not rows:
        return ""
    used = [column for column in range(len(header)) if any(row[column] not in ("", None) for row in rows)]
    header, rows = [header[column] for column in used], [[row[column] for column in used] for row in rows]
    head = "".join(f'<th style="{_CELL}">{escape(name)}</th>' for name in header)
    body = "".join(
        "<tr>" + "".join(f'<td style="{_CELL}">{escape(str(value))}</td>' for value in row) + "</tr>" for row in rows
    )
    more = f'<tr><td colspan="{len(header)}">and {n_more:,} more {escape(of)}</td></tr>' if n_more else ""
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}{more}</tbody></table>"


def engine_table(status: dict[str, Any], hosts: dict[int, str], wanted: Iterable[int] | None = None) -> str:
    """The engines in a cluster's status: state, queue, tasks, memory, restarts. `hosts` are the engines' hosts by id,
    if known; `wanted` are the engines to show, by default all.
    """
    chosen = None if wanted is None else set(wanted)
    engines = [engine for engine in status["engines"] if chosen is None or engine["engine"] in chosen]
    rows = [_row(engine, hosts.get(engine["engine"], "")) for engine in engines[:_ROWS]]
    header = ("engine", "state", "waiting", "done", "busy", "memory", "restarts", "host", "pid")
    return table(header, rows, len(engines) - len(rows), "engines")


def _row(engine: dict[str, Any], host: str) -> tuple[Any, ...]:
    is_busy = engine["up"] and engine["outstanding"] > 0
    state = "busy" if is_busy else str(_STATES.get(engine["state"], engine["state"]))
    death = engine["last_death"]
    if not engine["up"] and death:
        # The code of an exit or a signal.
        words = [str(word).replace("_", " ") for word in (death.get("cause"), death.get("code")) if word is not None]
        state = f"{state}: {' '.join(words)}"
    return (
        engine["engine"],
        state,
        engine["queued"],
        f"{engine['completed']:,}",
        duration(engine["busy_ns"] / 1e9),
        _memory(engine["pid"], host) if engine["up"] else "",
        engine["restarts"] or "",
        host,
        engine["pid"] if engine["up"] else "",
    )


def _memory(pid: int, host: str) -> str:
    used_bytes = resident_bytes(pid, host)
    return "" if used_bytes is None else size(used_bytes)


# Memory of processes on this host.


_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def resident_bytes(pid: int, host: str = "") -> int | None:
    """Memory that a process uses, including shared pages; None if it is on another host or cannot be read."""
    if host not in ("", socket.gethostname()):
        return None
    try:
        with open(f"/proc/{pid}/statm", "rb") as file:
            return int(file.read().split()[1]) * _PAGE_BYTES
    except (OSError, ValueError, IndexError):
        return None
