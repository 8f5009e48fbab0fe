"""Standard streams of an engine: a task's output goes to its client, all other to the log."""

from __future__ import annotations

import io
import os
import sys
from typing import TextIO

from broadleaf import _native

STDOUT = 1
STDERR = 2

# A line longer than this leaves in pieces.
HELD_CHARACTERS = 8192


class TaskStream(io.TextIOBase):
    """A line-buffered text stream, whose lines leave by `Engine.send_output` while a task runs."""

    def __init__(self, engine: _native.Engine, stream: int) -> None:
        self._engine = engine
        self._stream = stream
        self._held = ""

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
    def line_buffering(self) -> bool:
        """True: a line leaves when it is complete."""
        return True

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        """The descriptor that child processes inherit; what they write goes to the log."""
        return self._stream

    def write(self, text: str, /) -> int:
        if not isinstance(text, str):
            raise TypeError(f"write() argument must be str, not {type(text).__name__}")
        held = self._held + text if self._held else text
        end = len(held) if len(held) > HELD_CHARACTERS else held.rfind("\n") + 1
        if end:
            self._send(held[:end])
            held = held[end:]
        self._held = held
        if held:
            self._engine.output_held = True
        return len(text)

    def flush(self) -> None:
        if self._held:
            held, self._held = self._held, ""
            self._send(held)

    def _send(self, text: str) -> None:
        data = text.encode("utf-8", "backslashreplace")
        if self._engine.current_task() is not None:
            self._engine.send_output(self._stream, data)
        else:
            _write_all(self._stream, data)


def _write_all(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]


class EngineStreams:
    """Both streams of an engine, put in the place of Python's and back."""

    def __init__(self) -> None:
        self._streams: tuple[TaskStream, ...] = ()
        self._replaced: tuple[TextIO, TextIO] = (sys.stdout, sys.stderr)

    def install(self, engine: _native.Engine) -> None:
        """Makes them `sys.stdout` and `sys.stderr`."""
        self._streams = (TaskStream(engine, STDOUT), TaskStream(engine, STDERR))
        sys.stdout, sys.stderr = self._streams

    def remove(self) -> None:
        """Sends what is held and puts Python's own streams back."""
        self.flush()
        sys.stdout, sys.stderr = self._replaced

    def flush(self) -> None:
        """Sends what is held of an unfinished line."""
        for stream in self._streams:
            stream.flush()
