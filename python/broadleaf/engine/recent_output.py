"""The latest output of an engine, from Python and others, in memory that the fork server still has when it has died.

The engine's native part writes there. The memory begins with the total number of bytes written; byte `n` of the output
is at `n` modulo the size of the rest.
"""

from __future__ import annotations

import fcntl
import os

MEMORY_BYTES = 8192
_NAME = "broadleaf-output"
_HEAD_BYTES = 8
_ROOM_BYTES = MEMORY_BYTES - _HEAD_BYTES


def create() -> int:
    """A descriptor of memory whose size cannot change, or of a nameless file if the container forbids memfds."""
    try:
        memory = os.memfd_create(_NAME, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    except OSError:
        memory = os.open("/dev/shm", os.O_TMPFILE | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600)
        os.posix_fallocate(memory, 0, MEMORY_BYTES)
    else:
        os.ftruncate(memory, MEMORY_BYTES)
        fcntl.fcntl(memory, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
    return memory


def read(memory: int) -> tuple[int, bytes]:
    """The total number of bytes written, and the latest of them."""
    content = os.pread(memory, MEMORY_BYTES, 0)
    written_bytes = _number(content)
    room = content[_HEAD_BYTES:]
    position = written_bytes % _ROOM_BYTES
    latest = room[:position] if written_bytes < _ROOM_BYTES else room[position:] + room[:position]
    # What was written meanwhile has taken the place of the oldest.
    overwritten_bytes = max(0, _number(os.pread(memory, _HEAD_BYTES, 0)) - max(written_bytes, _ROOM_BYTES))
    return written_bytes, latest[overwritten_bytes:]


def read_of_process(pid: int) -> tuple[int, bytes] | None:
    """The same of a living engine of this host and user; None if the process has no such memory, or is not ours."""
    folder = f"/proc/{pid}/fd"
    try:
        for number in os.listdir(folder):
            path = f"{folder}/{number}"
            if os.readlink(path).startswith(f"/memfd:{_NAME}"):
                memory = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
                try:
                    return read(memory)
                finally:
                    os.close(memory)
    except OSError:
        pass
    return None


def _number(content: bytes) -> int:
    return int.from_bytes(content[:_HEAD_BYTES], "little")
