"""Broadleaf's directory on this host, which holds everything about clusters."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from broadleaf.cluster.state.json_files import ClusterFileError

if TYPE_CHECKING:
    from pathlib import Path


def base_path() -> str:
    """``$BROADLEAF_DIR``, else ``broadleaf`` under the XDG state directory. Raises `ClusterFileError` if the native
    parts cannot use it."""
    path = os.environ.get("BROADLEAF_DIR", "")
    if not path:
        state = os.environ.get("XDG_STATE_HOME") or os.path.join(os.path.expanduser("~"), ".local", "state")
        path = os.path.join(state, "broadleaf")
    if not is_utf8(path):
        raise ClusterFileError(
            f"Broadleaf's directory on {os.uname().nodename}, {path!r}, must be UTF-8 and is not: set BROADLEAF_DIR to "
            "one that is"
        )
    return path


def is_utf8(path: str) -> bool:
    """Whether a path's bytes are UTF-8."""
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True


def base_dir() -> Path:
    """`base_path` as a `Path`. It imports `pathlib`, so MPI ranks call `base_path`."""
    from pathlib import Path

    return Path(base_path())
