"""What an engine and the fork server share to capture its output.

Two pipes are the engine's descriptors 1 and 2; the engine empties them while it lives. A small piece of memory holds
its latest output. The fork server made them and holds them too, so what an engine wrote as it died is not lost.
"""

from __future__ import annotations

import fcntl
import os
from typing import Any

from broadleaf.engine.processes.deaths import LAST_OUTPUT_BYTES

# The capacity of a pipe, unless somebody has changed it.
_PIPE_BYTES = 65536
_MEMORY_BYTES = 8192
# The memory begins with the total number of bytes written; byte `n` of the output is at `n` modulo the size of the
# rest.
_HEAD_BYTES = 8
_ROOM_BYTES = _MEMORY_BYTES - _HEAD_BYTES


class Capture:
    """Descriptors' numbers. Read ends never block; none survives `exec`."""

    def __init__(
        self,
        stdout_read: int,
        stdout_write: int,
        stderr_read: int,
        stderr_write: int,
        recent: int,
        log_path: str,
        recent_bytes: int = _MEMORY_BYTES,
    ) -> None:
        self.stdout_read = stdout_read
        self.stdout_write = stdout_write
        self.stderr_read = stderr_read
        self.stderr_write = stderr_write
        self.recent = recent
        """Memory of a fixed size."""
        self.log_path = log_path
        """The engine's log, which has what is written outside of tasks and what goes through the pipes."""
        self.recent_bytes = recent_bytes

    def to_dict(self) -> dict[str, Any]:
        """The arguments that make another one like it, ready for JSON."""
        return dict(vars(self))

    @classmethod
    def create(cls, log_path: str) -> Capture:
        """New pipes and memory. Raises `OSError` if there are no descriptors left."""
        made: list[int] = []
        try:
            stdout_read, stdout_write = os.pipe()
            made += stdout_read, stdout_write
            stderr_read, stderr_write = os.pipe()
            made += stderr_read, stderr_write
            recent = _create_memory()
        except OSError:
            _close(*made)
            raise
        for read_end in (stdout_read, stderr_read):
            os.set_blocking(read_end, False)
        return cls(stdout_read, stdout_write, stderr_read, stderr_write, recent, log_path)

    def numbers(self) -> tuple[int, int, int, int, int]:
        """All descriptors, in the order of the fields."""
        return self.stdout_read, self.stdout_write, self.stderr_read, self.stderr_write, self.recent

    def close_write_ends(self) -> None:
        """Closes what only the engine needs."""
        _close(self.stdout_write, self.stderr_write)

    def close(self) -> None:
        """Closes what the fork server keeps."""
        _close(self.stdout_read, self.stderr_read, self.recent)

    def save_rest(self) -> bytes:
        """Appends unread output to the log, and returns it. Reads no more than fits in the pipes: children that the
        engine left behind may still write.
        """
        rest = _read_rest(self.stdout_read) + _read_rest(self.stderr_read)
        if rest:
            try:
                with open(self.log_path, "ab") as log:
                    log.write(rest)
            except OSError:
                pass  # a full disk
        return rest

    def last_output(self, rest: bytes = b"") -> str:
        """The latest output, from Python and others, followed by `rest`."""
        memory = os.pread(self.recent, _MEMORY_BYTES, 0)
        written_bytes = int.from_bytes(memory[:_HEAD_BYTES], "little")
        room = memory[_HEAD_BYTES:]
        position = written_bytes % _ROOM_BYTES
        recent = room[:position] if written_bytes < _ROOM_BYTES else room[position:] + room[:position]
        return (recent + rest)[-LAST_OUTPUT_BYTES:].decode("utf-8", "replace")


def _create_memory() -> int:
    """Memory whose size cannot change, or a nameless file if the container forbids memfds."""
    try:
        memory = os.memfd_create("broadleaf-output", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    except OSError:
        memory = os.open("/dev/shm", os.O_TMPFILE | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600)
        os.posix_fallocate(memory, 0, _MEMORY_BYTES)
    else:
        os.ftruncate(memory, _MEMORY_BYTES)
        fcntl.fcntl(memory, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
    return memory


def _read_rest(read_end: int) -> bytes:
    rest = b""
    try:
        while len(rest) < _PIPE_BYTES and (piece := os.read(read_end, _PIPE_BYTES)):
            rest += piece
    except BlockingIOError:
        pass
    return rest


def _close(*descriptors: int) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
