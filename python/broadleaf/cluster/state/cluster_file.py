"""The file that describes a cluster, written by one process and read by others."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from broadleaf.cluster.state.json_files import read_json, write_json


class ClusterFile:
    """`Cluster.cluster_file`, and whether another process has written it since this one last read it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen: tuple[int, int] | None = None

    def write(self, content: Mapping[str, Any]) -> None:
        """Replaces it."""
        write_json(self._path, content)
        self._seen = self._stamp()

    def changed(self) -> dict[str, Any] | None:
        """What another process has written since; None if none has, or if the cluster is gone."""
        stamp = self._stamp()
        if stamp is None or stamp == self._seen:
            return None
        content = read_json(self._path)
        self._seen = stamp
        return content

    def _stamp(self) -> tuple[int, int] | None:
        try:
            status = os.stat(self._path)
        except OSError:
            return None
        return status.st_ino, status.st_mtime_ns
