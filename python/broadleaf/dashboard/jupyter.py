"""The dashboard inside JupyterLab, through jupyter-server-proxy: `/broadleaf-dashboard/`, and a tile in the
launcher."""

from __future__ import annotations

import sys
from typing import Any


def server() -> dict[str, Any]:
    """How jupyter-server-proxy starts and finds it, for its entry point.

    It is served on a unix socket in a directory of the user. Everybody else has to go through Jupyter, which asks for
    its own password or token.
    """
    return {
        "command": [sys.executable, "-m", "broadleaf", "dashboard", "--unix-socket", "{unix_socket}"],
        "unix_socket": True,
        "timeout": 20,
        "launcher_entry": {"title": "Broadleaf", "path_info": "broadleaf-dashboard/"},
    }
