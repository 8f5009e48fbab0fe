"""What tasks write, display and publish, and the output of a cell."""

import builtins
import importlib.util
import io
import os
import posix
import sys
from collections import deque
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, NoReturn, TextIO, TypedDict

from broadleaf import _native, errors
from broadleaf.serialize.values import dumps_in_band, unpicklable_reason

# What a task sends its client besides its output and its value: data and rich displays, as pickled messages.
#
# The messages are those of `broadleaf.client.metadata.outputs_of`.


# Space in a frame besides its header.
_MESSAGE_BYTES = 255 << 20
# Maximum amount kept of a cell for clients other than its own.
_RECORDED_BYTES = 256 << 10
_RECORDED_DISPLAYS = 16

_engine: Any = None
_recorded: tuple[int | None, list[dict[str, Any]]] | None = None


def install_publishing(engine: Any) -> None:
    """Sends messages with `engine.send_message`; None if there is no engine to send them."""
    global _engine
    _engine = engine


def in_task() -> bool:
    """Whether this process is an engine that runs a task."""
    return current_task() is not None


def current_task() -> int | None:
    """The number of the task that this engine runs; None if it is idle."""
    return None if _engine is None else _engine.current_task()


def publish_data(data: dict[str, Any]) -> None:
    """Publishes data to the client of the running task.

    The client can read it as `AsyncResult.data` even before the task ends.

    Args:
        data: Values by key. Later values of a key replace earlier ones.

    Raises:
        TypeError: `data` is not a dict.
        SerializationError: A value cannot be pickled, or they are larger than a message.
        RuntimeError: No task runs here.

    Example:
        >>> def halfway():
        ...     ipp.datapub.publish_data({"done": 0.5})
        >>> result = rc[0].apply_async(halfway)
        >>> result.get()
        >>> result.data
        {'done': 0.5}
    """
    if not isinstance(data, dict):
        raise TypeError(f"publish_data takes a dict, not {type(data).__name__}")
    if not in_task():
        raise RuntimeError("data can only be published from a task on an engine")
    send_message({"type": "published", "data": data})


def record_displays(task: int | None, displays: list[dict[str, Any]]) -> Any:
    """Also collects what `task` displays in a list; returns the argument of `restore`."""
    global _recorded
    before = _recorded
    _recorded = (task, displays)
    return before


def restore_displays(before: Any) -> None:
    """Undoes a `record`."""
    global _recorded
    _recorded = before


def send_message(message: dict[str, Any]) -> None:
    """Sends one message of the running task. Raises `SerializationError`."""
    try:
        body = dumps_in_band(message)
    except Exception as error:
        reason = unpicklable_reason(message["data"]) or str(error)
        raise errors.SerializationError("what the task publishes", reason) from error
    if len(body) > _MESSAGE_BYTES:
        raise errors.SerializationError("what the task publishes", f"{len(body)} bytes do not fit into one message")
    if _recorded is not None and message["type"] == "display":
        task, displays = _recorded
        has_room = len(body) <= _RECORDED_BYTES and len(displays) < _RECORDED_DISPLAYS
        if has_room and current_task() == task:
            displays.append(message)
    _engine.send_message(body)


# Standard streams of an engine: a task's output goes to its client, all of it to the engine's log.


STDOUT = 1
STDERR = 2


# Maximum kept of each stream of a cell, for clients other than its own.
RECORDED_BYTES = 64 << 10


class Record:
    """The latest output of one task to a stream."""

    def __init__(self, task: int | None) -> None:
        self._task = task
        # Created when there is something to keep: most cells write nothing.
        self._pieces: deque[bytes] | None = None
        self._kept_bytes = self._dropped_bytes = 0

    def add(self, data: bytes, task: int | None) -> None:
        """Keeps what a task wrote, if it is this task."""
        if task != self._task or not data:
            return
        if self._pieces is None:
            self._pieces = deque()
        self._pieces.append(data)
        self._kept_bytes += len(data)
        while self._kept_bytes - len(self._pieces[0]) >= RECORDED_BYTES:
            dropped = len(self._pieces.popleft())
            self._kept_bytes -= dropped
            self._dropped_bytes += dropped

    def text(self) -> str:
        """All that is kept; it says how much is missing."""
        if self._pieces is None:
            return ""
        data = b"".join(self._pieces)
        dropped = self._dropped_bytes + max(0, len(data) - RECORDED_BYTES)
        text = data[-RECORDED_BYTES:].decode("utf-8", "replace")
        return f"... {dropped} bytes dropped ...\n{text}" if dropped else text


class TaskStream(io.TextIOBase):
    """A text stream whose lines leave through `Engine.write_output`, and through its descriptor in forked children."""

    def __init__(self, engine: _native.Engine, stream: int) -> None:
        self._engine = engine
        self._stream = stream
        self._in_child: TextIO | None = None
        self._write_through = False
        # Whether bytes take the short way. One call less is noticeable to code that prints line after line.
        self._is_plain = True
        self._write_output = engine.write_output
        self._record: Record | None = None
        self.buffer: TaskBuffer = TaskBuffer(self)

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return "utf-8"

    @property
    def errors(self) -> str:  # type: ignore[override]
        return "backslashreplace"

    @property
    def name(self) -> str:
        """As CPython names its own streams."""
        return "<stdout>" if self._stream == STDOUT else "<stderr>"

    @property
    def mode(self) -> str:
        """As CPython has it."""
        return "w"

    @property
    def line_buffering(self) -> bool:
        """True: a line leaves when it is complete."""
        return True

    @property
    def write_through(self) -> bool:
        """Whether text leaves before its line is complete."""
        return self._write_through

    def reconfigure(self, *, write_through: bool | None = None, **_options: Any) -> None:
        """Takes the options of `io.TextIOWrapper.reconfigure`. Text stays UTF-8 and lines leave when complete."""
        if write_through is not None:
            self._write_through = write_through
            self._choose_way()

    def _choose_way(self) -> None:
        self._is_plain = self._in_child is None and self._record is None and not self._write_through

    def record(self, record: Record | None) -> Record | None:
        """Keeps a copy of what Python writes in `record`, or in none; returns the previous one."""
        before, self._record = self._record, record
        self._choose_way()
        return before

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        """The descriptor that child processes inherit."""
        return self._stream

    def write(self, text: str, /) -> int:
        if not isinstance(text, str):
            raise TypeError(f"write() argument must be str, not {type(text).__name__}")
        data = text.encode("utf-8", "backslashreplace")
        if self._is_plain:
            self._write_output(self._stream, data)
        else:
            self.write_bytes(data)
        return len(text)

    def write_bytes(self, data: bytes) -> None:
        """Writes encoded text."""
        if self._in_child is not None:
            self._in_child.write(data.decode("utf-8", "surrogateescape"))
            return
        self._write_output(self._stream, data)
        if self._record is not None:
            self._record.add(data, self._engine.current_task())
        if self._write_through:
            self._engine.flush_output(self._stream)

    def flush(self) -> None:
        if self._in_child is not None:
            self._in_child.flush()
        else:
            self._engine.flush_output(self._stream)

    def close(self) -> None:
        """Stays open for the next task; what was written leaves."""
        self.flush()

    def on_forked(self) -> None:
        """In a forked child, which has no connection of its own, this writes to the descriptor from now on."""
        self._in_child = open(  # noqa: SIM115 - as long as the process
            self._stream, "w", buffering=1, encoding="utf-8", errors="surrogateescape", newline="\n", closefd=False
        )
        self._choose_way()


class TaskBuffer(io.BufferedIOBase):
    """The bytes beneath a `TaskStream`."""

    def __init__(self, stream: TaskStream) -> None:
        self._text = stream

    @property
    def name(self) -> str:
        """As the text stream's."""
        return self._text.name

    @property
    def mode(self) -> str:
        """As CPython has it."""
        return "wb"

    @property
    def raw(self) -> io.RawIOBase:
        """The descriptor itself."""
        return io.FileIO(self._text.fileno(), "w", closefd=False)

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        """The descriptor that child processes inherit."""
        return self._text.fileno()

    def write(self, data: Any, /) -> int:
        view = memoryview(data)
        self._text.write_bytes(view.tobytes())
        return view.nbytes

    def flush(self) -> None:
        self._text.flush()

    def close(self) -> None:
        """Stays open, as the text stream does."""
        self.flush()


class EngineStreams:
    """Both streams of an engine, which replace Python's and can be restored."""

    def __init__(self) -> None:
        self._streams: tuple[TaskStream, ...] = ()
        self._replaced: tuple[Any, ...] = ()
        self._leave: Any = None

    def install(self, engine: _native.Engine) -> None:
        """Makes them `sys.stdout` and `sys.stderr`, even for programs that return to the original ones."""
        self._replaced = (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__)
        self._streams = (TaskStream(engine, STDOUT), TaskStream(engine, STDERR))
        sys.stdout, sys.stderr = self._streams
        sys.__stdout__, sys.__stderr__ = self._streams  # type: ignore[misc,assignment]
        os.register_at_fork(before=self.flush, after_in_child=self.on_forked)
        self._flush_before_exit()

    def _flush_before_exit(self) -> None:
        """Makes `os._exit` send what is queued: a task may end its process with it."""
        self._leave = leave = os._exit

        def _exit(status: int) -> NoReturn:
            try:
                self.flush()
            finally:
                leave(status)

        # Under its own name, so that it can be sent to engines as before.
        _exit.__module__, _exit.__qualname__ = "posix", "_exit"
        os._exit = posix._exit = _exit

    def remove(self) -> None:
        """Sends buffered output and restores Python's own streams."""
        self.flush()
        sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__ = self._replaced  # type: ignore[misc]
        if self._leave is not None:
            os._exit = posix._exit = self._leave

    def flush(self) -> None:
        """Sends the unfinished line."""
        for stream in self._streams:
            stream.flush()

    def on_forked(self) -> None:
        """In a child that a task has forked: its output belongs to its parent, through the descriptors."""
        install_publishing(None)
        for stream in self._streams:
            stream.on_forked()


# What a cell writes and displays, kept with its reply for clients that did not run it.


class CellOutput:
    """A context in which the cell's output is recorded."""

    def __init__(self) -> None:
        self._records: list[tuple[str, TaskStream, Record, Record | None]] = []
        self._displays: list[dict[str, Any]] = []
        self._before: Any = None

    def __enter__(self) -> "CellOutput":
        task = current_task()
        for name, stream in (("stdout", sys.stdout), ("stderr", sys.stderr)):
            if type(stream) is TaskStream:
                record = Record(task)
                self._records.append((name, stream, record, stream.record(record)))
        self._before = record_displays(task, self._displays)
        return self

    def __exit__(self, *_: object) -> None:
        for _name, stream, _record, before in self._records:
            stream.record(before)
        restore_displays(self._before)

    def content(self) -> dict[str, Any]:
        """`stdout`, `stderr` and `displays`, as far as they are not empty."""
        found: dict[str, Any] = {name: text for name, _, record, _ in self._records if (text := record.text())}
        if self._displays:
            found["displays"] = self._displays
        return found


# How the value of an expression is displayed to the client.


class Bundle(TypedDict):
    """Representations of one value by MIME type, as Jupyter has them."""

    data: dict[str, Any]
    metadata: dict[str, Any]


_formatter: Any = None


# Types whose only representation is their `repr`.
_PLAIN_TYPES = frozenset((type(None), bool, int, float, complex, str, bytes))
_RICH_METHODS = (
    "_ipython_display_", "_repr_html_", "_repr_jpeg_", "_repr_json_", "_repr_latex_", "_repr_markdown_",
    "_repr_mimebundle_", "_repr_pdf_", "_repr_png_", "_repr_svg_",
)  # fmt: skip


def use_formatter(formatter: Any) -> None:
    """Makes IPython's representations with this formatter, that of a shell."""
    global _formatter
    _formatter = formatter


def representations(value: Any) -> Bundle:
    """The value's representations: IPython's if it has rich ones or IPython is loaded here, and otherwise only its
    `repr`."""
    if type(value) in _PLAIN_TYPES:
        return {"data": {"text/plain": repr(value)}, "metadata": {}}
    if "IPython" in sys.modules or any(hasattr(type(value), method) for method in _RICH_METHODS):
        bundle = rich_representations(value)
        if bundle["data"]:
            return bundle
    return {"data": {"text/plain": repr(value)}, "metadata": {}}


def rich_representations(value: Any, include: Any = None, exclude: Any = None) -> Bundle:
    """IPython's representations of a value, none if the value shows itself, and its `repr` if there is no IPython."""
    global _formatter
    if _formatter is None:
        try:
            from IPython.core.formatters import DisplayFormatter  # pyright: ignore[reportMissingImports]
        except ImportError:
            return {"data": {"text/plain": repr(value)}, "metadata": {}}
        _formatter = DisplayFormatter()
    data, metadata = _formatter.format(value, include=include, exclude=exclude)
    return {"data": data, "metadata": metadata}


class DisplayHook:
    """A `sys.displayhook` that keeps the last value's representations for the reply of `execute`."""

    def __init__(self) -> None:
        self._last: Bundle | None = None

    def __call__(self, value: Any) -> None:
        if value is not None:
            self._last = representations(value)
            builtins._ = value  # type: ignore[attr-defined]

    def take(self) -> Bundle | None:
        """The representations since the last call, or None when no value was shown."""
        last, self._last = self._last, None
        return last


# IPython's `display` on an engine: its arguments go to the task's client, as from a notebook's kernel. Engines are
# not IPython shells, so its functions are replaced where they are defined, when somebody imports them. Nothing here
# imports IPython before `display` is called.


_DEFINED_IN = "IPython.core.display_functions"
# Modules that hold them by name if they were imported earlier.
_HOLDERS = (_DEFINED_IN, "IPython.display")


def install_display() -> None:
    """Makes `display` a builtin, and IPython's own functions send what they show."""
    builtins.display = display  # type: ignore[attr-defined]
    for name in _HOLDERS:
        if name in sys.modules:
            _replace(sys.modules[name])
    if _DEFINED_IN not in sys.modules:
        sys.meta_path.insert(0, _ReplacingFinder())


def _replace(module: ModuleType) -> None:
    module.__dict__.update(display=display, publish_display_data=publish_display_data)


class _ReplacingFinder:
    """Finds the module of IPython's functions once, and replaces them as it is loaded."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != _DEFINED_IN:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        loader: Any = spec.loader if spec is not None else None
        if loader is not None:
            execute = loader.exec_module

            def execute_and_replace(module: ModuleType) -> None:
                execute(module)
                _replace(module)

            loader.exec_module = execute_and_replace
        return spec


def display(
    *objects: Any,
    include: Any = None,
    exclude: Any = None,
    metadata: dict[str, Any] | None = None,
    transient: dict[str, Any] | None = None,
    display_id: str | bool | None = None,
    raw: bool = False,
    clear: bool = False,
    update: bool = False,
    **_: Any,
) -> Any:
    """Shows objects on the task's client; arguments as those of `IPython.display.display`.

    Returns a `DisplayHandle` if there is a `display_id`. Outside a task their plain text goes to the log.
    """
    if display_id is True:
        display_id = os.urandom(16).hex()
    if display_id:
        transient = {**(transient or {}), "display_id": display_id}
    for value in objects:
        bundle: Bundle = {"data": value, "metadata": {}} if raw else rich_representations(value, include, exclude)
        # An object that shows itself has no representations.
        if bundle["data"]:
            merged = {**bundle["metadata"], **(metadata or {})}
            publish_display_data(bundle["data"], merged, transient=transient, update=update)
    if not display_id:
        return None
    from IPython.core.display_functions import DisplayHandle  # pyright: ignore[reportMissingImports]

    return DisplayHandle(display_id)


def publish_display_data(
    data: dict[str, Any],
    metadata: dict[str, Any] | None = None,
    source: Any = None,
    *,
    transient: dict[str, Any] | None = None,
    update: bool = False,
    **_: Any,
) -> None:
    """Shows a MIME bundle on the task's client."""
    if not in_task():
        print(data.get("text/plain", ""))
        return
    message: dict[str, Any] = {"type": "display", "data": data, "metadata": metadata or {}}
    if transient:
        message["transient"] = transient
    if update:
        message["update"] = True
    send_message(message)
