"""Broadleaf's directory on this host, which holds everything about clusters."""

from __future__ import annotations

import os
from pathlib import Path


def base_dir() -> Path:
    """``$BROADLEAF_DIR``, else ``broadleaf`` under the XDG state directory."""
    if chosen := os.environ.get("BROADLEAF_DIR"):
        return Path(chosen)
    state = os.environ.get("XDG_STATE_HOME") or os.path.join(os.path.expanduser("~"), ".local", "state")
    return Path(state) / "broadleaf"
