"""Broadleaf's directory on this host, which holds everything about clusters."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def base_path() -> str:
    """``$BROADLEAF_DIR``, else ``broadleaf`` under the XDG state directory."""
    if chosen := os.environ.get("BROADLEAF_DIR"):
        return chosen
    state = os.environ.get("XDG_STATE_HOME") or os.path.join(os.path.expanduser("~"), ".local", "state")
    return os.path.join(state, "broadleaf")


def base_dir() -> Path:
    """`base_path` as a `Path`. It imports `pathlib`, so MPI ranks call `base_path`."""
    from pathlib import Path

    return Path(base_path())
