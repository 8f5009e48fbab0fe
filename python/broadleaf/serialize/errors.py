"""Exceptions and their tracebacks on the way back from an engine."""

import functools
import json
import os
import pickle
import re
import reprlib
import struct
import traceback  # not when it is needed: a task that fails may have used up all descriptors
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from types import CodeType, TracebackType
from typing import Any, NamedTuple, Self

from broadleaf.errors import RemoteError, typed
from broadleaf.errors.kinds import ErrorKind
from broadleaf.errors.types import ExceptionParts, pickles_in_its_own_way
from broadleaf.serialize import PROTOCOL

# The text of a traceback: made on the engine, completed by the client with source that only the client has.


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
    return _traceback_text(error, _is_long(error))


def _traceback_text(error: BaseException, is_long: bool) -> tuple[str, Missing]:
    tb = users_part(error.__traceback__)
    error = _shortened(error, is_long)
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


# Exceptions on their way back from engines.


# Limits on what is sent of an exception: on its text, its pickle, and an item that it was raised for.
_EVALUE_CHARACTERS = 20_000
_ORIGINAL_BYTES = 1 << 20
_PART_BYTES = 1 << 16
_ITEM_CHARACTERS = 100


class ErrorRecord(NamedTuple):
    """An exception in the form that is sent."""

    ename: str
    evalue: str
    traceback: str
    engine_info: dict[str, Any]
    original: bytes | None = None
    """The exception's pickle, where it can be made and loaded."""
    missing_source: tuple[tuple[Position, Span], ...] = ()
    """Frames of the traceback whose source the engine does not have."""
    item_index: int | None = None
    """Which item of a chunk it was raised for."""
    item_repr: str = ""
    """A short text of that item, or of the arguments of the call."""
    outcomes: bytes | None = None
    """Of a chunk: the pickle of the list of its items' values, with a `Failed` for each that has none."""


class FailedItem(NamedTuple):
    """The item or arguments that an exception was raised for."""

    position: int | None
    """Its position in the chunk; None if the call is not a chunk."""
    arguments: tuple[Any, ...]


def dump_error(
    error: BaseException,
    engine_id: int = -1,
    engine_uuid: str = "",
    method: str = "apply",
    item: FailedItem | None = None,
    output: dict[str, Any] | None = None,
    kept_frames: int | None = None,
    outcomes: bytes | None = None,
    failed: Sequence[ErrorRecord] = (),
) -> bytes:
    """The record of an exception that ended a task. Never raises, whatever the exception's own methods do.

    `output` is what a cell wrote before, for clients that did not run it. If the engine keeps the exception,
    `kept_frames` is its number. `outcomes` are those of a chunk's items, and `failed` are the records of those that
    failed. No interrupt can be meant for the task any more, so a `KeyboardInterrupt` comes from the exception itself.
    """
    info: dict[str, Any] = {"engine_id": engine_id, "engine_uuid": engine_uuid, "method": method}
    if output:
        info["output"] = output
    if kept_frames is not None:
        info["kept_frames"] = kept_frames
    try:
        record = error_record(error, info, item)
    except KeyboardInterrupt as worse:
        record = ErrorRecord(type(error).__name__, _no_text(worse), "", info)
    return error_heads(failed or [record]) + pickle.dumps(tuple(record._replace(outcomes=outcomes)), PROTOCOL)


# What stands before the pickle of a record, for each kind of error: see crates/proto/src/records/error_head.rs.
_HEAD = struct.Struct("<4sQII")
_HEAD_MARK = b"BLer"
# Limits on what a head says of an error, and on the kinds that this process remembers having described.
_HEAD_EVALUE_CHARACTERS = 300
_HEAD_TRACEBACK_CHARACTERS = 2_500
_HEAD_PLACE_CHARACTERS = 300
_HEAD_BYTES = 16 * 1024
_HEAD_KINDS = 64
_HEADS = 16
_described: OrderedDict[int, None] = OrderedDict()


def error_heads(records: Sequence[ErrorRecord]) -> bytes:
    """What tells the controller which kinds of errors these are, and how many of each; the first of a kind is
    described."""
    first: dict[int, tuple[ErrorRecord, tuple[str, int, str]]] = {}
    counts: Counter[int] = Counter()
    for record in records:
        file, line, source = _place(record.traceback)
        # The same on all engines, which have one hash seed, and never 0, which stands for records without a head.
        kind = hash((record.ename, file, line)) % 2**64 or 1
        counts[kind] += 1
        if kind not in first:
            first[kind] = record, (file, line, source)
    return b"".join(
        _HEAD.pack(_HEAD_MARK, kind, counts[kind], len(text)) + text
        for kind, (record, place) in islice(first.items(), _HEADS)
        for text in [_description(kind, record, *place)]
    )


def _description(kind: int, record: ErrorRecord, file: str, line: int, source: str) -> bytes:
    """JSON about an error; empty if its kind has been described before. Errors that no line of the user's code raised,
    such as those of builtins, have too little in common for that."""
    text = b""
    if kind not in _described or not file:
        told = ErrorKind(
            record.ename,
            record.evalue[:_HEAD_EVALUE_CHARACTERS],
            record.traceback[-_HEAD_TRACEBACK_CHARACTERS:],
            record.item_repr,
            record.item_index,
            file[-_HEAD_PLACE_CHARACTERS:],
            line,
            source[:_HEAD_PLACE_CHARACTERS],
        )
        text = json.dumps(told._asdict(), ensure_ascii=False).encode("utf-8", "replace")
        if len(text) > _HEAD_BYTES:
            text = b""
    _described[kind] = None
    _described.move_to_end(kind)
    if len(_described) > _HEAD_KINDS:
        _described.popitem(last=False)
    return text


def _place(text: str) -> tuple[str, int, str]:
    """Where the last frame of a traceback stands: file, line, and its source."""
    after = ""
    for line in reversed(text.splitlines()):
        if "  File " in line and (match := re.fullmatch(_FRAME_LINE, line)) is not None:
            margin, file, lineno, _ = match.groups()
            has_source = after.startswith(margin + "    ")
            return file, int(lineno), after.removeprefix(margin).strip() if has_source else ""
        after = line
    return "", 0, ""


def error_record(error: BaseException, info: dict[str, Any], item: FailedItem | None = None) -> ErrorRecord:
    """The record of an exception. Raises only `KeyboardInterrupt`."""
    if isinstance(error, ModuleNotFoundError | AttributeError):
        from broadleaf.serialize.modules import explain_module

        explain_module(error)
    elif isinstance(error, NameError):
        from broadleaf.serialize import namespace

        namespace.explain_name(error)
    is_long = _is_long(error)
    evalue = _text(error, is_long)
    try:
        text, missing = _traceback_text(error, is_long)
    except KeyboardInterrupt:
        raise
    except BaseException as worse:
        text, missing = f"{type(error).__name__}: (no traceback: {type(worse).__name__})", ()
    index, shown = (None, "") if item is None else (item.position, item_text(item.arguments))
    return ErrorRecord(type(error).__name__, evalue, text, info, _pickled(error, is_long), missing, index, shown)


def _text(error: BaseException, is_long: bool) -> str:
    """Its text, or why there is none. Raises only `KeyboardInterrupt`."""
    try:
        return _short_text(error) if is_long else str(error)[:_EVALUE_CHARACTERS]
    except KeyboardInterrupt:
        raise
    except BaseException as worse:
        return _no_text(worse)


# Python makes the text of most exceptions from that of their arguments. It can be of any length: that of a list that
# holds another twice, and so on for forty levels, fills the memory, although the list is small.


_LONG_CHARACTERS = 10 * _EVALUE_CHARACTERS
_MADE_OF_ARGUMENTS = (BaseException.__str__, KeyError.__str__)


def _is_long(error: BaseException) -> bool:
    """Whether the text of an exception is too long to be made. A text that is its only argument is there already."""
    # Its class may have an `args` of its own.
    arguments = vars(BaseException)["args"].__get__(error)
    if type(error).__str__ not in _MADE_OF_ARGUMENTS or (len(arguments) == 1 and type(arguments[0]) is str):
        return False
    try:
        return _left_of(_LONG_CHARACTERS, arguments, set()) < 0
    except RecursionError:
        return False  # making the text will say so


def _left_of(limit: int, value: Any, within: set[int]) -> int:
    """What is left of a number of characters after the text of a value, at least about; negative if too few."""
    kind = type(value)
    if kind in (str, bytes, bytearray):
        return limit - len(value)
    if kind not in (list, tuple, set, frozenset, dict):
        return limit - 1
    limit -= 2 + len(value)
    if limit < 0 or id(value) in within:
        return limit
    within.add(id(value))
    for part in value:
        limit = _left_of(limit, part, within)
        if kind is dict:
            limit = _left_of(limit, value[part], within)
        if limit < 0:
            break
    within.remove(id(value))
    return limit


def _short_text(error: BaseException) -> str:
    return f"{item_text(error.args)} (shortened)"


class _Shortened(Exception):
    """Stands for an exception whose text is too long, or that of its cause, where its traceback is made."""


def _shortened(error: BaseException, is_long: bool, before: tuple[BaseException, ...] = ()) -> BaseException:
    """`error`, unless the text of it or of one in its chain is too long; then one with short texts in its place."""
    if error in before:
        return error
    cause, context = (
        one and _shortened(one, _is_long(one), (*before, error)) for one in (error.__cause__, error.__context__)
    )
    if not is_long and cause is error.__cause__ and context is error.__context__:
        return error
    kind = type(error)
    made = type(kind.__name__, (_Shortened,), {"__module__": kind.__module__, "__qualname__": kind.__qualname__})
    stand_in: BaseException = made(_text(error, is_long))
    stand_in.__cause__, stand_in.__context__ = cause, context
    stand_in.__suppress_context__ = error.__suppress_context__
    for note in getattr(error, "__notes__", ()):
        stand_in.add_note(note)
    return stand_in.with_traceback(error.__traceback__)


def _no_text(worse: BaseException) -> str:
    return f"<its text is not available: {type(worse).__name__}>"


def _pickled(error: BaseException, is_long: bool) -> bytes | None:
    if isinstance(error, BaseExceptionGroup):
        # Its own way would send the members whole, and fail with the first of them that cannot be sent.
        forms: list[Callable[[], Any]] = [lambda: ExceptionParts(error, None, _member)]
    else:
        forms = [lambda: ExceptionParts(error)]
        if pickles_in_its_own_way(error):
            forms.insert(0, lambda: error)
    forms.append(lambda: ExceptionParts(error, _sendable, _member))
    has_text = is_long or _has_text(error)
    for sent in forms:
        try:
            data = _dumps(sent())
            if len(data) <= _ORIGINAL_BYTES:
                loaded = pickle.loads(data)
                if type(loaded) is type(error) and (is_long or not has_text or _has_text(loaded)):
                    return data
        except KeyboardInterrupt:
            raise
        except BaseException:
            continue
    return None


def _has_text(error: BaseException) -> bool:
    """Whether `str` of it works. Raises only `KeyboardInterrupt`."""
    try:
        str(error)
    except KeyboardInterrupt:
        raise
    except BaseException:
        return False
    return True


class _Member:
    """Pickles as one exception of a group."""

    __slots__ = ("_data",)

    def __init__(self, data: bytes) -> None:
        self._data = data

    def __reduce__(self) -> tuple[Any, ...]:
        return pickle.loads, (self._data,)


def _member(error: BaseException) -> Any:
    """What is sent for an exception of a group: if not itself, a `RemoteError` in its place."""
    is_long = _is_long(error)
    data = _pickled(error, is_long)
    if data is not None:
        return _Member(data)
    return RemoteError(type(error).__name__, _text(error, is_long))


def _sendable(value: Any) -> Any:
    """`value` if it can be sent, or else a short description of it."""
    try:
        if len(_dumps(value)) <= _PART_BYTES:
            return value
    except KeyboardInterrupt:
        raise
    except BaseException:
        pass
    return item_text((value,))


def _dumps(value: Any) -> bytes:
    from broadleaf.serialize.values import dumps, dumps_in_band

    data, buffers = dumps(value)
    return dumps_in_band(value) if buffers else data


class _ItemRepr(reprlib.Repr):
    """Short descriptions of items of any kind, made without reading all of a large one."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlevel, self.maxstring, self.maxother = 3, 60, 60

    def repr_bytes(self, value: bytes, level: int) -> str:
        return repr(value[: self.maxstring]) + ("..." if len(value) > self.maxstring else "")

    repr_bytearray = repr_bytes

    def repr_ndarray(self, value: Any, level: int) -> str:
        # The values of a small array; the text of a large one takes long to make.
        return self.repr_instance(value, level) if value.size <= 10 else f"array of {value.dtype}, shape {value.shape}"


_repr = _ItemRepr().repr


def item_text(arguments: tuple[Any, ...]) -> str:
    """A short description of a call's arguments: of the only one, or of all. Raises only `KeyboardInterrupt`."""
    if not arguments:
        return ""
    try:
        text = _repr(arguments[0] if len(arguments) == 1 else arguments)
    except KeyboardInterrupt:
        raise
    except BaseException as worse:
        return f"<no text: {type(worse).__name__}>"
    text = " ".join(text.split())
    return text if len(text) <= _ITEM_CHARACTERS else text[: _ITEM_CHARACTERS - 3] + "..."


def load_error(data: bytes) -> RemoteError:
    """The exception for a record from `dump_error`, with the original as its `__cause__` if it can be loaded."""
    return remote_error(load_record(data))


def load_record(data: bytes) -> ErrorRecord:
    """The record from `dump_error`."""
    try:
        position = 0
        while data[position : position + len(_HEAD_MARK)] == _HEAD_MARK:
            position += _HEAD.size + _HEAD.unpack_from(data, position)[-1]
        return ErrorRecord(*pickle.loads(memoryview(data)[position:]))
    except Exception as error:
        return ErrorRecord("UnreadableError", f"the engine's error record cannot be read: {error}", "", {})


def remote_error(record: ErrorRecord) -> RemoteError:
    """The exception for an error record."""
    text = with_source(record.traceback, record.missing_source) if record.missing_source else record.traceback
    remote = RemoteError(record.ename, record.evalue, text, record.engine_info)
    remote.item_index, remote.item_repr = record.item_index, record.item_repr
    return typed(remote, record.original)


class Failed:
    """Stands among the values of a chunk for an item whose call raised."""

    __slots__ = ("record",)

    def __init__(self, record: tuple[Any, ...]) -> None:
        self.record: tuple[Any, ...] = record

    @classmethod
    def of(cls, error: BaseException, item: FailedItem) -> Self:
        """The stand-in for `error`. Raises `KeyboardInterrupt` only."""
        return cls(tuple(error_record(error, {}, item)))

    def exception(self, engine_info: Mapping[str, Any]) -> RemoteError:
        """The exception it stands for, raised on this engine."""
        return remote_error(ErrorRecord(*self.record)._replace(engine_info=dict(engine_info)))

    def __reduce__(self) -> tuple[Any, ...]:
        return Failed, (self.record,)


def without_context(error: BaseException, stranger: BaseException | None) -> None:
    """Removes `stranger`, which something else is handling, from what `error` says it was raised in."""
    link: BaseException | None = error
    seen: set[int] = set()
    while stranger is not None and link is not None and id(link) not in seen:
        seen.add(id(link))
        if link.__context__ is stranger:
            link.__context__ = None
        link = link.__context__
