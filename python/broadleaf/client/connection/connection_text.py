"""Where a client's connection to its cluster is described."""

from __future__ import annotations

import importlib
import json
import os
from typing import Any

from broadleaf.control import own_cluster
from broadleaf.errors import ClusterConnectionError


def profile_name(info: str | os.PathLike[str] | dict[str, Any] | None, profile: str | None, cluster: Any) -> str:
    """The profile that a client's cluster belongs to; "default" where nothing says so."""
    if profile is not None:
        return profile
    if cluster is not None:
        return str(cluster.profile)
    if info is not None and not isinstance(info, dict):
        folder = os.path.dirname(os.path.dirname(os.path.abspath(os.path.expanduser(os.fspath(info)))))
        profiles, name = os.path.split(folder)
        if os.path.basename(profiles) == "profiles":
            return name
    return "default"


def connection_text(info: str | os.PathLike[str] | dict[str, Any] | None, profile: str | None, cluster_id: str) -> str:
    """The JSON text of a connection file."""
    if isinstance(info, dict):
        return json.dumps(info)
    if info is None and profile is None and not cluster_id and own_cluster.is_engine():
        return own_cluster.client_connection()
    if info is None and profile is None and not cluster_id:
        info = os.environ.get("BROADLEAF_CONNECTION") or None  # of the cluster of `broadleaf run`
    if info is None:
        files = importlib.import_module("broadleaf.cluster.state.files")
        info = files.find_connection_file(profile or "default", cluster_id or None)
    try:
        with open(os.path.expanduser(os.fspath(info)), encoding="utf-8") as file:  # type: ignore[arg-type]
            return file.read()
    except OSError as error:
        raise ClusterConnectionError(f"no connection file: {error}") from error
