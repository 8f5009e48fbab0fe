"""What engines and relays read of a cluster: its `engine.json`."""

from __future__ import annotations

import os
import sys
from typing import Any

from broadleaf import _native
from broadleaf.cluster.start_error import ClusterStartError
from broadleaf.cluster.state.json_files import ClusterFileError, read_json


def read_engine_connection(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The content of an `engine.json`. Raises `ClusterFileError` for any other file, and `ClusterStartError` for one of
    another version of Broadleaf."""
    return checked_engine_connection(read_json(path), os.fspath(path))


def checked_engine_connection(connection: dict[str, Any], origin: str) -> dict[str, Any]:
    """`connection`, if it belongs to this version of Broadleaf; `origin` says where it came from."""
    if "private_key" not in connection or "cluster_id" not in connection:
        raise ClusterFileError(f"{origin} is no connection file")
    if (theirs := connection["broadleaf"]) != _native.__version__:
        raise ClusterStartError(
            f"wrong Broadleaf: {sys.executable} on {os.uname().nodename} has {_native.__version__}, and the cluster "
            f"has {theirs}; install the same there, or set python= to one that has it"
        )
    return connection
