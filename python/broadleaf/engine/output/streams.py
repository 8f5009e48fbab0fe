"""Standard streams of an engine: a task's output goes to its client, all of it to the engine's log."""

from __future__ import annotations

import io
import os
import posix
import sys
from collections import deque
from typing import Any, NoReturn, TextIO

from broadleaf import _native
from broadleaf.engine.output import publish

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
        publish.install(None)
        for stream in self._streams:
            stream.on_forked()
