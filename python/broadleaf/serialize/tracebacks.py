"""The text of a traceback: made on the engine, completed by the client with source that only the client has."""

from __future__ import annotations

import functools
import os
import re
import traceback  # not when it is needed: a task that fails may have used up all descriptors
from collections import OrderedDict
from collections.abc import Iterator
from types import CodeType, TracebackType

# Limits on what is kept of a traceback.
_LINES = 400
_LINE_CHARACTERS = 20_000

_PACKAGE_DIR = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
# These frames may also be between the engine's loop and the user's code.
_CARRIERS = (_PACKAGE_DIR, os.path.dirname(os.__file__) + os.sep + "asyncio" + os.sep)
_JOBLIB = os.sep + "joblib" + os.sep + "parallel.py"

Position = tuple[str, int, str]
"""A frame as its traceback line names it: file, line, function."""
Span = tuple[int | None, int | None, int | None]
"""The rest of its position: last line, first column and column after the last."""

_FRAME_LINE = r'([ |]*)  File "(.*)", line (\d+), in (.*)'


Missing = tuple[tuple[Position, Span], ...]
"""Frames whose source is not known here."""
_Places = tuple[int, ...]
"""Where the frames of a traceback stood: the identity of each one's code, and the position in it."""

# The text of the frames of the latest tracebacks. It takes most of the time that an error takes, and a map whose
# function is wrong raises it in the same place for every item.
_KEPT_STACKS = 64
_stacks: OrderedDict[_Places, tuple[str, Missing, list[CodeType]]] = OrderedDict()


def traceback_text(error: BaseException) -> tuple[str, Missing]:
    """The traceback of `error` without Broadleaf's frames, and the frames in it whose source is not known here."""
    tb = users_part(error.__traceback__)
    if tb is None or not _stands_alone(error):
        shown = traceback.TracebackException(type(error), error, tb)
        return bounded("".join(shown.format())), _missing(shown)
    places, last = _places(tb)
    if places in _stacks:
        _stacks.move_to_end(places)
    else:
        shown = traceback.TracebackException(type(error), error, tb)
        # The code is kept, so that no other gets its identity.
        _stacks[places] = "".join(shown.stack.format()), _missing(shown), _codes(tb)
        if len(_stacks) > _KEPT_STACKS:
            _stacks.popitem(last=False)
    stack, missing, _ = _stacks[places]
    # Python looks for similar names in the last frame.
    within = last if isinstance(error, NameError) else None
    lines = traceback.TracebackException(type(error), error, within).format_exception_only()
    return bounded(f"Traceback (most recent call last):\n{stack}{''.join(lines)}"), missing


def _stands_alone(error: BaseException) -> bool:
    """Whether its traceback shows its own frames and its message, and nothing else."""
    shows_context = error.__context__ is not None and not error.__suppress_context__
    return error.__cause__ is None and not shows_context and not isinstance(error, BaseExceptionGroup)


def _places(tb: TracebackType) -> tuple[_Places, TracebackType]:
    """Where the frames of a traceback stood, and the last of them."""
    places = [id(tb.tb_frame.f_code), tb.tb_lasti]
    while tb.tb_next is not None:
        tb = tb.tb_next
        places += (id(tb.tb_frame.f_code), tb.tb_lasti)
    return tuple(places), tb


def _codes(tb: TracebackType | None) -> list[CodeType]:
    codes = []
    while tb is not None:
        codes.append(tb.tb_frame.f_code)
        tb = tb.tb_next
    return codes


def _missing(shown: traceback.TracebackException) -> Missing:
    missing = {
        (frame.filename, frame.lineno or 0, frame.name): (frame.end_lineno, frame.colno, frame.end_colno)
        for part in _chain(shown)
        for frame in part.stack
        if not frame.line
    }
    return tuple(missing.items())


def users_part(tb: TracebackType | None) -> TracebackType | None:
    """The rest of a traceback without the frames between the engine's loop and the user's code."""
    while tb is not None and _carries(tb.tb_frame.f_code.co_filename):
        tb = tb.tb_next
    return tb


def _carries(filename: str) -> bool:
    return filename.startswith(_CARRIERS) or filename.endswith(_JOBLIB)


def _chain(shown: traceback.TracebackException) -> Iterator[traceback.TracebackException]:
    left: list[traceback.TracebackException | None] = [shown]
    while left:
        part = left.pop()
        if part is not None:
            yield part
            left += [part.__cause__, part.__context__, *(part.exceptions or ())]


def bounded(text: str) -> str:
    """`text`, shortened in the middle if it is too long."""
    lines = [_bounded_line(line) for line in text.splitlines()]
    if len(lines) > _LINES:
        half = _LINES // 2
        lines = [*lines[:half], f"... {len(lines) - 2 * half} lines left out ...", *lines[-half:]]
    return "\n".join(lines)


def _bounded_line(line: str) -> str:
    if len(line) <= _LINE_CHARACTERS:
        return line
    half = _LINE_CHARACTERS // 2
    return f"{line[:half]} ... {len(line) - 2 * half} characters left out ... {line[-half:]}"


@functools.lru_cache(64)
def with_source(text: str, missing: tuple[tuple[Position, Span], ...]) -> str:
    """`text` with the source lines of the frames in `missing`, as far as this process has them.

    It has those of notebook cells and of code typed at a prompt.
    """
    spans = dict(missing)
    lines: list[str] = []
    for line in text.splitlines():
        lines.append(line)
        match = re.fullmatch(_FRAME_LINE, line)
        if match is None:
            continue
        margin, filename, lineno, name = match.groups()
        span = spans.get((filename, int(lineno), name))
        if span is not None:
            lines += [margin + source for source in _source_lines((filename, int(lineno), name), span)]
    return "\n".join(lines)


def _source_lines(position: Position, span: Span) -> list[str]:
    end_lineno, colno, end_colno = span
    frame = traceback.FrameSummary(*position, end_lineno=end_lineno, colno=colno, end_colno=end_colno)
    return "".join(traceback.StackSummary.from_list([frame]).format()).splitlines()[1:]
