"""How a mover reaches the node of its host."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from broadleaf import _native
from broadleaf._native import LinkClosed
from broadleaf.cluster.start_error import ClusterStartError
from broadleaf.cluster.state import files, owner

__all__ = ["LinkClosed", "connect"]

_SOCKET = "node.sock"
_AGAIN_S = 0.1


def connect(connection: dict[str, Any], world: int, rank: int, timeout_s: float) -> _native.Mover:
    """A connection to the payload plane of this host's node; waits until the node has one.

    `connection` is the content of the cluster's `engine.json`; `world` and `rank` identify the mover. Raises
    `ClusterStartError` if the node accepts no mover, or no node is up after `timeout_s`.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        for path in _nodes_here(connection):
            text = json.dumps(connection | {"unix_path": str(path), "role": "engine"})
            try:
                return _native.Mover(text, world, rank)
            except _native.ConnectionRefused as error:
                raise ClusterStartError(f"the node of this host refused its mover: {error.args[1]}") from None
            except (OSError, TimeoutError):
                continue  # it belongs to another cluster, or is gone
        if time.monotonic() > deadline:
            raise ClusterStartError(
                f"no node of cluster {connection['cluster_id']} is on this host after {timeout_s:g} s: start its relay "
                "before the mover"
            )
        time.sleep(_AGAIN_S)


def _nodes_here(connection: dict[str, Any]) -> Iterator[Path]:
    """The possible sockets: of a relay, and of the controller, if this is its host."""
    found = [*files.run_dirs(connection["cluster_id"]), Path(connection["unix_path"]).parent]
    # Another host's socket may be in a folder that both hosts see.
    return (
        directory / _SOCKET
        for directory in found
        if (directory / _SOCKET).exists() and (of := owner.owner_of(directory)) is not None and of.is_here()
    )
