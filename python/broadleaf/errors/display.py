"""What errors of engines look like: in logs, in tracebacks, and in IPython."""

from __future__ import annotations

import os
import re
import sys
import textwrap
from collections import Counter
from collections.abc import Iterable
from itertools import groupby
from types import TracebackType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from broadleaf.errors import CompositeError, RemoteError

_PACKAGE_DIR = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_INDENT = "  "
Entry = tuple[str, Any, str, dict[str, Any]]


def headline(ename: str, evalue: Any) -> str:
    """The last line of a traceback."""
    text = str(evalue)
    return f"{ename}: {text}" if text else ename


def engine_label(engine_info: dict[str, Any]) -> str:
    """`[0:apply]`: the engine, and the method; `[client]` for what was raised in this process."""
    if "engine_id" not in engine_info:
        return "[client]" if "is_here" in engine_info else "[Engine Exception]"
    return f"[{engine_info['engine_id']}:{engine_info.get('method', 'apply')}]"


def remote_note(error: RemoteError) -> str:
    """The remote traceback, with the engine and the item of a map."""
    return _note(error.engine_info, error.item_text(), "", error.traceback)


def _note(engine_info: dict[str, Any], item: str, more: str, text: str) -> str:
    where = [f"engine {engine_info['engine_id']}"] if "engine_id" in engine_info else []
    title = ", ".join(["Remote traceback", *where, *([item] if item else []), *([more] if more else [])])
    return f"{title}:\n{textwrap.indent(text, _INDENT)}"


# Several failures ------------------------------------------------------------------------------


class _Alike:
    """Failures with the same type, text and traceback."""

    def __init__(self, first: Entry, item: str) -> None:
        self.ename, self.evalue, self.text, self.engine_info = first
        self.item = item
        self.other_engines: list[int | None] = []

    @property
    def more(self) -> str:
        """Such as "and 11 more on engines 1-11"."""
        if not self.other_engines:
            return ""
        known = {engine for engine in self.other_engines if engine is not None}
        where = f" on engine{'s' if len(known) > 1 else ''} {id_ranges(known)}" if known else ""
        return f"and {len(self.other_engines)} more{where}"


def _alike(error: CompositeError) -> list[_Alike]:
    groups: dict[Any, _Alike] = {}
    cells: Counter[Any] = Counter()
    for number, entry in enumerate(error.elist):
        key: tuple[Any, ...] = entry[0], str(entry[1]), entry[2]
        if entry[3].get("method") == "execute":
            # An engine runs a cell once, so a second run is another cell with the same text.
            cell = *key, entry[3].get("engine_id")
            cells[cell] += 1
            key = *key, cells[cell]
        group = groups.get(key)
        if group is None:
            item = getattr(error.exceptions[number], "item_text", str)() if error.exceptions else ""
            groups[key] = _Alike(entry, item)
        else:
            group.other_engines.append(entry[3].get("engine_id"))
    return list(groups.values())


def id_ranges(numbers: Iterable[int]) -> str:
    """`0-3, 7` of 0, 1, 2, 3, 7."""
    runs = groupby(enumerate(sorted(numbers)), lambda pair: pair[1] - pair[0])
    ends = [[number for _, number in run] for _, run in runs]
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in ends)


def _bounded(error: CompositeError) -> tuple[list[_Alike], int]:
    """The groups to show, and how many failures are in the others."""
    groups = _alike(error)
    shown = groups[: error.tb_limit]
    return shown, len(error.elist) - sum(1 + len(group.other_engines) for group in shown)


def composite_summary(error: CompositeError) -> str:
    """A line for each kind of failure."""
    shown, left = _bounded(error)
    lines = [str(error.msg)]
    for group in shown:
        line = f"{engine_label(group.engine_info)} {headline(group.ename, group.evalue)}"
        line += f" ({group.item})" if group.item else ""
        lines.append(line + (f", {group.more}" if group.more else ""))
    if left:
        lines.append(f".... {left} more exceptions ...")
    return "\n".join(lines)


def composite_notes(error: CompositeError) -> list[str]:
    """The remote traceback of each kind of failure."""
    return [_note(group.engine_info, group.item, group.more, group.text) for group in _bounded(error)[0] if group.text]


def composite_lines(error: CompositeError) -> list[str]:
    """The tracebacks as lines."""
    shown, left = _bounded(error)
    lines: list[str] = []
    for group in shown:
        lines.append(engine_label(group.engine_info) + ":")
        lines.extend((group.text or headline(group.ename, group.evalue)).splitlines())
        lines += [group.more, ""] if group.more else [""]
    if left:
        lines.append(f"... {left} more exceptions ...")
    return lines


# IPython ---------------------------------------------------------------------------------------


def ipython_traceback(error: BaseException, notes: list[str]) -> list[str]:
    """What IPython shows: the user's frames, the error and the remote tracebacks, in the session's colours."""
    shell = sys.modules["IPython"].get_ipython()
    # Without cause and notes, which IPython would show in its own way.
    shown = type(type(error).__name__, (Exception,), {})(str(error))
    frames = _without_own_frames(error.__traceback__)
    lines: list[str] = shell.InteractiveTB.structured_traceback(type(shown), shown, frames)
    return [*lines, *(_coloured(_with_cells(note, shell), shell) for note in notes)]


def render_in_ipython(original: BaseException) -> None:
    """Makes IPython, if present, show what a task raised as it shows a `RemoteError`."""
    if "IPython" in sys.modules:
        # A function that any process can load, because exceptions are pickled with their attributes.
        original.__dict__["_render_traceback_"] = ipython_traceback_of_raised


def without_display(attributes: dict[str, Any]) -> dict[str, Any]:
    """An exception's attributes without the one of `render_in_ipython`, which is for this process."""
    return {name: value for name, value in attributes.items() if value is not ipython_traceback_of_raised}


def ipython_traceback_of_raised() -> list[str]:
    """`ipython_traceback` of the exception being shown, whose cause is the remote traceback."""
    error: Any = sys.exc_info()[1] or sys.last_value
    return ipython_traceback(error, list(error.__cause__.args) if error.__cause__ else [])


def _without_own_frames(traceback: TracebackType | None) -> TracebackType | None:
    entries: list[TracebackType] = []
    while traceback is not None:
        entries.append(traceback)
        traceback = traceback.tb_next
    kept = [entry for entry in entries if not entry.tb_frame.f_code.co_filename.startswith(_PACKAGE_DIR)]
    made: TracebackType | None = None
    for entry in reversed(kept):
        made = TracebackType(made, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
    return made


def _with_cells(text: str, shell: Any) -> str:
    """`text` with cells under their names in the session."""

    def named(match: re.Match[str]) -> str:
        name = shell.compile.format_code_name(match[1])
        return match[0] if name is None else 'File "{}"'.format(" ".join(name))

    return re.sub('File "([^"]+)"', named, text)


def coloured_traceback(text: str) -> str:
    """A traceback as IPython's session shows one."""
    return _highlighted(text, sys.modules["IPython"].get_ipython())


def _coloured(note: str, shell: Any) -> str:
    """A title, and below it an indented traceback."""
    title, *body = note.splitlines()
    # The lexer recognizes a traceback by the beginnings of its lines.
    plain = "\n".join(line.removeprefix(_INDENT) for line in body)
    return f"{title}\n{textwrap.indent(_highlighted(plain, shell), _INDENT)}"


def _highlighted(text: str, shell: Any) -> str:
    if str(getattr(shell, "colors", "nocolor")).lower() == "nocolor":
        return text
    from pygments import highlight  # type: ignore[import-untyped]
    from pygments.formatters import Terminal256Formatter, TerminalFormatter  # type: ignore[import-untyped]
    from pygments.lexers import PythonTracebackLexer  # type: ignore[import-untyped]

    try:
        from IPython.utils.PyColorize import theme_table

        formatter: Any = Terminal256Formatter(style=theme_table[shell.colors].as_pygments_style())
    except (ImportError, KeyError, AttributeError):
        # IPython before version 9 has no themes.
        formatter = TerminalFormatter()
    return str(highlight(text, PythonTracebackLexer(), formatter)).rstrip()
