"""Memory of processes on this host."""

from __future__ import annotations

import os
import socket

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
