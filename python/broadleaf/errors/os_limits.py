"""Limits of the operating system, as the reason for an error."""

from __future__ import annotations

import errno


def explained(error: OSError) -> str:
    """What the operating system said, and which limit may be the reason."""
    text = str(error)
    if isinstance(error, BlockingIOError):  # those of the native module have no number
        text += ". The user's limit on processes (ulimit -u), or the container's (pids.max), may be reached"
    elif error.errno in (errno.EMFILE, errno.ENFILE):
        text += ". The limit on open files (ulimit -n) is reached"
    return text
