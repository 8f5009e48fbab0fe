"""Clients for tasks."""

from __future__ import annotations

import os
import threading

from broadleaf import _native
from broadleaf.client.client import Client
from broadleaf.errors import ClusterConnectionError

_lock = threading.Lock()
# Keyed by process, because a task may fork, and by depth: a task that closes its client, or waits for everything
# submitted through it, must not affect another task that waits on the same engine.
_clients: dict[tuple[int, int], Client] = {}


def get_client() -> Client:
    """The client of the cluster that runs the calling task.

    While the task waits for results of its own cluster, its engine runs other tasks. The engine keeps the client for
    later tasks, so there is no need to close it.

    Returns:
        The client, for the calling task and others at the same nesting depth.

    Raises:
        ClusterConnectionError: The caller is not a task, or its engine belongs to a relay that was given no connection
            file for clients.

    Example:
        >>> def total(n):
        ...     view = ipp.get_client().load_balanced_view()
        ...     return sum(view.map_sync(abs, range(n)))
        >>> rc[0].apply_sync(total, 4)
        6
    """
    depth = _native.submitted_depth()
    if depth == 0:
        raise ClusterConnectionError(
            "get_client() works only in a task on an engine; here, make a client with "
            "broadleaf.Client() or Cluster(n=4).start_and_connect_sync()"
        )
    key = (os.getpid(), depth)
    with _lock:
        client = _clients.get(key)
        if client is None or client.closed:
            name = f"engine {os.environ.get('BROADLEAF_ENGINE_ID', '')}, depth {depth}"
            client = _clients[key] = Client(name=name)
        return client
