"""How a mover reaches the node of its host."""

from __future__ import annotations

import json
import time
from typing import Any

from broadleaf import _native
from broadleaf._native import LinkClosed
from broadleaf.errors import ClusterStartError
from broadleaf.state.directories import sockets_here

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
        # A relay's before the controller's, for a host that has both: payload comes to the relay.
        for path in reversed(sockets_here(connection, _SOCKET)):
            text = json.dumps(connection | {"unix_path": path, "role": "engine"})
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
